//! The ops in cubecl's language, which every backend of cubecl compiles: for CUDA cards, where WGSL
//! does not run. One file for each op, as in `wgsl`. Matrix products are burn's own.
//!
//! Every sum has a fixed order, so that the same step gives the same bits.

use burn_cubecl::cubecl::prelude::{BufferArg, Client, CubeCount, CubeDim};
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;

use super::device::{contiguous, elements, owned, zeros};
use crate::gpu::queue::{Queue, Workgroups};

mod attention;
mod cross_entropy;
mod dropout;
mod embed;
mod layer_norm;
mod linear;
mod math;
mod optimize;
mod reduce;

/// The kernels of one device.
pub(super) struct Kernels {
    queue: Queue,
}

/// Invocations in a workgroup of kernels that go element by element.
const ELEMENTWISE: u32 = 256;

impl Kernels {
    /// The kernels of a device.
    pub fn new(queue: Queue) -> Self {
        Self { queue }
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

/// A tensor as a kernel's argument.
fn argument(tensor: &CubeTensor) -> BufferArg {
    buffer(tensor.handle.clone(), elements(tensor))
}

/// A buffer of so many elements as a kernel's argument.
fn buffer(handle: Handle, elements: usize) -> BufferArg {
    // Safety: the length is that with which the memory was asked for.
    unsafe { BufferArg::from_raw_parts(handle, elements) }
}
