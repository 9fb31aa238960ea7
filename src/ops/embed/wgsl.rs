use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{Buckets, EmbedInputs, PositionGradientInputs, TokenGradientInputs};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::kernels::owned;
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, WgslKernels};

params! {
    struct ForwardParams {
        packs: usize,
        width: usize,
        period: usize,
        first: usize,
        rows: usize,
    }

    struct TokensParams {
        buckets: usize,
        width: usize,
        starts: usize,
        shard_rows: usize,
    }

    struct PositionsParams {
        packs: usize,
        used: usize,
        total: usize,
    }
}

static FORWARD: Shader = shader!("embed_forward", ForwardParams, ["embed_forward"]);
static TOKENS: Shader = shader!("embed_backward_tokens", TokensParams, ["embed_backward_tokens"]);
static POSITIONS: Shader =
    shader!("embed_backward_positions", PositionsParams, ["embed_backward_positions"]);

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
                let spec = |base| forward_spec(width, [weight, base, activation]);
                specs.extend([weight, activation].map(spec));
            }
        }
    }
    specs
}

pub(super) fn forward(kernels: &WgslKernels, inputs: EmbedInputs<Gpu>) -> CubeTensor {
    let EmbedInputs { shard, base, tokens, first, period } = inputs;
    let [rows, c] = shard.shape().dims();
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

pub(super) fn by_token(kernels: &WgslKernels, inputs: TokenGradientInputs<Gpu>) -> CubeTensor {
    let TokenGradientInputs { dy, into, tokens, shard } = inputs;
    let dshard = owned(into);
    let Some(Buckets { count, index, starts, places }) = Buckets::new(&tokens, &shard) else {
        return dshard;
    };
    let [_, c] = dy.shape().dims();
    let index = kernels.queue.upload(&index);
    let spec = spec(&TOKENS, c, Element::of(&dy));
    let width = c / spec.pack as usize;
    kernels.queue.launch(
        spec,
        Workgroups::cover(count * width, ELEMENTWISE),
        &[&dy, &index, &dshard].map(Some),
        &TokensParams { buckets: count, width, starts, shard_rows: places },
    );
    dshard
}

pub(super) fn by_position(
    kernels: &WgslKernels,
    inputs: PositionGradientInputs<Gpu>,
) -> CubeTensor {
    let PositionGradientInputs { dy, time, positions } = inputs;
    let [n, c] = dy.shape().dims();
    let sums = kernels.queue.empty([positions, c]);
    let spec = spec(&POSITIONS, c, Element::of(&dy));
    let width = c / spec.pack as usize;
    kernels.queue.launch(
        spec,
        Workgroups::cover(positions * width, ELEMENTWISE),
        &[Some(&dy), Some(&sums)],
        &PositionsParams { packs: positions * width, used: time * width, total: n * width },
    );
    sums
}
