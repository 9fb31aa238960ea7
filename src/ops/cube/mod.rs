//! The ops in cubecl's language, which every backend of cubecl compiles: for CUDA cards, where WGSL
//! does not run. One file for each op, as in `wgsl`. Matrix products are cubek's.
//!
//! Activations may be f32, bfloat16 or f16 (`T`), whatever `embed` made of them: an op's outputs are
//! of its input's kind. Kernels compute in f32, and so are weights, their gradients and what a row
//! keeps in passing.
//!
//! Every sum has a fixed order, so that the same step gives the same bits.

use burn::tensor::DType;
use burn_cubecl::cubecl::ir::ElemType;
use burn_cubecl::cubecl::prelude::{BufferArg, Client, CubeCount, CubeDim, Scalar};
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use super::device::{contiguous, elements, owned, zeros};
use crate::config::Dtype;
use crate::gpu::queue::{Queue, Workgroups};

mod attention;
mod cross_entropy;
mod dropout;
mod embed;
mod layer_norm;
mod linear;
mod math;
mod optimize;
mod product;
mod reduce;
mod softmax;

/// The kernels of one device.
pub(super) struct Kernels {
    queue: Queue,
    dtype: Dtype,
}

/// Invocations in a workgroup of kernels that go element by element.
const ELEMENTWISE: u32 = 256;

impl Kernels {
    /// The kernels of a device.
    pub fn new(queue: Queue, dtype: Dtype) -> Self {
        Self { queue, dtype }
    }

    /// What activations are kept in.
    fn activations(&self) -> DType {
        match self.dtype {
            Dtype::Float32 | Dtype::Tf32 => DType::F32,
            Dtype::Bfloat16 => DType::BF16,
            Dtype::Float16 => DType::F16,
        }
    }

    fn client(&self) -> &Client {
        &self.queue.client
    }

    /// What stands where an optional argument is not.
    fn optional(&self, tensor: Option<&CubeTensor>) -> BufferArg {
        match tensor {
            Some(tensor) => argument(tensor),
            None => buffer(self.queue.nothing(), 1),
        }
    }
}

/// The grid with an invocation for each of `items`, in workgroups of `ELEMENTWISE`.
fn cover(items: usize) -> (CubeCount, CubeDim) {
    (Workgroups::cover(items, ELEMENTWISE).count(), CubeDim::new_1d(ELEMENTWISE))
}

/// The grid with a workgroup of `units` invocations for each of `items`.
fn each(items: usize, units: u32) -> (CubeCount, CubeDim) {
    (Workgroups::Line(items).count(), CubeDim::new_1d(units))
}

/// The numbers of a tensor, for kernels that take more than one kind.
fn elem(tensor: &CubeTensor) -> ElemType {
    match tensor.dtype {
        DType::BF16 => half::bf16::elem_type_native(),
        DType::F16 => half::f16::elem_type_native(),
        _ => f32::elem_type_native(),
    }
}

/// A tensor as a kernel's argument.
fn argument(tensor: &CubeTensor) -> BufferArg {
    buffer(tensor.handle.clone(), elements(tensor))
}

/// A buffer of so many elements as a kernel's argument.
fn buffer(handle: Handle, elements: usize) -> BufferArg {
    // Safety: the length is that with which the memory was asked for.
    unsafe { BufferArg::from_raw_parts(handle, elements) }
}
