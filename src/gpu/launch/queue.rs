//! The queue of a device, which launches the kernels of both languages.

use std::cell::RefCell;
use std::fmt;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::CubeCount;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::ir::features::Plane;
use burn_cubecl::cubecl::prelude::CubeElement;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use crate::gpu::device::DriverTraits;

#[derive(Clone, Copy, Debug)]
pub enum Workgroups {
    /// A line of workgroups. The kernel computes its number from both dimensions of the grid.
    Line(usize),
    Plane(usize, usize),
}

/// WebGPU guarantees this many workgroups in one dimension.
const MAX_WORKGROUPS: usize = 65_535;

impl Workgroups {
    /// Returns enough workgroups of `workgroup` invocations for one invocation per item.
    pub fn cover(items: usize, workgroup: u32) -> Self {
        Workgroups::Line(items.div_ceil(workgroup as usize))
    }

    pub fn count(self) -> CubeCount {
        let (x, y) = match self {
            Workgroups::Line(count) => {
                let lines = count.div_ceil(MAX_WORKGROUPS).max(1);
                (count.div_ceil(lines), lines)
            }
            Workgroups::Plane(x, y) => (x, y),
        };
        CubeCount::Static(x as u32, y as u32, 1)
    }
}

impl fmt::Display for Workgroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workgroups::Line(count) => write!(f, "{count}"),
            Workgroups::Plane(x, y) => write!(f, "{x}x{y}"),
        }
    }
}

/// Launches kernels and allocates their outputs.
#[derive(Clone)]
pub struct Queue {
    pub(crate) client: Client,
    device: CubeDevice,
    pub driver: DriverTraits,
}

impl Queue {
    pub fn of(tensor: &CubeTensor) -> Self {
        Self {
            client: tensor.client.clone(),
            device: tensor.device.clone(),
            driver: DriverTraits::UNKNOWN,
        }
    }

    pub fn on(device: CubeDevice) -> Self {
        Self { client: device.client(), device, driver: DriverTraits::UNKNOWN }
    }

    pub fn runs_wgsl(&self) -> bool {
        self.client.name() == "wgpu<wgsl>"
    }

    /// Returns the number of invocations in a subgroup, if it is fixed, so that subgroups can exchange
    /// values. cubecl's own flag for that excludes software adapters. Browsers without subgroups report
    /// 4 to 128 invocations.
    pub fn subgroup(&self) -> Option<u32> {
        let [min, max] = self.subgroup_sizes();
        (min == max).then_some(max)
    }

    fn subgroup_sizes(&self) -> [u32; 2] {
        let hardware = &self.client.properties().hardware;
        [hardware.plane_size_min, hardware.plane_size_max]
    }

    /// Returns how many neighbouring invocations, a power of two, are in one subgroup in every kernel and may
    /// exchange values. `None` if kernels cannot shuffle, or if small subgroups may be chosen.
    pub fn lanes(&self) -> Option<u32> {
        let shuffles = self.client.properties().features.plane.contains(Plane::Ops);
        let [min, max] = self.subgroup_sizes();
        // cubecl's flag excludes software adapters, which have subgroups of 4 or 8.
        let known = if shuffles { (32..=128).contains(&min) } else { min == max && max <= 8 };
        (known && min.is_power_of_two()).then_some(min)
    }

    /// Returns true if an invocation has few registers. This is so on Intel, which alone has subgroups
    /// of 8 or 16 to 32 invocations: in the larger ones, each has a half or a quarter of the registers.
    pub fn few_registers(&self) -> bool {
        let [min, max] = self.subgroup_sizes();
        min < max && max <= 32
    }

    /// Returns the most elements of a vector in cubecl's language.
    pub fn vector_size(&self) -> usize {
        self.client.properties().hardware.max_vector_size
    }

    /// Returns the most invocations of a workgroup.
    pub fn workgroup_size(&self) -> u32 {
        self.client.properties().hardware.max_units_per_cube
    }

    /// Returns the memory that a workgroup shares, in bytes.
    pub fn workgroup_memory(&self) -> usize {
        self.client.properties().hardware.max_shared_memory_size
    }

    /// Returns the number of storage buffers that a kernel may bind, at least WebGPU's 8.
    pub fn storage_buffers(&self) -> usize {
        // cubecl counts one less than the device has, because Metal needs one for the uniforms.
        self.client.properties().hardware.max_bindings.max(8) as usize
    }

    /// Returns a new f32 tensor with uninitialised elements.
    pub fn empty(&self, shape: impl Into<Shape>) -> CubeTensor {
        self.empty_of(shape, DType::F32)
    }

    pub fn empty_of(&self, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
        let shape = shape.into();
        let handle = self.client.empty(dtype.size() * shape.num_elements().max(1));
        self.tensor(shape, handle, dtype)
    }

    fn tensor(&self, shape: Shape, handle: Handle, dtype: DType) -> CubeTensor {
        CubeTensor::new_contiguous(self.client.clone(), self.device.clone(), shape, handle, dtype)
    }

    /// Uploads values for a kernel to read, as a tensor of u32.
    pub fn upload(&self, values: &[u32]) -> CubeTensor {
        let handle = self.client.create_from_slice(u32::as_bytes(values));
        let shape = Shape::from([values.len()]);
        self.tensor(shape, handle, DType::U32)
    }

    /// Returns a placeholder for an optional operand of a kernel, large enough for a valid binding.
    pub fn nothing(&self) -> CubeTensor {
        self.empty([4])
    }

    /// Returns the placeholder for the operand of this number that a launch leaves out. Launches share
    /// them: with an allocation for each, the allocations of a step took twice as long.
    pub fn placeholder(&self, number: usize) -> Handle {
        PLACEHOLDERS.with_borrow_mut(|all| {
            let service = self.client.service_id();
            let known = all.iter().filter(|it| it.service == service).nth(number).cloned();
            known.unwrap_or_else(|| {
                let new = self.nothing().handle;
                all.push(new.clone());
                new
            })
        })
    }
}

thread_local! {
    // Of every device. Each thread has its own, because memory belongs to the stream of a thread.
    static PLACEHOLDERS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}
