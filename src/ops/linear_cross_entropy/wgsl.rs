use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::CrossEntropy;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::wgsl::gemm::{Fusion, GemmLayout, Matrix};
use crate::ops::shared::wgsl::{ELEMENTWISE, Tier, WgslKernels};

params! {
    struct RowsParams {
        rows: usize,
        width: usize,
        vocab: usize,
        first: usize,
        scale: f32,
    }

    struct SumParams {
        elements: usize,
        scale: f32,
    }
}

static ROWS: Shader =
    shader!("linear_cross_entropy_rows", RowsParams, ["reduce", "linear_cross_entropy_rows"]);
static SUM: Shader =
    shader!("linear_cross_entropy_sum", SumParams, ["reduce", "linear_cross_entropy_sum"]);

fn rows_spec(tier: Tier, logits: Element, width: usize, gradient: bool, scaled: bool) -> Spec {
    // A row is a vocabulary: more invocations than for a row of the model's width.
    let workgroup = match tier {
        Tier::Wide => 256,
        Tier::Narrow(_) => tier.row_workgroup(),
    };
    Spec::new(&ROWS, workgroup)
        .packed(pack_of(&[width]))
        .storing("activation", logits)
        .with("GRADIENT", gradient)
        .with("SCALED", scaled)
}

fn sum_spec() -> Spec {
    Spec::new(&SUM, ELEMENTWISE)
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = vec![sum_spec()];
    for width in [65, 50304] {
        for logits in Element::ALL {
            let spec = |(gradient, scaled)| rows_spec(tier, logits, width, gradient, scaled);
            specs.extend([(false, false), (true, false), (true, true)].map(spec));
        }
    }
    specs
}

/// Takes the first row of a chunk, its rows, and the gradient of its logits.
type UseGradient<'a> = &'a mut dyn FnMut(usize, usize, &CubeTensor);

/// Returns the scaled sum of the losses of all rows of `x` `[n, c]`, `[1]`. With `use_gradient`, it also
/// overwrites the logits `[rows, padded]` of each chunk with their gradient, and passes them on.
fn sum_losses(
    kernels: &WgslKernels,
    x: &CubeTensor,
    wte: &[CubeTensor],
    loss_scale: Option<&CubeTensor>,
    targets: &[u32],
    loss: CrossEntropy,
    mut use_gradient: Option<UseGradient>,
) -> CubeTensor {
    let ([n, c], CrossEntropy { vocab, chunk, scale }) = (x.shape().dims(), loss);
    let padded = wte.iter().map(tokens_of).sum();
    let queue = &kernels.queue;
    // Reused for each chunk.
    let logits = queue.empty_of([chunk.min(n), padded], x.dtype);
    let (losses, targets) = (queue.empty([n]), queue.upload(targets));
    let (gradient, scaled) = (use_gradient.is_some(), loss_scale.is_some());
    let spec = rows_spec(kernels.tier, Element::of(&logits), padded, gradient, scaled);
    let width = padded / spec.pack as usize;
    for first in (0..n).step_by(chunk) {
        let rows = chunk.min(n - first);
        let x = Matrix { offset: first * c, ..x.into() };
        for (shard, columns) in shards(wte, &logits) {
            let size = [rows, tokens_of(shard), c];
            kernels.gemm(GemmLayout::Nt, size, x, shard, columns, Fusion::default());
        }
        queue.launch(
            spec.clone(),
            Workgroups::Line(rows),
            &[Some(&logits), Some(&targets), Some(&losses), loss_scale],
            &RowsParams { rows, width, vocab, first, scale },
        );
        if let Some(use_gradient) = &mut use_gradient {
            use_gradient(first, rows, &logits);
        }
    }
    let total = queue.empty([1]);
    queue.launch(
        sum_spec(),
        Workgroups::Plane(1, 1),
        &[Some(&losses), Some(&total)],
        &SumParams { elements: n, scale },
    );
    total
}

/// Returns the shards with their columns of the logits.
fn shards<'a>(
    wte: &'a [CubeTensor],
    logits: &'a CubeTensor,
) -> impl Iterator<Item = (&'a CubeTensor, Matrix<'a>)> {
    let (mut offset, stride) = (0, Some(logits.shape()[1]));
    wte.iter().map(move |shard| {
        let columns = Matrix { tensor: logits, offset, stride };
        offset += tokens_of(shard);
        (shard, columns)
    })
}

/// Returns the number of rows of a shard.
fn tokens_of(shard: &CubeTensor) -> usize {
    shard.shape()[0]
}

pub(super) fn forward(
    kernels: &WgslKernels,
    x: CubeTensor,
    wte: Vec<CubeTensor>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> CubeTensor {
    sum_losses(kernels, &x, &wte, None, &targets, loss, None)
}

pub(super) fn gradients(
    kernels: &WgslKernels,
    x: CubeTensor,
    wte: Vec<CubeTensor>,
    loss_scale: Option<CubeTensor>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> (CubeTensor, (CubeTensor, Vec<CubeTensor>)) {
    let [n, c] = x.shape().dims();
    let dx = kernels.queue.empty_of([n, c], x.dtype);
    let gradient = |shard| kernels.queue.empty([tokens_of(shard), c]);
    let dwte: Vec<CubeTensor> = wte.iter().map(gradient).collect();
    let mut add = |first, rows, logits: &CubeTensor| {
        let x = Matrix { offset: first * c, ..(&x).into() };
        let into_dx = Matrix { offset: first * c, ..(&dx).into() };
        let sum = |accumulate| Fusion { accumulate, ..Fusion::default() };
        for (index, (shard, columns)) in shards(&wte, logits).enumerate() {
            let tokens = tokens_of(shard);
            let size = [rows, c, tokens];
            kernels.gemm(GemmLayout::Nn, size, columns, shard, into_dx, sum(index > 0));
            let size = [tokens, c, rows];
            kernels.gemm(GemmLayout::Tn, size, columns, x, &dwte[index], sum(first > 0));
        }
    };
    let scale = loss_scale.as_ref();
    let total = sum_losses(kernels, &x, &wte, scale, &targets, loss, Some(&mut add));
    (total, (dx, dwte))
}
