//! Attention by the kernels of `shaders/`.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionShape, pairs_at_a_time};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::dropout::wgsl::mask;
use crate::ops::shared::kernels::contiguous;
use crate::ops::shared::wgsl::{Tier, WgslKernels};

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
        }
    };
}

/// For software adapters: an invocation owns rows and reads those of the other side by shuffles.
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
    fn spec(self, tier: Tier) -> Spec {
        let pack = pack_of(&[self.size]);
        let spec = match tier {
            Tier::Wide => self.blocked(),
            Tier::Narrow(lanes) => {
                Spec::new(&SHUFFLED[self.pass as usize], lanes).with("ROWS", SHUFFLED_ROWS)
            }
        };
        spec.packed(pack)
            .storing("activation", self.activation)
            .with("SIZE", self.size as u32 / pack)
            .with("DROPOUT", self.dropout)
    }

    /// A grid of 8 x 16 invocations, of 16 x 16 where each would have more than 64 sums.
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
}

/// Rows per invocation on software adapters, where loads are expensive and registers are memory.
/// Four rows are a quarter faster on long sequences but take twice as long to compile, which is
/// most of a first step there.
const SHUFFLED_ROWS: u32 = 2;

/// The positions that a workgroup owns on GPUs, ROWS in attention_grid.wgsl.
const ROWS: u32 = 64;

/// The positions of the other side that it takes at a time, COLUMNS in attention_grid.wgsl.
const COLUMNS: u32 = 32;

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
        let mut add = |activation, size, dropout| {
            specs.push(Variant { pass, activation, size, dropout }.spec(tier));
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
    let spec = variant.spec(kernels.tier);
    let rows = match kernels.tier {
        Tier::Wide => ROWS,
        Tier::Narrow(lanes) => lanes * SHUFFLED_ROWS,
    };
    let blocks = time.div_ceil(rows as usize);
    let pairs = batch * heads;
    let at_a_time = pairs_at_a_time(time, size);
    let mask = dropout.as_ref().map_or([0; 5], mask);
    for first in (0..pairs).step_by(at_a_time) {
        let count = at_a_time.min(pairs - first);
        let scale = shape.scale(width).to_bits();
        let mut params =
            vec![time as u32, heads as u32, scale, blocks as u32, first as u32, 0, 0, 0];
        params.extend(mask);
        kernels.queue.launch(
            spec.clone(),
            Workgroups::Plane(blocks, count),
            buffers.iter().map(|tensor| tensor.handle.clone().binding()),
            &params,
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
