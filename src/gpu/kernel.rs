//! Launching the kernels of `shaders/`.
//!
//! A kernel is WGSL text behind a generated header. One value, the [`Spec`], gives both the text and
//! the key under which the compiled pipeline is kept, so that neither can say what the other does
//! not.

use std::fmt::Write as _;

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::prelude::KernelId;
use burn_cubecl::cubecl::server::{BufferBinding, Handle, KernelArguments, MetadataBindingInfo};
use burn_cubecl::cubecl::{CubeCount, CubeDim, ExecutionMode};
use burn_cubecl::template::{KernelSource, SourceKernel, SourceTemplate};
use burn_cubecl::tensor::CubeTensor;

/// A file of `shaders/` with the files it needs before it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Shader {
    /// The file's name without its ending.
    pub name: &'static str,
    /// The texts, in the order in which they go to the compiler.
    pub parts: &'static [&'static str],
}

/// The text of a file of `shaders/`.
macro_rules! wgsl {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl"))
    };
}
pub(crate) use wgsl;

/// The value of a constant in a kernel's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// A `u32`.
    Count(u32),
    /// A `bool`.
    Flag(bool),
}

impl From<u32> for Constant {
    fn from(value: u32) -> Self {
        Constant::Count(value)
    }
}

impl From<bool> for Constant {
    fn from(value: bool) -> Self {
        Constant::Flag(value)
    }
}

/// One variant of a kernel: everything that decides its source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    shader: &'static Shader,
    /// Invocations in a workgroup, `WG` in the source.
    workgroup: u32,
    /// Elements to a memory access, 4 or 1.
    pack: u32,
    constants: Vec<(&'static str, Constant)>,
}

impl Spec {
    /// A variant with `workgroup` invocations and no constants but `WG`, one element to an access.
    pub fn new(shader: &'static Shader, workgroup: u32) -> Self {
        Self { shader, workgroup, pack: 1, constants: Vec::new() }
    }

    /// With `width` elements to a memory access: see [`pack_of`].
    pub fn packed(mut self, width: u32) -> Self {
        self.pack = width;
        self
    }

    /// With a constant in the header.
    pub fn with(mut self, name: &'static str, value: impl Into<Constant>) -> Self {
        self.constants.push((name, value.into()));
        self
    }

    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.shader.name
    }

    /// Elements to a memory access.
    pub fn pack(&self) -> u32 {
        self.pack
    }

    /// Invocations in a workgroup.
    pub fn workgroup(&self) -> u32 {
        self.workgroup
    }

    /// The whole WGSL text: header, then the files.
    pub fn source(&self) -> String {
        let mut text = format!("// {}\nconst WG = {}u;\n", self.shader.name, self.workgroup);
        for (name, value) in &self.constants {
            let _ = match value {
                Constant::Count(value) => writeln!(text, "const {name} = {value}u;"),
                Constant::Flag(value) => writeln!(text, "const {name} = {value};"),
            };
        }
        text.push_str(if self.pack == 4 { wgsl!("pack4") } else { wgsl!("pack1") });
        for part in self.shader.parts {
            text.push_str(part);
        }
        text
    }
}

/// Elements to a memory access where every row is a multiple of it long: 4, else 1.
pub fn pack_of(row_lengths: &[usize]) -> u32 {
    if row_lengths.iter().all(|length| length.is_multiple_of(4)) { 4 } else { 1 }
}

struct Text(Spec);

impl KernelSource for Text {
    fn source(&self) -> SourceTemplate {
        SourceTemplate::new(self.0.source())
    }

    fn id(&self) -> KernelId {
        // Unchecked: the kernels guard their own loops, and a bound that the compiler adds keeps
        // drivers from unrolling.
        KernelId::new::<Self>()
            .info(self.0.clone())
            .cube_dim(CubeDim::new_1d(self.0.workgroup).0)
            .mode(ExecutionMode::Unchecked)
    }

    fn lang(&self) -> &'static str {
        "wgsl"
    }
}

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

    fn count(self) -> CubeCount {
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
    client: Client,
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

    /// A new tensor whose elements are whatever the memory holds.
    pub fn empty(&self, shape: impl Into<Shape>) -> CubeTensor {
        let shape = shape.into();
        let handle = self.client.empty(4 * shape.num_elements().max(1));
        CubeTensor::new_contiguous(
            self.client.clone(),
            self.device.clone(),
            shape,
            handle,
            DType::F32,
        )
    }

    /// Uploads numbers for a kernel to read.
    pub fn upload(&self, numbers: &[u32]) -> Handle {
        self.client.create_from_slice(bytemuck::cast_slice(numbers))
    }

    /// What stands where a kernel's optional operand is not: enough for a binding to be valid.
    pub fn nothing(&self) -> Handle {
        self.client.empty(16)
    }

    /// Queues a kernel on `buffers`, which are its bindings in order, and `params`, its uniform
    /// binding after them; does not wait. Floats go as their bits.
    pub fn launch(
        &self,
        spec: Spec,
        workgroups: Workgroups,
        buffers: impl IntoIterator<Item = BufferBinding>,
        params: &[u32],
    ) {
        // Uniform buffers are read in units of 16 bytes. The device keeps one for each distinct
        // content: shapes are static, so a step uploads few.
        let mut words = params.to_vec();
        words.resize(params.len().next_multiple_of(4), 0);
        let words = words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w[1]) << 32).collect();
        let arguments = KernelArguments::new()
            .with_buffers(buffers.into_iter().collect())
            .with_info(MetadataBindingInfo::custom(words));
        let dim = CubeDim::new_1d(spec.workgroup);
        let kernel = SourceKernel::new(Text(spec), dim);
        self.client.launch(Box::new(kernel), workgroups.count(), arguments);
    }
}
