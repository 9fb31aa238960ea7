//! Tensors for the kernels of GPUs, in either language.

pub(in crate::ops) use burn_cubecl::kernel::into_contiguous as contiguous;
use burn_cubecl::tensor::CubeTensor;

use crate::gpu::queue::Queue;

/// Returns a tensor to write in place: the tensor itself if nothing else holds its memory, else a copy.
pub(in crate::ops) fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor);
    // CUDA pads the rows of what it copies.
    if tensor.can_mut() { tensor } else { contiguous(tensor.copy()) }
}

/// Returns what a kernel reads and what it writes: nothing and the tensor itself if nothing else holds its
/// memory, else the tensor and an empty one.
pub(in crate::ops) fn in_place(
    queue: &Queue,
    tensor: CubeTensor,
) -> (Option<CubeTensor>, CubeTensor) {
    let tensor = contiguous(tensor);
    if tensor.can_mut() {
        return (None, tensor);
    }
    let empty = queue.empty_of(tensor.meta.shape().clone(), tensor.dtype);
    (Some(tensor), empty)
}

pub(in crate::ops) fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}
