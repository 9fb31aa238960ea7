//! Attention by the kernels of `shaders/`.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionShape, pairs_at_a_time, tile};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::dropout::wgsl::mask;
use crate::ops::shared::kernels::contiguous;
use crate::ops::shared::wgsl::{Tier, WgslKernels};

/// A shader in two forms, by how a workgroup shares rows: in workgroup memory or by shuffles.
macro_rules! shader {
    ($name:literal) => {
        [
            Shader {
                name: $name,
                parts: &[
                    wgsl!("dropout_mask"),
                    wgsl!("attention_rows"),
                    wgsl!("attention_rows_staged"),
                    wgsl!($name),
                ],
            },
            Shader {
                name: $name,
                parts: &[
                    wgsl!("dropout_mask"),
                    wgsl!("attention_rows"),
                    wgsl!("attention_rows_shuffled"),
                    wgsl!($name),
                ],
            },
        ]
    };
}

static FORWARD: [Shader; 2] = shader!("attention_forward");
static QUERIES: [Shader; 2] = shader!("attention_backward_queries");
static KEYS: [Shader; 2] = shader!("attention_backward_keys");

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Queries,
    Keys,
}

/// `memory` is the workgroup memory in bytes.
fn spec(
    tier: Tier,
    memory: usize,
    pass: Pass,
    activation: Element,
    size: usize,
    dropout: bool,
) -> Spec {
    let pack = pack_of(&[size]);
    let shaders = match pass {
        Pass::Forward => &FORWARD,
        Pass::Queries => &QUERIES,
        Pass::Keys => &KEYS,
    };
    let spec = match tier {
        // One row per invocation: a query and its output take 2 * size registers, the backward
        // passes 3 and 4 * size. More steps at a time would spill registers.
        Tier::Wide => {
            let step = match pass {
                Pass::Forward => 8,
                Pass::Queries => 2,
                Pass::Keys => 1,
            };
            Spec::new(&shaders[0], 64)
                .with("ROWS", 1)
                .with("STEP", step)
                .with("TILE", tile(memory, size))
        }
        Tier::Narrow(lanes) => Spec::new(&shaders[1], lanes)
            .with("ROWS", NARROW_ROWS)
            .with("STEP", lanes)
            .with("TILE", lanes * NARROW_ROWS),
    };
    spec.packed(pack)
        .storing("activation", activation)
        .with("SIZE", size as u32 / pack)
        .with("DROPOUT", dropout)
}

/// Rows per invocation on software adapters, where loads are expensive and registers are memory.
/// Four rows are a quarter faster on long sequences but take twice as long to compile, which is
/// most of a first step there.
const NARROW_ROWS: u32 = 2;

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
        for size in [1, 13, 16, 32, 48, 64, 80, 96, 128] {
            for dropout in [false, true] {
                specs.push(spec(tier, 16_384, pass, Element::F32, size, dropout));
            }
        }
        for size in [13, 64] {
            specs.push(spec(tier, 16_384, pass, Element::F16, size, true));
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
    let memory = kernels.queue.workgroup_memory();
    // The first buffer of each pass is qkv.
    let activation = Element::of(buffers[0]);
    let spec = spec(kernels.tier, memory, pass, activation, size, dropout.is_some());
    let per_workgroup = match kernels.tier {
        Tier::Wide => spec.workgroup(),
        Tier::Narrow(lanes) => lanes * NARROW_ROWS,
    };
    let blocks = time.div_ceil(per_workgroup as usize);
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
