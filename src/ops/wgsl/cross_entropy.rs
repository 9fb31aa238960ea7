//! The output head and its loss.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use super::gemm::{Around, Layout, Matrix};
use super::{ELEMENTWISE, Kernels, Tier, contiguous};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::{CrossEntropy, Tables};

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
    wte: &'a [CubeTensor],
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
        wte: &'a [CubeTensor],
        targets: &[u32],
        loss: &'a CrossEntropy,
    ) -> Self {
        let [rows, c] = x.shape().dims();
        let padded = wte.iter().map(tokens_of).sum();
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

    /// The tables with their columns of the logits.
    fn tables(&self) -> impl Iterator<Item = (&CubeTensor, Matrix<'_>)> {
        let (mut offset, stride) = (0, Some(self.padded));
        self.wte.iter().map(move |table| {
            let columns = Matrix { tensor: &self.logits, offset, stride };
            offset += tokens_of(table);
            (table, columns)
        })
    }

    /// The losses of a chunk, and the gradient of its logits in place of them.
    fn losses(&self, (first, rows): (usize, usize), gradient: bool) {
        let Self { kernels, c, padded, .. } = *self;
        let x = Matrix { offset: first * c, ..self.x.into() };
        for (table, logits) in self.tables() {
            let size = [rows, tokens_of(table), c];
            kernels.gemm(Layout::Nt, size, x, table, logits, Around::default());
        }
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

/// Rows of a table.
fn tokens_of(table: &CubeTensor) -> usize {
    table.shape()[0]
}

impl Kernels {
    pub fn linear_cross_entropy(
        &self,
        x: CubeTensor,
        wte: Tables<CubeBackend>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
    ) -> CubeTensor {
        let x = contiguous(x);
        let wte: Vec<CubeTensor> = wte.into_vec().into_iter().map(contiguous).collect();
        let head = Head::new(self, &x, &wte, &targets, &loss);
        for chunk in head.chunks() {
            head.losses(chunk, false);
        }
        head.total()
    }

    pub fn linear_cross_entropy_gradients(
        &self,
        x: CubeTensor,
        wte: Tables<CubeBackend>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
    ) -> (CubeTensor, CubeTensor, Vec<CubeTensor>) {
        let x = contiguous(x);
        let wte: Vec<CubeTensor> = wte.into_vec().into_iter().map(contiguous).collect();
        let head = Head::new(self, &x, &wte, &targets, &loss);
        let Head { rows, c, .. } = head;
        let dx = self.queue.empty([rows, c]);
        let gradient = |table| self.queue.empty([tokens_of(table), c]);
        let dwte: Vec<CubeTensor> = wte.iter().map(gradient).collect();
        for (first, rows) in head.chunks() {
            head.losses((first, rows), true);
            let x = Matrix { offset: first * c, ..(&x).into() };
            let into_dx = Matrix { offset: first * c, ..(&dx).into() };
            for (index, (table, logits)) in head.tables().enumerate() {
                let tokens = tokens_of(table);
                let sum = |accumulate| Around { accumulate, ..Around::default() };
                let size = [rows, c, tokens];
                self.gemm(Layout::Nn, size, logits, table, into_dx, sum(index > 0));
                let size = [tokens, c, rows];
                self.gemm(Layout::Tn, size, logits, x, &dwte[index], sum(first > 0));
            }
        }
        (head.total(), dx, dwte)
    }
}
