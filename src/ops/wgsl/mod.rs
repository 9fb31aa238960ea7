//! The ops on devices that compile WGSL: the kernels of `shaders/`, one file for each op.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::OpsMode;
use crate::gpu::kernel::{Queue, Spec};

mod attention;
mod cross_entropy;
mod dropout;
mod embed;
mod gemm;
mod layer_norm;
mod linear;
mod optimize;

/// What the kernels' tiles are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Graphics cards: many invocations that share tiles in workgroup memory.
    Wide,
    /// Processors behind a graphics interface, with subgroups of so many invocations, 4 or 8: one
    /// subgroup to a workgroup, each invocation with much in registers. Workgroup memory is ordinary
    /// memory there, and a barrier costs a switch of context.
    Narrow(u32),
}

/// The widest subgroup of adapters that compute on a processor's vector unit: 8 lanes of f32 with
/// AVX2, 4 with SSE. Graphics cards have 16 and more.
const NARROW_SUBGROUP: u32 = 8;

/// The kernels of one device.
struct Kernels {
    queue: Queue,
    tier: Tier,
}

impl Kernels {
    /// The kernels that `mode` asks for on the device of `tensor`; `None` where the reference is to
    /// run.
    fn of(tensor: &CubeTensor, mode: OpsMode) -> Option<Self> {
        let queue = Queue::of(tensor);
        if !queue.runs_wgsl() || tensor.dtype != DType::F32 {
            return None;
        }
        let tier = match (mode, queue.subgroup()) {
            (OpsMode::Reference, _) => return None,
            (OpsMode::Auto, Some(lanes @ (4 | NARROW_SUBGROUP))) => Tier::Narrow(lanes),
            (OpsMode::Auto | OpsMode::Wide, _) => Tier::Wide,
        };
        Some(Self { queue, tier })
    }
}

/// Invocations in a workgroup of kernels that go element by element.
const ELEMENTWISE: u32 = 256;

/// Invocations that share a row in kernels that reduce rows.
fn row_workgroup(tier: Tier) -> u32 {
    match tier {
        Tier::Wide => 128,
        // One vector of the processor: its barriers cost nothing.
        Tier::Narrow(lanes) => lanes,
    }
}

impl Kernels {
    /// A new tensor of zeros.
    fn zeros(&self, shape: [usize; 2]) -> CubeTensor {
        CubeBackend::float_zeros(shape.into(), &self.queue.device(), FloatDType::F32)
    }
}

fn contiguous(tensor: FloatTensor<CubeBackend>) -> CubeTensor {
    into_contiguous(tensor)
}

/// The tensor where nobody else holds its memory, else a copy: what may be written in place.
fn owned(tensor: FloatTensor<CubeBackend>) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}

/// Every kernel variant that wgpt launches, but for sizes: a few of each.
pub fn variants() -> Vec<Spec> {
    let mut specs = Vec::new();
    for tier in [Tier::Wide, Tier::Narrow(4), Tier::Narrow(8)] {
        specs.extend(gemm::variants(tier));
        specs.extend(attention::variants(tier));
        specs.extend(cross_entropy::variants(tier));
        specs.extend(layer_norm::variants(tier));
    }
    specs.extend(embed::variants());
    specs.extend(dropout::variants());
    specs.extend(optimize::variants());
    specs.extend(crate::gpu::probe_variants());
    specs
}
