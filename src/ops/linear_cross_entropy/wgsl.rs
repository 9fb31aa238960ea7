//! The output head and its loss by the kernels of `shaders/`.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::CrossEntropy;
use crate::gpu::kernel::{Element, Param, Shader, Spec, Workgroups, pack_of, params, wgsl};
use crate::ops::shared::kernels::contiguous;
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
}

params! {
    struct SumParams {
        elements: usize,
        scale: f32,
    }
}

static ROWS: Shader = Shader {
    name: "linear_cross_entropy_rows",
    parts: &[wgsl!("reduce"), wgsl!("linear_cross_entropy_rows")],
    params: RowsParams::TYPE,
};
static SUM: Shader = Shader {
    name: "linear_cross_entropy_sum",
    parts: &[wgsl!("reduce"), wgsl!("linear_cross_entropy_sum")],
    params: SumParams::TYPE,
};

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

/// One pass over the rows: the inputs, and the buffers that the chunks share.
struct Head<'a> {
    kernels: &'a WgslKernels,
    x: &'a CubeTensor,
    wte: &'a [CubeTensor],
    targets: CubeTensor,
    loss: &'a CrossEntropy,
    /// The scale of the gradients in place of the loss's, if any.
    loss_scale: Option<CubeTensor>,
    rows: usize,
    c: usize,
    padded: usize,
    /// `[chunk, padded]`, reused for each chunk.
    logits: CubeTensor,
    /// `[rows]`.
    losses: CubeTensor,
}

impl<'a> Head<'a> {
    fn new(
        kernels: &'a WgslKernels,
        x: &'a CubeTensor,
        wte: &'a [CubeTensor],
        targets: &[u32],
        loss: &'a CrossEntropy,
        loss_scale: Option<CubeTensor>,
    ) -> Self {
        let [rows, c] = x.shape().dims();
        let padded = wte.iter().map(tokens_of).sum();
        let logits = kernels.queue.empty_of([loss.chunk.min(rows), padded], x.dtype);
        let losses = kernels.queue.empty([rows]);
        let targets = kernels.queue.upload(targets);
        let loss_scale = loss_scale.map(contiguous);
        Self { kernels, x, wte, targets, loss, loss_scale, rows, c, padded, logits, losses }
    }

    /// Returns the first row and the number of rows of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, chunk) = (self.rows, self.loss.chunk);
        (0..rows).step_by(chunk).map(move |first| (first, chunk.min(rows - first)))
    }

    /// Returns the shards with their columns of the logits.
    fn shards(&self) -> impl Iterator<Item = (&CubeTensor, Matrix<'_>)> {
        let (mut offset, stride) = (0, Some(self.padded));
        self.wte.iter().map(move |shard| {
            let columns = Matrix { tensor: &self.logits, offset, stride };
            offset += tokens_of(shard);
            (shard, columns)
        })
    }

    /// Computes the losses of a chunk; with `gradient`, overwrites the logits with their gradient.
    fn losses(&self, (first, rows): (usize, usize), gradient: bool) {
        let Self { kernels, c, padded, .. } = *self;
        let x = Matrix { offset: first * c, ..self.x.into() };
        for (shard, logits) in self.shards() {
            let size = [rows, tokens_of(shard), c];
            kernels.gemm(GemmLayout::Nt, size, x, shard, logits, Fusion::default());
        }
        let (logits, loss_scale) = (Element::of(&self.logits), self.loss_scale.as_ref());
        let spec = rows_spec(kernels.tier, logits, padded, gradient, loss_scale.is_some());
        let width = padded / spec.pack as usize;
        kernels.queue.launch(
            spec,
            Workgroups::Line(rows),
            &[Some(&self.logits), Some(&self.targets), Some(&self.losses), loss_scale],
            &RowsParams { rows, width, vocab: self.loss.vocab, first, scale: self.loss.scale },
        );
    }

    /// Returns the scaled sum of all rows' losses, `[1]`.
    fn total(&self) -> CubeTensor {
        let total = self.kernels.queue.empty([1]);
        self.kernels.queue.launch(
            sum_spec(),
            Workgroups::Plane(1, 1),
            &[Some(&self.losses), Some(&total)],
            &SumParams { elements: self.rows, scale: self.loss.scale },
        );
        total
    }
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
    let x = contiguous(x);
    let wte: Vec<CubeTensor> = wte.into_iter().map(contiguous).collect();
    let head = Head::new(kernels, &x, &wte, &targets, &loss, None);
    for chunk in head.chunks() {
        head.losses(chunk, false);
    }
    head.total()
}

pub(super) fn gradients(
    kernels: &WgslKernels,
    x: CubeTensor,
    wte: Vec<CubeTensor>,
    loss_scale: Option<CubeTensor>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
) -> (CubeTensor, (CubeTensor, Vec<CubeTensor>)) {
    let x = contiguous(x);
    let wte: Vec<CubeTensor> = wte.into_iter().map(contiguous).collect();
    let head = Head::new(kernels, &x, &wte, &targets, &loss, loss_scale);
    let Head { rows, c, .. } = head;
    let dx = kernels.queue.empty_of([rows, c], x.dtype);
    let gradient = |shard| kernels.queue.empty([tokens_of(shard), c]);
    let dwte: Vec<CubeTensor> = wte.iter().map(gradient).collect();
    for (first, rows) in head.chunks() {
        head.losses((first, rows), true);
        let x = Matrix { offset: first * c, ..(&x).into() };
        let into_dx = Matrix { offset: first * c, ..(&dx).into() };
        for (index, (shard, logits)) in head.shards().enumerate() {
            let tokens = tokens_of(shard);
            let sum = |accumulate| Fusion { accumulate, ..Fusion::default() };
            let size = [rows, c, tokens];
            kernels.gemm(GemmLayout::Nn, size, logits, shard, into_dx, sum(index > 0));
            let size = [tokens, c, rows];
            kernels.gemm(GemmLayout::Tn, size, logits, x, &dwte[index], sum(first > 0));
        }
    }
    (head.total(), (dx, dwte))
}
