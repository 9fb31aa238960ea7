//! Launches of the kernels in `shaders/`: the tiers of devices, and what a launch needs.
//!
//! Activations are f32 or f16, whichever `embed` returned: an op's outputs have the dtype of its
//! input. Kernels compute in f32; weights may be f32 or f16 where they are multiplied, and their
//! gradients and the softmax and layer norm statistics are f32.

use burn::tensor::DType;

use crate::config::Matrices;
use crate::gpu::kernel::Queue;
use crate::gpu::stored;
use crate::ops::OpsMode;
pub(in crate::ops) use crate::ops::shared::dispatch::Gpu;

pub(in crate::ops) mod gemm;
pub(in crate::ops) mod tensors;

/// The kind of device that a kernel's tiles are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Tier {
    /// GPUs: many invocations that share tiles in workgroup memory.
    Wide,
    /// Software adapters, with subgroups of 4 or 8 invocations: one subgroup to a workgroup, each
    /// invocation with many values in registers. Workgroup memory is ordinary memory there, and a
    /// barrier costs a switch of context.
    Narrow(u32),
}

impl Tier {
    /// Returns the invocations that share a row in kernels that reduce rows.
    pub fn row_workgroup(self) -> u32 {
        match self {
            Tier::Wide => 128,
            // One vector of the CPU: its barriers cost nothing.
            Tier::Narrow(lanes) => lanes,
        }
    }
}

pub(in crate::ops) struct WgslKernels {
    pub queue: Queue,
    pub tier: Tier,
    pub activations: DType,
    /// The cooperative matrices on which factors in f16 are multiplied.
    pub matrices: Option<Matrices>,
}

impl WgslKernels {
    /// Chooses the tier by the kind of the adapter, never by its subgroups alone: some GPUs have
    /// subgroups of 8 too. A software adapter without fixed subgroups of 4 (SSE) or 8 (AVX2) lanes
    /// takes the tiles of a GPU.
    pub fn new(queue: Queue, mode: OpsMode) -> Self {
        let tier = match queue.subgroup() {
            Some(lanes @ (4 | 8)) if mode.narrow_tiles() => Tier::Narrow(lanes),
            _ => Tier::Wide,
        };
        let activations = stored(mode.precision.dtype());
        Self { queue, tier, activations, matrices: mode.matrices() }
    }

    /// Returns what decides how kernels share rows: the tier and, on GPUs that shuffle, the invocations
    /// that exchange values.
    pub fn rows(&self) -> (Tier, Option<u32>) {
        let lanes = self.queue.lanes().filter(|_| self.tier == Tier::Wide);
        (self.tier, lanes)
    }
}

/// Invocations in a workgroup of elementwise kernels.
pub(in crate::ops) const ELEMENTWISE: u32 = 256;

/// Elements that a workgroup of a kernel on many tensors takes.
pub(in crate::ops) const TENSOR_SPAN: usize = 16 * 1024;
