//! Launches of kernels in cubecl's language, which every backend of cubecl compiles: for CUDA,
//! where WGSL does not run. Matrix products are cubek's.
//!
//! Activations are f32, bfloat16 or f16 (`T`), whichever `embed` returned: an op's outputs have the
//! dtype of its input. Kernels compute in f32; weights, their gradients and the softmax and layer
//! norm statistics are f32.
//!
//! Every sum has a fixed order, so that the same step gives the same bits.

use burn::backend::cubecl::dtype_to_elem_type;
use burn::tensor::DType;
use burn_cubecl::cubecl::ir::ElemType;
use burn_cubecl::cubecl::prelude::{BufferArg, CubeCount, CubeDim};
use burn_cubecl::tensor::CubeTensor;

use crate::config::Dtype;
use crate::gpu::queue::{Queue, Workgroups};
pub(in crate::ops) use crate::ops::shared::dispatch::Gpu;
use crate::ops::shared::kernels::contiguous;

pub(in crate::ops) mod gelu;
pub(in crate::ops) mod math;
pub(in crate::ops) mod product;
pub(in crate::ops) mod reduce;
pub(in crate::ops) mod rows;
#[cfg(feature = "cuda")]
pub(in crate::ops) mod weights;

/// Launches a `#[cube(launch_unchecked)]` kernel on a grid:
/// `launch!(kernels, grid, kernel(&[tensor...], argument...))`, with the elements of a vector before
/// the tensors if the kernel is generic over them. A tensor may be an `Option`.
///
/// The one place with unsafe code. A checked launch would bound every access and every loop, which
/// keeps compilers from unrolling. The kernels guard their own accesses: they compare the index of
/// the row or element with a size, and the host gives them the sizes of the tensors they run on.
macro_rules! launch {
    ($kernels:expr, $grid:expr, $($kernel:ident)::+(
        $($vector:ident,)? &[$($tensor:expr),*], $($argument:expr),* $(,)?
    )) => {{
        let (count, dim) = $grid;
        let client = &$kernels.queue.client;
        #[allow(unsafe_code, reason = "the kernels guard their own bounds")]
        let () = unsafe {
            $($kernel)::+::launch_unchecked(
                client, count, dim, $($vector,)? $($kernels.argument($tensor),)* $($argument),*
            )
        };
    }};
}
pub(in crate::ops) use launch;

pub(in crate::ops) struct CubeKernels {
    pub queue: Queue,
    pub dtype: Dtype,
    /// True to multiply by cuBLASLt what it multiplies.
    #[cfg(feature = "cuda")]
    pub cublas: bool,
}

/// Invocations in a workgroup of elementwise kernels.
pub(in crate::ops) const ELEMENTWISE: u32 = 256;

/// The widest access of an invocation, in bytes.
const ACCESS: usize = 16;

impl CubeKernels {
    /// Returns how many elements of `dtype` kernels read and write at once: as many as 16 bytes hold,
    /// or fewer if the device has shorter vectors or if they do not divide `elements`.
    pub fn vector(&self, dtype: DType, elements: usize) -> usize {
        let most = (ACCESS / dtype.size()).min(self.queue.vector_size());
        [8, 4, 2].into_iter().find(|n| *n <= most && elements.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Returns a tensor as a kernel's argument, in row-major order, or a placeholder. A kernel writes to
    /// no tensor in another order: it would write to a copy.
    pub fn argument<'a>(&self, tensor: impl Into<Option<&'a CubeTensor>>) -> BufferArg {
        tensor.into().cloned().map_or_else(|| self.queue.nothing(), contiguous).into_buffer_arg()
    }
}

/// Returns a grid with one invocation for each of `items`, in workgroups of `ELEMENTWISE`.
pub(in crate::ops) fn cover(items: usize) -> (CubeCount, CubeDim) {
    (Workgroups::cover(items, ELEMENTWISE).count(), CubeDim::new_1d(ELEMENTWISE))
}

/// Returns a grid with one workgroup of `units` invocations for each of `items`.
pub(in crate::ops) fn each(items: usize, units: u32) -> (CubeCount, CubeDim) {
    (Workgroups::Line(items).count(), CubeDim::new_1d(units))
}

/// Returns the element type of a tensor, for kernels that are generic over it.
pub(in crate::ops) fn elem(tensor: &CubeTensor) -> ElemType {
    dtype_to_elem_type(tensor.dtype)
}
