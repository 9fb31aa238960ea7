//! Where kernels are launched, whatever language they are written in.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::CubeCount;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::prelude::CubeElement;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

/// How many workgroups a launch has.
#[derive(Clone, Copy, Debug)]
pub enum Workgroups {
    /// As many in a row; the kernel reads its number from both dimensions of the grid.
    Line(usize),
    /// So many by so many.
    Plane(usize, usize),
}

/// The most workgroups in one dimension that WebGPU promises.
const MOST_WORKGROUPS: usize = 65_535;

impl Workgroups {
    /// Enough for one invocation of `workgroup` for each of `items`.
    pub fn cover(items: usize, workgroup: u32) -> Self {
        Workgroups::Line(items.div_ceil(workgroup as usize))
    }

    /// The grid of that many.
    pub fn count(self) -> CubeCount {
        let (x, y) = match self {
            Workgroups::Line(count) => {
                let lines = count.div_ceil(MOST_WORKGROUPS).max(1);
                (count.div_ceil(lines), lines)
            }
            Workgroups::Plane(x, y) => (x, y),
        };
        CubeCount::Static(x as u32, y as u32, 1)
    }
}

/// Where kernels are launched and their outputs allocated.
#[derive(Clone)]
pub struct Queue {
    pub(crate) client: Client,
    device: CubeDevice,
}

impl Queue {
    /// The queue of a tensor's device.
    pub fn of(tensor: &CubeTensor) -> Self {
        Self { client: tensor.client.clone(), device: tensor.device.clone() }
    }

    /// The queue of a device.
    pub fn on(device: CubeDevice) -> Self {
        Self { client: device.client(), device }
    }

    /// Whether the device compiles WGSL.
    pub fn runs_wgsl(&self) -> bool {
        self.client.name() == "wgpu<wgsl>"
    }

    /// Invocations in a subgroup, where all are of one size. Adapters that name one size let
    /// subgroups exchange values, and `gpu::open` asks for that; cubecl's own flag for it leaves
    /// software adapters out.
    pub fn subgroup(&self) -> Option<u32> {
        // wgpu has no name for that in browsers yet, and so cannot ask for it.
        if cfg!(target_arch = "wasm32") {
            return None;
        }
        let hardware = &self.client.properties().hardware;
        let (min, max) = (hardware.plane_size_min, hardware.plane_size_max);
        (min == max).then_some(max)
    }

    /// burn's name of the device.
    pub fn device(&self) -> CubeDevice {
        self.device.clone()
    }

    /// Memory that a workgroup shares, in bytes.
    pub fn workgroup_memory(&self) -> usize {
        self.client.properties().hardware.max_shared_memory_size
    }

    /// A new tensor of f32 whose elements are whatever the memory holds.
    pub fn empty(&self, shape: impl Into<Shape>) -> CubeTensor {
        self.empty_of(shape, DType::F32)
    }

    /// A new tensor whose elements are whatever the memory holds.
    pub fn empty_of(&self, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
        let shape = shape.into();
        let handle = self.client.empty(dtype.size() * shape.num_elements().max(1));
        CubeTensor::new_contiguous(self.client.clone(), self.device.clone(), shape, handle, dtype)
    }

    /// Uploads numbers for a kernel to read.
    pub fn upload(&self, numbers: &[u32]) -> Handle {
        self.client.create_from_slice(u32::as_bytes(numbers))
    }

    /// What stands where a kernel's optional operand is not: enough for a binding to be valid.
    pub fn nothing(&self) -> Handle {
        self.client.empty(16)
    }
}
