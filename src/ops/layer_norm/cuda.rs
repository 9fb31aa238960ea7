//! The last sums of the gradients of norms by `shaders/cuda/weights.cu`.

use burn_cubecl::tensor::CubeTensor;

use crate::gpu::cuda::{Arguments, Pointer};
use crate::ops::shared::cube::CubeKernels;
use crate::ops::shared::cube::weights::padded;

/// The norms of a launch, and the columns of a workgroup.
pub(in crate::ops) const TENSORS: usize = 128;
pub(in crate::ops) const UNITS: usize = 256;

/// Adds up `[groups, 2, width]` partial sums of norms, in row-major order, to the gradients of gamma
/// and beta. Returns false, and launches nothing, if the device is not CUDA's.
pub(super) fn sum_groups(
    kernels: &CubeKernels,
    partial: &[CubeTensor],
    gradients: &[(CubeTensor, CubeTensor)],
) -> bool {
    if !kernels.queue.is_cuda() {
        return false;
    }
    let norms: Vec<_> = partial.iter().zip(gradients).collect();
    let of_one_shape = norms.chunk_by(|(a, _), (b, _)| a.meta.shape() == b.meta.shape());
    for norms in of_one_shape.flat_map(|norms| norms.chunks(TENSORS)) {
        let [groups, _, width] = norms[0].0.meta.shape().dims();
        let mut pointers = Vec::with_capacity(3 * TENSORS);
        pointers.extend(padded(norms.iter().map(|(partial, _)| Pointer::Read(partial)), TENSORS));
        pointers.extend(padded(norms.iter().map(|(_, (gamma, _))| Pointer::Write(gamma)), TENSORS));
        pointers.extend(padded(norms.iter().map(|(_, (_, beta))| Pointer::Write(beta)), TENSORS));
        let values = [groups, width].map(|value| value as u32);
        let arguments = Arguments { pointers: &pointers, values: &values };
        let grid = [(2 * width).div_ceil(UNITS), norms.len()];
        kernels.queue.launch_ptx("sum_groups", grid, arguments);
    }
    true
}
