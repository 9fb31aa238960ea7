//! The ops on devices that compile WGSL: the kernels of `shaders/`, one file for each op.

use super::device::{contiguous, elements, owned, zeros};
use super::{Implementation, OpsMode};
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
pub(super) struct Kernels {
    queue: Queue,
    tier: Tier,
}

impl Kernels {
    /// The kernels of a device that compiles WGSL, for every mode but the reference.
    pub fn new(queue: Queue, mode: OpsMode) -> Self {
        let tier = match (mode.implementation, queue.subgroup()) {
            (Implementation::Auto, Some(lanes @ (4 | NARROW_SUBGROUP))) => Tier::Narrow(lanes),
            _ => Tier::Wide,
        };
        Self { queue, tier }
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
    #[cfg(not(target_arch = "wasm32"))]
    specs.extend(crate::gpu::probe_variants());
    specs
}
