//! Tensors for the kernels of GPUs, in either language.

pub(in crate::ops) use burn_cubecl::kernel::into_contiguous as contiguous;
use burn_cubecl::tensor::CubeTensor;

/// Returns a tensor to write in place: the tensor itself if nothing else holds its memory, else a copy.
pub(in crate::ops) fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor);
    // CUDA pads the rows of what it copies.
    if tensor.can_mut() { tensor } else { contiguous(tensor.copy()) }
}

pub(in crate::ops) fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}
