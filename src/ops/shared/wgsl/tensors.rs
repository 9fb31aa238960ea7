//! Launches on many tensors at once. A model has hundreds of weights, most of them small: with a
//! launch for each, the host would take longer than the device.
//!
//! WGSL has no arrays of buffers, so the source of these kernels is written out for each tensor of a
//! launch (`repeat` in `gpu/launch/unroll.rs`). A table in the uniforms has a row for each, and each
//! workgroup takes a span of one. It goes over it in a loop: on a software adapter, which runs the
//! code of every tensor with masked lanes, the loops of the others end after a masked iteration.

use burn_cubecl::tensor::CubeTensor;

use super::{Tier, WgslKernels};
use crate::gpu::kernel::{Param, Spec, Workgroups, params};

params! {
    /// `Segment` of `shaders/segments.wgsl`. The tensors that fill up a launch have no workgroups.
    pub(in crate::ops) struct SegmentParams {
        first_group: usize,
        groups: usize,
        packs: usize,
        word: u32,
    }
}

/// One tensor of a launch.
pub(in crate::ops) struct LaunchedTensor<'a> {
    /// Its buffers in the order of their bindings, as many for each tensor.
    pub buffers: Vec<&'a CubeTensor>,
    /// The packs that its workgroups go over.
    pub packs: usize,
    pub word: u32,
}

impl Tier {
    /// Returns the most storage buffers of a launch, if the device has them. Each tensor adds to
    /// the text that the driver compiles, which on software adapters is much of a first step.
    fn most_buffers(self) -> usize {
        match self {
            Tier::Wide => 64,
            Tier::Narrow(_) => 16,
        }
    }
}

impl WgslKernels {
    /// Launches a kernel that takes `TENSORS` tensors at a time on all `tensors`, in as few launches
    /// as the device's bindings allow. A workgroup takes up to `span` packs of one tensor.
    ///
    /// The bindings are `shared`, then the buffers of each tensor, then the parameters,
    /// which `params` makes from those of the tensors.
    pub fn launch_on_tensors<'a, P: Param>(
        &self,
        spec: Spec,
        span: usize,
        shared: &[&CubeTensor],
        tensors: impl Iterator<Item = LaunchedTensor<'a>>,
        params: impl Fn(Vec<SegmentParams>) -> P,
    ) {
        let tensors: Vec<LaunchedTensor> = tensors.collect();
        let Some(first) = tensors.first() else { return };
        let each = first.buffers.len();
        let buffers = self.queue.storage_buffers().min(self.tier.most_buffers());
        let most = ((buffers - shared.len()) / each).max(1);
        // Launches of equal size are one kernel.
        let size = tensors.len().div_ceil(tensors.len().div_ceil(most));
        let spec = spec.with("SPAN", span as u32).with("TENSORS", size as u32);
        for batch in tensors.chunks(size) {
            let mut first_group = 0;
            let segment = |&LaunchedTensor { packs, word, .. }: &LaunchedTensor| {
                let groups = packs.div_ceil(span);
                first_group += groups;
                SegmentParams { first_group: first_group - groups, groups, packs, word }
            };
            let mut rows: Vec<SegmentParams> = batch.iter().map(segment).collect();
            rows.resize(size, SegmentParams::default());
            let own = batch.iter().flat_map(|tensor| &tensor.buffers).copied().map(Some);
            let mut buffers: Vec<_> = shared.iter().copied().map(Some).chain(own).collect();
            buffers.resize(shared.len() + size * each, None);
            self.queue.launch(spec.clone(), Workgroups::Line(first_group), &buffers, &params(rows));
        }
    }
}
