//! Attention by the kernels of `shaders/`.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionBackwardInputs, AttentionInputs, AttentionShape, scale};
use crate::config::Matrices;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::dropout::wgsl::Mask;
use crate::ops::shared::wgsl::{Gpu, Tier, WgslKernels};

params! {
    struct Params {
        time: usize,
        heads: usize,
        kv_heads: usize,
        scale: f32,
        blocks: usize,
        first_pair: usize,
        mask: Mask,
    }
}

/// The shader of a pass: files that every pass needs, further ones, and the kernel.
macro_rules! pass {
    ($name:literal $(, $part:literal)*) => {
        shader!($name, Params, ["dropout_mask", "attention_rows", $($part,)* $name])
    };
}

/// For software adapters: an invocation owns rows and reads the rows of the other side by shuffles.
static SHUFFLED: [Shader; 3] = [
    pass!("attention_forward"),
    pass!("attention_backward_queries"),
    pass!("attention_backward_keys"),
];
/// For GPUs: products in f32, in blocks that invocations hold in registers.
static BLOCKED: [Shader; 3] = [
    pass!("attention_blocked_forward", "attention_heads", "attention_blocked"),
    pass!("attention_blocked_backward_queries", "attention_heads", "attention_blocked"),
    pass!("attention_blocked_backward_keys", "attention_heads", "attention_blocked"),
];
/// For GPUs: products of f16 by cooperative matrices.
static COOPERATIVE: [Shader; 3] = [
    pass!("attention_cooperative_forward", "attention_heads", "attention_cooperative"),
    pass!("attention_cooperative_backward_queries", "attention_heads", "attention_cooperative"),
    pass!("attention_cooperative_backward_keys", "attention_heads", "attention_cooperative"),
];

#[derive(Clone, Copy)]
enum AttentionTiling {
    /// In workgroups of one subgroup, of this many invocations.
    Shuffled(u32),
    Blocked,
    /// In subgroups of one size, or of any.
    Cooperative(Matrices, Option<u32>),
}

impl AttentionTiling {
    fn of(kernels: &WgslKernels, activation: Element) -> Self {
        let queue = &kernels.queue;
        match (kernels.matrices, kernels.tier) {
            (Some(matrices), _)
                if activation == Element::F16 && queue.workgroup_memory() >= COOPERATIVE_MEMORY =>
            {
                AttentionTiling::Cooperative(matrices, queue.subgroup())
            }
            (_, Tier::Narrow(lanes)) => AttentionTiling::Shuffled(lanes),
            (_, Tier::Wide) => AttentionTiling::Blocked,
        }
    }

    /// Returns the positions that a workgroup owns.
    fn rows(self) -> u32 {
        match self {
            AttentionTiling::Shuffled(lanes) => lanes * SHUFFLED_ROWS,
            AttentionTiling::Blocked | AttentionTiling::Cooperative(..) => ROWS,
        }
    }
}

/// A pass, the index of its shader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttentionPass {
    Forward,
    Queries,
    Keys,
}

/// Returns the kernel of a pass over heads of `size` elements.
fn spec(
    tiling: AttentionTiling,
    pass: AttentionPass,
    activation: Element,
    size: usize,
    dropout: bool,
) -> Spec {
    let pack = pack_of(&[size]);
    let spec = match tiling {
        AttentionTiling::Shuffled(lanes) => {
            Spec::new(&SHUFFLED[pass as usize], lanes).with("ROWS", SHUFFLED_ROWS)
        }
        AttentionTiling::Blocked => {
            let vectors = size.div_ceil(4) as u32;
            let sums = if pass == AttentionPass::Keys { 2 } else { 1 };
            // No invocation has more than 64 sums.
            let lanes = if sums * vectors.div_ceil(8) * 16 <= 64 { 8 } else { 16 };
            Spec::new(&BLOCKED[pass as usize], 16 * lanes)
                .with("LANES", lanes)
                .with("PER", COLUMNS / lanes)
                .with("BLOCKS", vectors.div_ceil(lanes))
                .with("LOADS", (ROWS + COLUMNS) * 8 / (16 * lanes))
                // 512 vectors of four: the half of workgroup memory that the factors leave.
                .with("STAGED_ROWS", if vectors <= 16 { COLUMNS } else { COLUMNS / 2 })
        }
        AttentionTiling::Cooperative(matrices, subgroup) => {
            cooperative(matrices, subgroup, pass, size as u32)
        }
    };
    spec.packed(pack)
        .storing("activation", activation)
        .with("SIZE", size as u32 / pack)
        .flag("DROPOUT", dropout)
}

/// Returns the kernel of a pass on cooperative matrices.
fn cooperative(matrices: Matrices, subgroup: Option<u32>, pass: AttentionPass, size: u32) -> Spec {
    let side = matrices.side();
    let head = size.div_ceil(side);
    // A strip of the 64 rows has at least one invocation for each row. Where the driver chooses the size of
    // subgroups, it is 64 at most.
    let subgroup = subgroup.filter(|lanes| [8, 16, 32, 64].contains(lanes) && *lanes >= side);
    let lanes = subgroup.unwrap_or(64);
    let strip = lanes.min(16);
    // The parts that are staged as rows, and whether one is staged as columns too, in halves. The pass for
    // keys could use columns of both its parts, which never fit.
    let parts = if pass == AttentionPass::Forward { 1 } else { 2 };
    let width = head * side;
    let halves = parts * COLUMNS * (width + 8) + width * (COLUMNS + 8);
    let turned = 2 * halves + SCORE_MEMORY <= COOPERATIVE_MEMORY as u32;
    Spec::new(&COOPERATIVE[pass as usize], ROWS / strip * lanes)
        .multiplying(matrices, subgroup)
        .with("STRIP", strip)
        .with("PER", COLUMNS / 4 * strip / lanes)
        .with("ROW_MATRICES", strip / side)
        .with("COLUMN_MATRICES", COLUMNS / side)
        .with("HEAD_MATRICES", head)
        .with("CHUNKS", width.div_ceil(COLUMNS))
        .with("PARTS", if turned { parts } else { 2 })
        .flag("TURNED", turned)
}

/// Rows per invocation on software adapters, where loads are expensive and registers are memory. Four
/// are a quarter faster on long sequences, but take twice as long to compile: most of a first step.
const SHUFFLED_ROWS: u32 = 2;

/// A workgroup owns ROWS queries (or keys), and loops over the keys (or queries), COLUMNS at a time.
const ROWS: u32 = 64;
const COLUMNS: u32 = 32;

/// The workgroup memory of the largest head on cooperative matrices, in bytes.
const COOPERATIVE_MEMORY: usize = 32_768;

/// Its part for scores, their factors and a little more, in bytes.
const SCORE_MEMORY: u32 = 4 * ROWS * (COLUMNS + 4) + 2 * ROWS * (COLUMNS + 8) + 256;

const PASSES: [AttentionPass; 3] =
    [AttentionPass::Forward, AttentionPass::Queries, AttentionPass::Keys];

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let tiling = match tier {
        Tier::Narrow(lanes) => AttentionTiling::Shuffled(lanes),
        Tier::Wide => AttentionTiling::Blocked,
    };
    let mut specs = Vec::new();
    for pass in PASSES {
        for size in [1, 13, 16, 32, 48, 64, 80, 96, 128] {
            specs.extend([false, true].map(|drop| spec(tiling, pass, Element::F32, size, drop)));
        }
        specs.extend([13, 64].map(|size| spec(tiling, pass, Element::F16, size, true)));
    }
    specs
}

pub(in crate::ops) fn cooperative_variants() -> Vec<Spec> {
    let mut specs = Vec::new();
    for matrices in [Matrices::Eight, Matrices::Sixteen] {
        let of_one_size = [(1, 8), (64, 32), (80, 32)].map(|(size, lanes)| (size, Some(lanes)));
        for (size, subgroup) in
            of_one_size.into_iter().chain([13, 64, 128].map(|size| (size, None)))
        {
            let tiling = AttentionTiling::Cooperative(matrices, subgroup);
            for pass in PASSES {
                let variant = |dropout| spec(tiling, pass, Element::F16, size, dropout);
                specs.extend([false, true].map(variant));
            }
        }
    }
    specs
}

fn launch(
    kernels: &WgslKernels,
    pass: AttentionPass,
    shape: AttentionShape,
    buffers: &[&CubeTensor],
) {
    let AttentionShape { time, heads, kv_heads, dropout, .. } = shape;
    // The first buffer of each pass is qkv.
    let size = shape.size(buffers[0].shape()[1]);
    let activation = Element::of(buffers[0]);
    let tiling = AttentionTiling::of(kernels, activation);
    let spec = spec(tiling, pass, activation, size, dropout.is_some());
    let scale = scale(size);
    let blocks = time.div_ceil(tiling.rows() as usize);
    let buffers: Vec<_> = buffers.iter().copied().map(Some).collect();
    // The pass for keys has a workgroup for each block of a head of keys.
    let pass_heads = if pass == AttentionPass::Keys { kv_heads } else { heads };
    let operations = kernels.queue.driver.operations;
    for (first_pair, pairs) in shape.dispatches(size, pass_heads, operations) {
        let mask = dropout.as_ref().map(Mask::from).unwrap_or_default();
        let params = Params { time, heads, kv_heads, scale, blocks, first_pair, mask };
        kernels.queue.launch(spec.clone(), Workgroups::Plane(blocks, pairs), &buffers, &params);
    }
}

pub(super) fn forward(
    kernels: &WgslKernels,
    inputs: AttentionInputs<Gpu>,
) -> (CubeTensor, CubeTensor) {
    let AttentionInputs { qkv, shape } = inputs;
    let [n, width] = qkv.shape().dims();
    let out = kernels.queue.empty_of([n, shape.heads * shape.size(width)], qkv.dtype);
    let log_sum_exp = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    launch(kernels, AttentionPass::Forward, shape, &[&qkv, &out, &log_sum_exp]);
    (out, log_sum_exp)
}

pub(super) fn backward(kernels: &WgslKernels, inputs: AttentionBackwardInputs<Gpu>) -> CubeTensor {
    let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, shape } = inputs;
    let delta = kernels.queue.empty(log_sum_exp.shape());
    let dqkv = kernels.queue.empty_of(qkv.shape(), qkv.dtype);
    let queries = [&qkv, &out, &dout, &log_sum_exp, &delta, &dqkv];
    launch(kernels, AttentionPass::Queries, shape, &queries);
    launch(kernels, AttentionPass::Keys, shape, &[&qkv, &dout, &log_sum_exp, &delta, &dqkv]);
    dqkv
}
