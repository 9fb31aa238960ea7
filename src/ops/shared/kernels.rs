//! Tensors for the kernels of GPUs, in either language.

use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// Returns the tensor in row-major order.
pub(in crate::ops) fn contiguous(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// Returns a tensor that may be written in place: the tensor itself if nothing else holds its memory,
/// else a copy.
pub(in crate::ops) fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // CUDA pads the rows of what it copies.
    if tensor.can_mut() { tensor } else { into_contiguous(tensor.copy()) }
}

pub(in crate::ops) fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}
