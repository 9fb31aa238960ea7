//! Attention by the kernels of `shaders/`.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionShape, pairs_at_a_time};
use crate::config::Matrices;
use crate::gpu::kernel::{Element, Param, Shader, Spec, Workgroups, pack_of, params, wgsl};
use crate::ops::dropout::wgsl::Mask;
use crate::ops::shared::kernels::contiguous;
use crate::ops::shared::wgsl::{Tier, WgslKernels};

params! {
    struct Params {
        time: usize,
        heads: usize,
        scale: f32,
        blocks: usize,
        first_pair: usize,
        mask: Mask,
    }
}

/// A shader of the files that every form needs, further ones, and the kernel.
macro_rules! shader {
    ($name:literal $(, $part:literal)*) => {
        Shader {
            name: $name,
            parts: &[
                wgsl!("dropout_mask"),
                wgsl!("attention_rows"),
                $(wgsl!($part),)*
                wgsl!($name),
            ],
            params: Params::TYPE,
        }
    };
}

/// For software adapters: an invocation owns rows and reads the rows of the other side by shuffles.
static SHUFFLED: [Shader; 3] = [
    shader!("attention_forward"),
    shader!("attention_backward_queries"),
    shader!("attention_backward_keys"),
];
/// For GPUs: products in f32, in blocks that invocations hold in registers.
static BLOCKED: [Shader; 3] = [
    shader!("attention_blocked_forward", "attention_heads", "attention_grid", "attention_blocked"),
    shader!(
        "attention_blocked_backward_queries",
        "attention_heads",
        "attention_grid",
        "attention_delta",
        "attention_blocked"
    ),
    shader!(
        "attention_blocked_backward_keys",
        "attention_heads",
        "attention_grid",
        "attention_blocked"
    ),
];

/// For GPUs: products of f16 by cooperative matrices.
static COOPERATIVE: [Shader; 3] = [
    shader!(
        "attention_cooperative_forward",
        "attention_heads",
        "attention_grid",
        "attention_cooperative"
    ),
    shader!(
        "attention_cooperative_backward_queries",
        "attention_heads",
        "attention_grid",
        "attention_delta",
        "attention_cooperative"
    ),
    shader!(
        "attention_cooperative_backward_keys",
        "attention_heads",
        "attention_grid",
        "attention_cooperative"
    ),
];

/// How the kernels multiply.
#[derive(Clone, Copy)]
enum Form {
    /// In workgroups of one subgroup, of this many invocations.
    Shuffled(u32),
    Blocked,
    /// In a grid of this many by 16 invocations.
    Cooperative(Matrices, u32),
}

impl Form {
    fn of(kernels: &WgslKernels, activation: Element) -> Self {
        let queue = &kernels.queue;
        match (kernels.matrices, kernels.tier) {
            (Some(matrices), _)
                if activation == Element::F16 && queue.workgroup_memory() >= COOPERATIVE_MEMORY =>
            {
                // Four subgroups share the rows. Where the driver chooses their size, it is 64 at
                // most.
                let lanes = queue.subgroup().unwrap_or(64) / 4;
                Form::Cooperative(matrices, if lanes <= 8 { 8 } else { 16 })
            }
            (_, Tier::Narrow(lanes)) => Form::Shuffled(lanes),
            (_, Tier::Wide) => Form::Blocked,
        }
    }

    /// Returns the positions that a workgroup owns.
    fn rows(self) -> u32 {
        match self {
            Form::Shuffled(lanes) => lanes * SHUFFLED_ROWS,
            Form::Blocked | Form::Cooperative(..) => 64,
        }
    }
}

/// A pass, the index of its shader in each form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Queries,
    Keys,
}

/// The part of a launch that decides the kernel's source.
#[derive(Clone, Copy)]
struct Variant {
    pass: Pass,
    /// The type of activations in memory.
    activation: Element,
    /// The size of a head.
    size: usize,
    dropout: bool,
}

impl Variant {
    fn spec(self, form: Form) -> Spec {
        let pack = pack_of(&[self.size]);
        let spec = match form {
            Form::Shuffled(lanes) => {
                Spec::new(&SHUFFLED[self.pass as usize], lanes).with("ROWS", SHUFFLED_ROWS)
            }
            Form::Blocked => self.blocked(),
            Form::Cooperative(matrices, lanes) => self.cooperative(matrices, lanes),
        };
        spec.packed(pack)
            .storing("activation", self.activation)
            .with("SIZE", self.size as u32 / pack)
            .with("DROPOUT", self.dropout)
    }

    /// Returns the variant on a grid of 8 x 16 invocations, or 16 x 16 where each would have more than 64 sums.
    fn blocked(self) -> Spec {
        let vectors = self.size.div_ceil(4) as u32;
        let sums = if self.pass == Pass::Keys { 2 } else { 1 };
        let lanes = if sums * vectors.div_ceil(8) * 16 <= 64 { 8 } else { 16 };
        Spec::new(&BLOCKED[self.pass as usize], 16 * lanes)
            .with("LANES", lanes)
            .with("PER", COLUMNS / lanes)
            .with("BLOCKS", vectors.div_ceil(lanes))
            // 512 vectors of four: the half of workgroup memory that the factors leave.
            .with("STAGED_ROWS", if vectors <= 16 { COLUMNS } else { COLUMNS / 2 })
    }

    fn cooperative(self, matrices: Matrices, lanes: u32) -> Spec {
        let side = matrices.side();
        let head = (self.size as u32).div_ceil(side);
        Spec::new(&COOPERATIVE[self.pass as usize], 16 * lanes)
            .multiplying(matrices)
            .with("LANES", lanes)
            .with("PER", COLUMNS / lanes)
            .with("ROW_MATRICES", 16 / side)
            .with("COLUMN_MATRICES", COLUMNS / side)
            .with("HEAD_MATRICES", head)
            .with("CHUNKS", (head * side).div_ceil(COLUMNS))
    }
}

/// Rows per invocation on software adapters, where loads are expensive and registers are memory.
/// Four rows are a quarter faster on long sequences but take twice as long to compile, which is
/// most of a first step there.
const SHUFFLED_ROWS: u32 = 2;

/// The positions of the other side that a workgroup takes at a time on GPUs, COLUMNS in
/// attention_grid.wgsl.
const COLUMNS: u32 = 32;

/// The workgroup memory of the largest head on cooperative matrices, in bytes.
const COOPERATIVE_MEMORY: usize = 32_768;

const PASSES: [Pass; 3] = [Pass::Forward, Pass::Queries, Pass::Keys];

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let form = match tier {
        Tier::Narrow(lanes) => Form::Shuffled(lanes),
        Tier::Wide => Form::Blocked,
    };
    let mut specs = Vec::new();
    for pass in PASSES {
        let mut add = |activation, size, dropout| {
            specs.push(Variant { pass, activation, size, dropout }.spec(form));
        };
        for size in [1, 13, 16, 32, 48, 64, 80, 96, 128] {
            for dropout in [false, true] {
                add(Element::F32, size, dropout);
            }
        }
        for size in [13, 64] {
            add(Element::F16, size, true);
        }
    }
    specs
}

pub(in crate::ops) fn cooperative_variants() -> Vec<Spec> {
    let mut specs = Vec::new();
    for matrices in [Matrices::Eight, Matrices::Sixteen] {
        for (size, lanes) in [(1, 8), (13, 16), (64, 8), (64, 16), (80, 8), (128, 16)] {
            for pass in PASSES {
                for dropout in [false, true] {
                    let variant = Variant { pass, activation: Element::F16, size, dropout };
                    specs.push(variant.spec(Form::Cooperative(matrices, lanes)));
                }
            }
        }
    }
    specs
}

fn launch(
    kernels: &WgslKernels,
    pass: Pass,
    shape: &AttentionShape,
    width: usize,
    buffers: &[&CubeTensor],
) {
    let AttentionShape { batch, time, heads, dropout } = *shape;
    let size = width / heads;
    // The first buffer of each pass is qkv.
    let activation = Element::of(buffers[0]);
    let variant = Variant { pass, activation, size, dropout: dropout.is_some() };
    let form = Form::of(kernels, activation);
    let spec = variant.spec(form);
    let blocks = time.div_ceil(form.rows() as usize);
    let pairs = batch * heads;
    let at_a_time = pairs_at_a_time(time, size);
    let buffers: Vec<_> = buffers.iter().copied().map(Some).collect();
    let mask = dropout.as_ref().map(Mask::from).unwrap_or_default();
    let scale = shape.scale(width);
    for first_pair in (0..pairs).step_by(at_a_time) {
        let count = at_a_time.min(pairs - first_pair);
        let mask = mask.clone();
        kernels.queue.launch(
            spec.clone(),
            Workgroups::Plane(blocks, count),
            &buffers,
            &Params { time, heads, scale, blocks, first_pair, mask },
        );
    }
}

pub(super) fn forward(
    kernels: &WgslKernels,
    qkv: CubeTensor,
    shape: AttentionShape,
) -> (CubeTensor, CubeTensor) {
    let [n, three_c] = qkv.shape().dims();
    let qkv = contiguous(qkv);
    let out = kernels.queue.empty_of([n, three_c / 3], qkv.dtype);
    let log_sum_exp = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    launch(kernels, Pass::Forward, &shape, three_c / 3, &[&qkv, &out, &log_sum_exp]);
    (out, log_sum_exp)
}

pub(super) fn backward(
    kernels: &WgslKernels,
    dout: CubeTensor,
    qkv: CubeTensor,
    out: CubeTensor,
    log_sum_exp: CubeTensor,
    shape: AttentionShape,
) -> CubeTensor {
    let [n, three_c] = qkv.shape().dims();
    let [dout, qkv, out, log_sum_exp] = [dout, qkv, out, log_sum_exp].map(contiguous);
    let delta = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    let dqkv = kernels.queue.empty_of([n, three_c], qkv.dtype);
    let width = three_c / 3;
    let queries = [&qkv, &out, &dout, &log_sum_exp, &delta, &dqkv];
    launch(kernels, Pass::Queries, &shape, width, &queries);
    let keys = [&qkv, &dout, &log_sum_exp, &delta, &dqkv];
    launch(kernels, Pass::Keys, &shape, width, &keys);
    dqkv
}
