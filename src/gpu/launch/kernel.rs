//! Launches the kernels of `shaders/`.
//!
//! A kernel is WGSL text behind a generated header. Both the text and the key of the cached pipeline
//! come from one value, the [`Spec`], so they cannot differ.

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use burn::tensor::DType;
use burn_cubecl::cubecl::ir::attributes::BufferIOAttr;
use burn_cubecl::cubecl::prelude::KernelId;
use burn_cubecl::cubecl::server::{KernelArguments, MetadataBindingInfo};
use burn_cubecl::cubecl::{CubeDim, ExecutionMode};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::template::{KernelSource, SourceKernel, SourceTemplate};
use burn_cubecl::tensor::CubeTensor;

use super::observer::name_launch;
pub(crate) use super::params::params;
pub use super::params::{Param, ParamType};
pub use super::queue::{Queue, Workgroups};
use super::unroll::{repeat, unroll};
use crate::config::Matrices;

/// A file of `shaders/` and the files that it needs.
#[derive(Debug)]
pub struct Shader {
    /// The file's name without its extension, or another name that no other shader has.
    pub name: &'static str,
    pub parts: &'static [&'static str],
    /// The type of its parameters, `Params` in the source.
    pub params: ParamType,
}

// Only the name counts: each launch looks up its pipeline and should not hash kilobytes of text.
impl PartialEq for Shader {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Shader {}

impl Hash for Shader {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

macro_rules! wgsl {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name, ".wgsl"))
    };
}
pub(crate) use wgsl;

/// A [`Shader`] by its name, the type of its parameters and the names of its files.
macro_rules! shader {
    ($name:literal, $params:ty, [$($file:literal),+]) => {
        $crate::gpu::kernel::Shader {
            name: $name,
            parts: &[$($crate::gpu::kernel::wgsl!($file)),+],
            params: <$params as $crate::gpu::kernel::Param>::TYPE,
        }
    };
}
pub(crate) use shader;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Constant {
    Count(u32),
    Flag(bool),
}

/// The type of a tensor's elements in memory. Kernels compute in f32 and round what they store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    F32,
    /// Needs `shader-f16`.
    F16,
}

impl Element {
    pub const ALL: [Self; 2] = [Element::F32, Element::F16];

    pub fn of(tensor: &CubeTensor) -> Self {
        match tensor.dtype {
            DType::F16 => Element::F16,
            _ => Element::F32,
        }
    }

    /// Returns the type's name in WGSL.
    fn wgsl(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
        }
    }
}

/// One variant of a kernel: all values that its source depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    pub shader: &'static Shader,
    /// Invocations in a workgroup, `WG` in the source.
    pub workgroup: u32,
    /// Elements per memory access, 4 or 1.
    pub pack: u32,
    /// The source's name and the type of the elements of each buffer that is not always f32.
    stored: Vec<(&'static str, Element)>,
    /// True if the source makes what overflows f16 infinite, instead of the driver.
    overflows: bool,
    pub matrices: Option<Matrices>,
    /// The invocations of each subgroup, `SUBGROUP` in the source, where the device has one size.
    pub subgroup: Option<u32>,
    constants: Vec<(&'static str, Constant)>,
}

impl Spec {
    /// Returns a variant with `workgroup` invocations, one element per access, and no other constants.
    pub fn new(shader: &'static Shader, workgroup: u32) -> Self {
        Self {
            shader,
            workgroup,
            pack: 1,
            stored: Vec::new(),
            overflows: false,
            matrices: None,
            subgroup: None,
            constants: Vec::new(),
        }
    }

    /// Sets the number of elements per memory access, see [`pack_of`].
    pub fn packed(mut self, width: u32) -> Self {
        self.pack = width;
        self
    }

    /// Names the type of a pack of elements in memory, `alias name = vec4<f16>`. The source loads
    /// with `pack(x[i])` and stores with `to_name(value)`.
    pub fn storing(mut self, name: &'static str, element: Element) -> Self {
        self.stored.push((name, element));
        self
    }

    /// Sets whether the source makes values beyond the range of f16 infinite where it stores them, for
    /// drivers that may store the largest finite value: see [`DriverTraits`](crate::gpu::DriverTraits).
    pub fn overflowing(mut self, overflows: bool) -> Self {
        self.overflows = overflows;
        self
    }

    /// Adds the cooperative matrices of `matrices8.wgsl` or `matrices16.wgsl`, which belong to subgroups
    /// of this many invocations, or of as many as the driver chooses.
    pub fn multiplying(mut self, matrices: Matrices, subgroup: Option<u32>) -> Self {
        self.matrices = Some(matrices);
        self.subgroup = subgroup;
        self
    }

    /// Adds a constant to the header. `TENSORS` is the number of tensors of a launch (see `unroll.rs`).
    pub fn with(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, Constant::Count(value)));
        self
    }

    /// Adds a constant that is true or false.
    pub fn flag(mut self, name: &'static str, value: bool) -> Self {
        self.constants.push((name, Constant::Flag(value)));
        self
    }

    /// Returns a name that no other variant has: the shader and the values of the header, with dots between.
    pub fn name(&self) -> String {
        let mut parts = vec![self.shader.name.to_string(), format!("wg_{}", self.workgroup)];
        if self.pack != 1 {
            parts.push(format!("pack_{}", self.pack));
        }
        parts.extend(self.matrices.map(|matrices| format!("matrices_{}", matrices.side())));
        parts.extend(self.subgroup.map(|invocations| format!("subgroup_{invocations}")));
        parts.extend(self.overflows.then(|| "overflows".to_string()));
        parts
            .extend(self.stored.iter().map(|(name, element)| format!("{name}_{}", element.wgsl())));
        parts.extend(self.constants.iter().filter_map(|&(name, value)| match value {
            Constant::Count(value) => Some(format!("{name}_{value}").to_lowercase()),
            Constant::Flag(value) => value.then(|| name.to_lowercase()),
        }));
        parts.join(".")
    }

    /// Returns the name for people: of the shader, and of the flags that are set.
    fn title(&self) -> String {
        let flags = self.constants.iter().filter(|(_, value)| *value == Constant::Flag(true));
        let flags = flags.map(|(name, _)| format!(" {}", name.to_lowercase()));
        [self.shader.name.to_string()].into_iter().chain(flags).collect()
    }

    /// Returns the WGSL text: the header, then the files with their marked parts and loops expanded.
    pub fn source(&self) -> String {
        let mut text = format!("// {}\n", self.shader.name);
        let half = self.stored.iter().any(|&(_, element)| element == Element::F16);
        if half || self.matrices.is_some() {
            text.push_str("enable f16;\n");
        }
        if self.matrices.is_some() {
            text.push_str("enable wgpu_cooperative_matrix;\n");
        }
        // Browsers need this line, and wgpu's compiler refuses it.
        let shuffles = self.shader.parts.iter().any(|part| part.contains("subgroupShuffle"));
        if cfg!(target_arch = "wasm32") && shuffles {
            text.push_str("enable subgroups;\n");
        }
        let _ = writeln!(text, "const WG = {}u;", self.workgroup);
        for &(name, element) in &self.stored {
            let scalar = element.wgsl();
            let _ = match self.pack {
                1 => writeln!(text, "alias {name} = {scalar};"),
                pack => writeln!(text, "alias {name} = vec{pack}<{scalar}>;"),
            };
        }
        // Counts can be the bounds of loops.
        let mut counts: Vec<(&str, u32)> = Vec::new();
        for &(name, value) in &self.constants {
            let _ = match value {
                Constant::Count(value) => {
                    counts.push((name, value));
                    writeln!(text, "const {name} = {value}u;")
                }
                Constant::Flag(value) => writeln!(text, "const {name} = {value};"),
            };
        }
        text.extend(self.stored.iter().map(|&(name, element)| self.conversion(name, element)));
        text.push_str(if self.pack == 4 { wgsl!("pack4") } else { wgsl!("pack1") });
        if let Some(matrices) = self.matrices {
            text.push_str(match matrices {
                Matrices::Eight => wgsl!("matrices8"),
                Matrices::Sixteen => wgsl!("matrices16"),
            });
            if let Some(subgroup) = self.subgroup {
                let _ = writeln!(text, "const SUBGROUP = {subgroup}u;");
                text.push_str(wgsl!("subgroups_of_one_size"));
            } else {
                text.push_str(wgsl!("subgroups_of_any_size"));
            }
        }
        let tensors = counts.iter().find(|&&(name, _)| name == "TENSORS");
        let tensors = tensors.map_or(1, |&(_, count)| count);
        for part in self.shader.parts {
            text.push_str(&unroll(&repeat(part, tensors), &counts));
        }
        text
    }

    /// Returns the function that converts to the type `name`, if the files call it.
    fn conversion(&self, name: &str, element: Element) -> String {
        let head = format!("to_{name}(");
        if !self.shader.parts.iter().any(|part| part.contains(&head)) {
            return String::new();
        }
        let head = format!("fn {head}value: pack) -> {name}");
        if self.overflows && element == Element::F16 {
            // 65520 is the first number that rounds to infinity. Twice the largest finite value is infinite.
            return format!(
                "{head} {{\n    let rounded = {name}(value);\n    \
                 return select(rounded, rounded + rounded, abs(value) >= pack(65520.0));\n}}\n"
            );
        }
        format!("{head} {{\n    return {name}(value);\n}}\n")
    }
}

/// Returns the elements per memory access: 4 if all of these row lengths are multiples of 4, else 1.
pub fn pack_of(row_lengths: &[usize]) -> u32 {
    if row_lengths.iter().all(|length| length.is_multiple_of(4)) { 4 } else { 1 }
}

/// The source of a kernel. The keys of its pipeline share it, because each launch makes several.
struct SpecSource(Arc<Spec>);

impl KernelSource for SpecSource {
    fn source(&self) -> SourceTemplate {
        SourceTemplate::new(self.0.source())
    }

    fn id(&self) -> KernelId {
        // Unchecked: the kernels guard their own loops, and drivers would not unroll loops with a bound.
        KernelId::new::<Self>()
            .info(self.0.clone())
            .cube_dim(CubeDim::new_1d(self.0.workgroup).0)
            .mode(ExecutionMode::Unchecked)
    }

    fn lang(&self) -> &'static str {
        "wgsl"
    }
}

impl Queue {
    /// Queues a kernel on `buffers`, its bindings in order, and `params`, the uniform binding after
    /// them. Binds tensors in row-major order, and a placeholder for an operand that is `None`. A
    /// kernel writes to no tensor in another order: it would write to a copy. Does not wait.
    pub fn launch<P: Param>(
        &self,
        spec: Spec,
        workgroups: Workgroups,
        buffers: &[Option<&CubeTensor>],
        params: &P,
    ) {
        assert_eq!(P::TYPE, spec.shader.params, "the parameters of {}", spec.shader.name);
        let spec = spec.overflowing(self.driver.clamps_float16);
        // Uniform buffers have units of 16 bytes. The device caches them by content: a step uploads few.
        let mut words = Vec::new();
        params.write(&mut words);
        words.resize(words.len().next_multiple_of(4), 0);
        let words = words.chunks(2).map(|w| u64::from(w[0]) | u64::from(w[1]) << 32).collect();
        let mut arguments = KernelArguments::new().with_info(MetadataBindingInfo::custom(words));
        // Each has a placeholder of its own, since browsers refuse a range that a launch binds twice.
        let mut left_out = 0;
        for buffer in buffers {
            arguments = match buffer {
                Some(tensor) => {
                    let handle = into_contiguous((*tensor).clone()).handle;
                    arguments.with_buffer_io(handle.binding(), BufferIOAttr::ReadWrite)
                }
                None => {
                    let handle = self.placeholder(left_out);
                    left_out += 1;
                    arguments.with_buffer_io(handle.binding(), BufferIOAttr::Dead)
                }
            };
        }
        name_launch(|| format!("{} {workgroups}", spec.title()));
        let dim = CubeDim::new_1d(spec.workgroup);
        let kernel = SourceKernel::new(SpecSource(Arc::new(spec)), dim);
        self.client.launch(Box::new(kernel), workgroups.count(), arguments);
    }
}
