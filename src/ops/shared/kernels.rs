//! Chooses the implementation of an op, in one place for all ops.

use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::cube::CubeKernels;
#[cfg(feature = "wgpu")]
use super::wgsl::WgslKernels;
use crate::gpu::queue::Queue;
use crate::ops::{Implementation, OpsMode};

/// The implementation that runs on a GPU tensor.
pub(in crate::ops) enum Kernels {
    /// Tensor ops.
    Reference,
    /// The kernels of `shaders/`.
    #[cfg(feature = "wgpu")]
    Wgsl(WgslKernels),
    /// The kernels in cubecl's language.
    Cube(CubeKernels),
}

impl Kernels {
    /// Chooses by the mode and by the language that the tensor's device compiles.
    pub fn of(tensor: &CubeTensor, mode: OpsMode) -> Self {
        let queue = Queue::of(tensor);
        if mode.implementation == Implementation::Reference {
            return Kernels::Reference;
        }
        #[cfg(feature = "wgpu")]
        if mode.implementation != Implementation::Cube && queue.runs_wgsl() {
            return Kernels::Wgsl(WgslKernels::new(queue, mode));
        }
        Kernels::Cube(CubeKernels::new(queue, mode.precision.dtype()))
    }
}

/// The tensor in row-major order.
pub(in crate::ops) fn contiguous(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// A tensor that may be written in place: the tensor itself if nothing else holds its memory, else
/// a copy.
pub(in crate::ops) fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // CUDA pads the rows of what it copies.
    if tensor.can_mut() { tensor } else { into_contiguous(tensor.copy()) }
}

pub(in crate::ops) fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}
