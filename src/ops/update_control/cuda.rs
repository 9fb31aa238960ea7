//! The squares of gradients by `shaders/cuda/weights.cu`.

use burn_cubecl::tensor::CubeTensor;

use super::NORM_SPAN;
use crate::gpu::cuda::{Arguments, Pointer};
use crate::ops::shared::cube::CubeKernels;
use crate::ops::shared::cube::weights::{Spans, padded};
use crate::ops::shared::kernels::elements;

/// The gradients of a launch.
pub(in crate::ops) const TENSORS: usize = 192;

/// Writes the sums of the squares of each `NORM_SPAN` elements of gradients in row-major order, divided by the
/// loss scale and `divisor`, to `sums`. Returns false, and launches nothing, if the device is not CUDA's.
pub(super) fn sum_squares(
    kernels: &CubeKernels,
    grads: &[CubeTensor],
    loss_scale: &CubeTensor,
    divisor: f32,
    sums: &CubeTensor,
) -> bool {
    if !kernels.queue.is_cuda() {
        return false;
    }
    let mut first = 0;
    for grads in grads.chunks(TENSORS) {
        let mut pointers = vec![Pointer::Read(loss_scale), Pointer::Write(sums)];
        pointers.extend(padded(grads.iter().map(Pointer::Read), TENSORS));
        let spans = Spans::of(grads.iter().map(elements), NORM_SPAN, TENSORS);
        let scalars = [grads.len() as u32, first as u32, divisor.to_bits()];
        let values = [&spans.values[..], &scalars].concat();
        let arguments = Arguments { pointers: &pointers, values: &values };
        kernels.queue.launch_ptx("squares", [spans.count, 1], arguments);
        first += spans.count;
    }
    true
}
