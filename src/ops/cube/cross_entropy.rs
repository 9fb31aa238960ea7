//! The output head and its loss, a chunk of rows at a time.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::Slice;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use super::math::{exp, ln};
use super::reduce::{group_max, group_sum};
use super::{ELEMENTWISE, Kernels, argument, buffer, contiguous, each, elements, owned};
use crate::ops::linear_cross_entropy::{cut, joined};
use crate::ops::{CrossEntropy, Tables};

/// Invocations that share a row of logits.
const UNITS: u32 = 256;

/// Below every logit, and finite: infinity minus infinity is not a number.
const LEAST: f32 = -3.0e38;

/// The loss of each row of logits, `-log softmax(logits)[target]`, and in place of the logits its
/// gradient, `(p - onehot) * scale`. A workgroup for each row: one pass for maximum and sum, one to
/// write. Columns from `vocab` on are padding: never predicted, gradient zero. `first` is the row of
/// targets and losses that row 0 of the logits is.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer and size")]
fn softmax_loss(
    logits: &mut [f32],
    targets: &[u32],
    losses: &mut [f32],
    rows: usize,
    width: usize,
    vocab: usize,
    first: usize,
    scale: f32,
    #[comptime] gradient: bool,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let base = row * width;
    // Each invocation's own maximum, and its sum relative to that.
    let mut largest = LEAST.runtime();
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < vocab {
        let logit = logits[base + column];
        if logit > largest {
            sum *= exp(largest - logit);
            largest = logit;
        }
        sum += exp(logit - largest);
        column += UNITS as usize;
    }
    let row_max = group_max(largest, UNITS);
    let row_sum = group_sum(sum * exp(largest - row_max), UNITS);
    let goal = targets[first + row] as usize;
    if UNIT_POS == 0 {
        losses[first + row] = ln(row_sum) - (logits[base + goal] - row_max);
    }
    if comptime!(gradient) {
        // The target's logit is read above before its place is written below.
        sync_cube();
        sync_storage();
        let factor = scale / row_sum;
        let mut column = UNIT_POS as usize;
        while column < width {
            let mut d = 0.0f32;
            if column < vocab {
                d = exp(logits[base + column] - row_max) * factor
                    - select(column == goal, scale, 0.0f32);
            }
            logits[base + column] = d;
            column += UNITS as usize;
        }
    }
}

/// `scale` times the sum of all elements, in one workgroup.
#[cube(launch_unchecked)]
fn scaled_sum(x: &[f32], sum: &mut [f32], elements: usize, scale: f32) {
    let mut own = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < elements {
        own += x[i];
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(own, ELEMENTWISE);
    if UNIT_POS == 0 {
        sum[0] = scale * total;
    }
}

/// One pass over the rows: the inputs, and the losses `[rows]`.
struct Head<'a> {
    kernels: &'a Kernels,
    x: CubeTensor,
    wte: CubeTensor,
    targets: Handle,
    loss: &'a CrossEntropy,
    losses: CubeTensor,
}

impl<'a> Head<'a> {
    fn new(
        kernels: &'a Kernels,
        x: CubeTensor,
        wte: CubeTensor,
        targets: &[u32],
        loss: &'a CrossEntropy,
    ) -> Self {
        let losses = kernels.queue.empty([targets.len()]);
        let targets = kernels.queue.upload(targets);
        Self { kernels, x: contiguous(x), wte, targets, loss, losses }
    }

    /// First row and rows of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (usize, CubeTensor)> + '_ {
        let (rows, chunk) = (elements(&self.losses), self.loss.chunk);
        (0..rows).step_by(chunk).map(move |first| {
            let range = first..rows.min(first + chunk);
            (first, CubeBackend::float_slice(self.x.clone(), &[Slice::from(range)]))
        })
    }

    /// Computes the losses of a chunk. Gives the gradient of its logits where that is asked for.
    fn losses(&self, first: usize, x: CubeTensor, gradient: bool) -> CubeTensor {
        let wte = CubeBackend::float_transpose(self.wte.clone());
        let logits = owned(CubeBackend::float_matmul(x, wte));
        let [rows, width] = logits.shape().dims();
        let (count, dim) = each(rows, UNITS);
        unsafe {
            softmax_loss::launch_unchecked(
                self.kernels.client(),
                count,
                dim,
                argument(&logits),
                buffer(self.targets.clone(), elements(&self.losses)),
                argument(&self.losses),
                rows,
                width,
                self.loss.vocab,
                first,
                self.loss.scale,
                gradient,
            );
        }
        logits
    }

    /// The scaled sum of all rows' losses, `[1]`.
    fn total(&self) -> CubeTensor {
        let total = self.kernels.queue.empty([1]);
        let (count, dim) = each(1, ELEMENTWISE);
        unsafe {
            scaled_sum::launch_unchecked(
                self.kernels.client(),
                count,
                dim,
                argument(&self.losses),
                argument(&total),
                elements(&self.losses),
                self.loss.scale,
            );
        }
        total
    }
}

impl Kernels {
    pub fn linear_cross_entropy(
        &self,
        x: CubeTensor,
        wte: Tables<CubeBackend>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
    ) -> CubeTensor {
        let head = Head::new(self, x, joined::<CubeBackend>(wte).0, &targets, &loss);
        for (first, x) in head.chunks() {
            head.losses(first, x, false);
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
        let (wte, table_rows) = joined::<CubeBackend>(wte);
        let head = Head::new(self, x, wte, &targets, &loss);
        let (mut dx, mut dwte) = (Vec::new(), None);
        for (first, x) in head.chunks() {
            let d = head.losses(first, x.clone(), true);
            let part = CubeBackend::float_matmul(CubeBackend::float_transpose(d.clone()), x);
            dwte = Some(match dwte {
                Some(sum) => CubeBackend::float_add(sum, part),
                None => part,
            });
            dx.push(CubeBackend::float_matmul(d, head.wte.clone()));
        }
        let dx = match dx.len() {
            1 => dx.remove(0),
            _ => CubeBackend::float_cat(dx, 0),
        };
        let dwte = dwte.expect("a batch has rows");
        (head.total(), dx, cut::<CubeBackend>(dwte, &table_rows))
    }
}
