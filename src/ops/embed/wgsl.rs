//! The embedding by the kernels of `shaders/`.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::Buckets;
use crate::gpu::kernel::{Element, Param, Shader, Spec, Workgroups, pack_of, params, wgsl};
use crate::ops::shared::kernels::{contiguous, owned};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

params! {
    struct ForwardParams {
        packs: usize,
        width: usize,
        period: usize,
        first: usize,
        rows: usize,
    }
}

params! {
    struct TokensParams {
        buckets: usize,
        width: usize,
        starts: usize,
        shard_rows: usize,
    }
}

params! {
    struct PositionsParams {
        packs: usize,
        used: usize,
        total: usize,
    }
}

static FORWARD: Shader =
    Shader { name: "embed_forward", parts: &[wgsl!("embed_forward")], params: ForwardParams::TYPE };
static TOKENS: Shader = Shader {
    name: "embed_backward_tokens",
    parts: &[wgsl!("embed_backward_tokens")],
    params: TokensParams::TYPE,
};
static POSITIONS: Shader = Shader {
    name: "embed_backward_positions",
    parts: &[wgsl!("embed_backward_positions")],
    params: PositionsParams::TYPE,
};

fn spec(shader: &'static Shader, width: usize, activation: Element) -> Spec {
    Spec::new(shader, ELEMENTWISE).packed(pack_of(&[width])).storing("activation", activation)
}

fn forward_spec(width: usize, [shard, base, y]: [Element; 3]) -> Spec {
    spec(&FORWARD, width, y).storing("weight", shard).storing("addend", base)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let mut specs = Vec::new();
    for width in [39, 768] {
        for activation in Element::ALL {
            specs.extend([&TOKENS, &POSITIONS].map(|shader| spec(shader, width, activation)));
            // The base is a weight or, for a second shard, an activation.
            for weight in Element::ALL {
                specs.push(forward_spec(width, [weight, weight, activation]));
                if weight != activation {
                    specs.push(forward_spec(width, [weight, activation, activation]));
                }
            }
        }
    }
    specs
}

pub(super) fn forward(
    kernels: &WgslKernels,
    shard: CubeTensor,
    base: CubeTensor,
    tokens: Arc<[u32]>,
    first: usize,
    period: usize,
) -> CubeTensor {
    let [rows, c] = shard.shape().dims();
    let (shard, base) = (contiguous(shard), contiguous(base));
    let y = kernels.queue.empty_of([tokens.len(), c], kernels.activations);
    let ids = kernels.queue.upload(&tokens);
    let spec = forward_spec(c, [&shard, &base, &y].map(Element::of));
    let width = c / spec.pack as usize;
    let packs = tokens.len() * width;
    kernels.queue.launch(
        spec,
        Workgroups::cover(packs, ELEMENTWISE),
        &[&shard, &base, &ids, &y].map(Some),
        &ForwardParams { packs, width, period, first, rows },
    );
    y
}

pub(super) fn backward(
    kernels: &WgslKernels,
    dy: CubeTensor,
    into: CubeTensor,
    tokens: Arc<[u32]>,
    shard: Range<usize>,
    period: usize,
    base_rows: usize,
) -> (CubeTensor, CubeTensor) {
    let [n, c] = dy.shape().dims();
    let dy = contiguous(dy);
    let dshard = owned(into);
    let activation = Element::of(&dy);
    let by_token = spec(&TOKENS, c, activation);
    let width = c / by_token.pack as usize;
    let Buckets { rows, starts, places } = Buckets::new(&tokens, &shard);
    if !places.is_empty() {
        let params = TokensParams {
            buckets: places.len(),
            width,
            starts: rows.len(),
            shard_rows: rows.len() + starts.len(),
        };
        let index = kernels.queue.upload(&[rows, starts, places].concat());
        kernels.queue.launch(
            by_token,
            Workgroups::cover(params.buckets * width, ELEMENTWISE),
            &[&dy, &index, &dshard].map(Some),
            &params,
        );
    }
    // The base of the first shard is the positions, a weight; the base of another is an activation.
    let is_dtype_of_base = shard.start > 0 || dy.dtype == DType::F32;
    if period == n && base_rows == n && is_dtype_of_base {
        return (dshard, dy);
    }
    let dbase = kernels.queue.empty([base_rows, c]);
    kernels.queue.launch(
        spec(&POSITIONS, c, activation),
        Workgroups::cover(base_rows * width, ELEMENTWISE),
        &[Some(&dy), Some(&dbase)],
        &PositionsParams { packs: base_rows * width, used: period * width, total: n * width },
    );
    (dshard, dbase)
}
