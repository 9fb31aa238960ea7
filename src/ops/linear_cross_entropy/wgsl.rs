use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{CrossEntropy, CrossEntropyInputs};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::wgsl::gemm::{Fusion, GemmLayout, Matrix};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, Tier, WgslKernels};

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
    let workgroup = if tier == Tier::Wide { 256 } else { tier.row_workgroup() };
    Spec::new(&ROWS, workgroup)
        .packed(pack_of(&[width]))
        .storing("activation", logits)
        .flag("GRADIENT", gradient)
        .flag("SCALED", scaled)
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = vec![Spec::new(&SUM, ELEMENTWISE)];
    for width in [65, 50304] {
        for logits in Element::ALL {
            let spec = |(gradient, scaled)| rows_spec(tier, logits, width, gradient, scaled);
            specs.extend([(false, false), (true, false), (true, true)].map(spec));
        }
    }
    specs
}

/// The logits `[rows, padded]` of each chunk become their gradient in place.
pub(super) fn compute(
    kernels: &WgslKernels,
    inputs: CrossEntropyInputs<Gpu>,
) -> (CubeTensor, Option<(CubeTensor, Vec<CubeTensor>)>) {
    let CrossEntropyInputs { x, wte, loss_scale, targets, loss, with_gradients, trained } = inputs;
    let ([n, c], CrossEntropy { vocab, chunk, scale }) = (x.shape().dims(), loss);
    let queue = &kernels.queue;
    let gradients = with_gradients.then(|| {
        let dx = queue.empty_of([n, c], x.dtype);
        let of_shard = |shard| queue.empty([tokens_of(shard), c]);
        (dx, wte.iter().filter(|_| trained).map(of_shard).collect::<Vec<_>>())
    });
    let padded = wte.iter().map(tokens_of).sum();
    // Reused for each chunk.
    let logits = queue.empty_of([chunk.min(n), padded], x.dtype);
    let losses = queue.empty([n]);
    let targets = queue.upload(&targets);
    let activation = Element::of(&logits);
    let scaled = loss_scale.is_some();
    let spec = rows_spec(kernels.tier, activation, padded, with_gradients, scaled);
    let width = padded / spec.pack as usize;
    for first in (0..n).step_by(chunk) {
        let rows = chunk.min(n - first);
        let x = Matrix { offset: first * c, ..(&x).into() };
        for (shard, columns) in shards(&wte, &logits) {
            let size = [rows, tokens_of(shard), c];
            kernels.gemm(GemmLayout::Nt, size, x, shard, columns, Fusion::default());
        }
        queue.launch(
            spec.clone(),
            Workgroups::Line(rows),
            &[Some(&logits), Some(&targets), Some(&losses), loss_scale.as_ref()],
            &RowsParams { rows, width, vocab, first, scale },
        );
        let Some((dx, dwte)) = &gradients else { continue };
        let dx = Matrix { offset: first * c, ..dx.into() };
        let sum = |accumulate| Fusion { accumulate, ..Fusion::default() };
        for (index, (shard, columns)) in shards(&wte, &logits).enumerate() {
            let tokens = tokens_of(shard);
            let size = [rows, c, tokens];
            kernels.gemm(GemmLayout::Nn, size, columns, shard, dx, sum(index > 0));
            if let Some(dwte) = dwte.get(index) {
                let size = [tokens, c, rows];
                kernels.gemm(GemmLayout::Tn, size, columns, x, dwte, sum(first > 0));
            }
        }
    }
    let total = queue.empty([1]);
    queue.launch(
        Spec::new(&SUM, ELEMENTWISE),
        Workgroups::Plane(1, 1),
        &[Some(&losses), Some(&total)],
        &SumParams { elements: n, scale },
    );
    (total, gradients)
}

/// Returns the shards with their columns of the logits.
fn shards<'a>(
    wte: &'a [CubeTensor],
    logits: &'a CubeTensor,
) -> impl Iterator<Item = (&'a CubeTensor, Matrix<'a>)> {
    let mut offset = 0;
    let stride = Some(logits.shape()[1]);
    wte.iter().map(move |shard| {
        let columns = Matrix { tensor: logits, offset, stride };
        offset += tokens_of(shard);
        (shard, columns)
    })
}

fn tokens_of(shard: &CubeTensor) -> usize {
    shard.shape()[0]
}
