//! The output head and its loss.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use super::gemm::{Around, Layout, Matrix};
use super::{ELEMENTWISE, Kernels, Tier, contiguous};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::linear_cross_entropy::{LinearCrossEntropy, reference, reference_gradients};
use crate::ops::{CrossEntropy, OpsMode};

static SOFTMAX_LOSS: Shader =
    Shader { name: "softmax_loss", parts: &[wgsl!("reduce"), wgsl!("softmax_loss")] };
static SCALED_SUM: Shader =
    Shader { name: "scaled_sum", parts: &[wgsl!("reduce"), wgsl!("scaled_sum")] };

fn softmax_loss(tier: Tier, width: usize, gradient: bool) -> Spec {
    // A row is a vocabulary: more invocations than for a row of the model's width.
    let workgroup = match tier {
        Tier::Wide => 256,
        Tier::Narrow(_) => super::row_workgroup(tier),
    };
    Spec::new(&SOFTMAX_LOSS, workgroup).packed(pack_of(&[width])).with("GRADIENT", gradient)
}

fn scaled_sum() -> Spec {
    Spec::new(&SCALED_SUM, ELEMENTWISE)
}

pub(super) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = vec![scaled_sum()];
    for width in [65, 50304] {
        specs.extend([false, true].map(|gradient| softmax_loss(tier, width, gradient)));
    }
    specs
}

/// One pass over the rows: the inputs, and what the chunks share.
struct Head<'a> {
    kernels: &'a Kernels,
    x: &'a CubeTensor,
    wte: &'a CubeTensor,
    targets: Handle,
    loss: &'a CrossEntropy,
    rows: usize,
    c: usize,
    padded: usize,
    /// `[chunk, padded]`, for one chunk after the other.
    logits: CubeTensor,
    /// `[rows]`.
    losses: CubeTensor,
}

impl<'a> Head<'a> {
    fn new(
        kernels: &'a Kernels,
        x: &'a CubeTensor,
        wte: &'a CubeTensor,
        targets: &[u32],
        loss: &'a CrossEntropy,
    ) -> Self {
        let ([rows, c], [padded, _]) = (x.shape().dims(), wte.shape().dims());
        let logits = kernels.queue.empty([loss.chunk.min(rows), padded]);
        let losses = kernels.queue.empty([rows]);
        let targets = kernels.queue.upload(targets);
        Self { kernels, x, wte, targets, loss, rows, c, padded, logits, losses }
    }

    /// First row and number of rows of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, chunk) = (self.rows, self.loss.chunk);
        (0..rows).step_by(chunk).map(move |first| (first, chunk.min(rows - first)))
    }

    /// The losses of a chunk, and the gradient of its logits in place of them.
    fn losses(&self, (first, rows): (usize, usize), gradient: bool) {
        let Self { kernels, c, padded, .. } = *self;
        let x = Matrix { tensor: self.x, offset: first * c };
        let size = [rows, padded, c];
        kernels.gemm(Layout::Nt, size, x, self.wte, &self.logits, Around::default());
        let spec = softmax_loss(kernels.tier, padded, gradient);
        let width = padded / spec.pack() as usize;
        kernels.queue.launch(
            spec,
            Workgroups::Line(rows),
            [&self.logits.handle, &self.targets, &self.losses.handle]
                .map(|handle| handle.clone().binding()),
            &[
                rows as u32,
                width as u32,
                self.loss.vocab as u32,
                first as u32,
                self.loss.scale.to_bits(),
            ],
        );
    }

    /// The scaled sum of all rows' losses, `[1]`.
    fn total(&self) -> CubeTensor {
        let total = self.kernels.queue.empty([1]);
        self.kernels.queue.launch(
            scaled_sum(),
            Workgroups::Plane(1, 1),
            [&self.losses, &total].map(|tensor| tensor.handle.clone().binding()),
            &[self.rows as u32, self.loss.scale.to_bits()],
        );
        total
    }
}

impl LinearCrossEntropy for CubeBackend {
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        wte: FloatTensor<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference::<Self>(x, wte, &targets, &loss, None);
        };
        let (x, wte) = (contiguous(x), contiguous(wte));
        let head = Head::new(&kernels, &x, &wte, &targets, &loss);
        for chunk in head.chunks() {
            head.losses(chunk, false);
        }
        head.total()
    }

    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        wte: FloatTensor<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_gradients::<Self>(x, wte, &targets, &loss);
        };
        let (x, wte) = (contiguous(x), contiguous(wte));
        let head = Head::new(&kernels, &x, &wte, &targets, &loss);
        let Head { rows, c, padded, .. } = head;
        let dx = kernels.queue.empty([rows, c]);
        let dwte = kernels.queue.empty([padded, c]);
        for (first, rows) in head.chunks() {
            head.losses((first, rows), true);
            let into_dx = Matrix { tensor: &dx, offset: first * c };
            let size = [rows, c, padded];
            kernels.gemm(Layout::Nn, size, &head.logits, &wte, into_dx, Around::default());
            let x = Matrix { tensor: &x, offset: first * c };
            let sum = Around { accumulate: first > 0, ..Around::default() };
            kernels.gemm(Layout::Tn, [padded, c, rows], &head.logits, x, &dwte, sum);
        }
        (head.total(), dx, dwte)
    }
}
