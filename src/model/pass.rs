//! The options of a pass through a model, and where it has dropout.

use burn::tensor::Tensor;

use crate::ops::{self, Dropout, OpsMode};

/// The dropout of one micro-batch: everything that determines which elements are dropped.
#[derive(Clone, Copy, Debug)]
pub struct StepDropout {
    /// The share of elements to drop.
    pub rate: f32,
    /// The same for the inputs of adapters.
    pub adapter_rate: f32,
    pub seed: u64,
    /// The number of updates before this one.
    pub step: u64,
    /// The index of the micro-batch's first sequence in the global batch.
    pub first_sequence: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub mode: OpsMode,
    /// `None` outside training.
    pub dropout: Option<StepDropout>,
}

/// The places with dropout: the embedding, and three in the first block. Each has its own mask.
pub(super) mod site {
    pub const EMBEDDING: u32 = 0;
    pub const ATTENTION: u32 = 1;
    pub const ATTENTION_OUTPUT: u32 = 2;
    pub const MLP_OUTPUT: u32 = 3;

    /// The inputs of adapters have sites from here on, four in each block. A model has at most 1024 blocks.
    pub const ADAPTERS: u32 = 4096;
}

/// The dropout of an adapter's input, in sequences of `time` positions.
#[derive(Clone, Copy)]
pub(super) struct AdapterDropout {
    dropout: Dropout,
    time: usize,
}

impl AdapterDropout {
    /// Drops out elements of `x`, and adds a residual.
    pub fn apply(self, x: Tensor<2>, residual: Option<Tensor<2>>, mode: OpsMode) -> Tensor<2> {
        ops::dropout(x, residual, self.time, self.dropout, mode)
    }
}

impl Pass {
    fn dropout(&self, site: u32) -> Option<Dropout> {
        let at = self.dropout?;
        let is_adapter = site >= site::ADAPTERS;
        let rate = if is_adapter { at.adapter_rate } else { at.rate };
        let dropout = || Dropout::new(rate, at.seed, at.step, site, at.first_sequence);
        (rate > 0.0).then(dropout)
    }

    /// Drops out elements of `x` at `site`, in sequences of `time` positions, if this pass has dropout.
    pub(super) fn drop_out(&self, x: Tensor<2>, site: u32, time: usize) -> Tensor<2> {
        match self.dropout(site) {
            Some(dropout) => ops::dropout(x, None, time, dropout, self.mode),
            None => x,
        }
    }
}

/// The options of a pass through one block.
#[derive(Clone, Copy)]
pub(super) struct BlockPass {
    pub pass: Pass,
    /// The block's number, from 0.
    pub index: usize,
    pub sequences: usize,
    /// The positions of a sequence.
    pub time: usize,
    pub heads: usize,
}

impl BlockPass {
    fn site(&self, site: u32) -> u32 {
        site + 3 * self.index as u32
    }

    pub fn dropout(&self, site: u32) -> Option<Dropout> {
        self.pass.dropout(self.site(site))
    }

    pub fn drop_out(&self, x: Tensor<2>, site: u32) -> Tensor<2> {
        self.pass.drop_out(x, self.site(site), self.time)
    }

    /// Returns the dropout of the input of an adapter, by the number of its layer in the block.
    pub fn adapter_dropout(&self, layer: u32) -> Option<AdapterDropout> {
        let dropout = self.pass.dropout(site::ADAPTERS + 4 * self.index as u32 + layer)?;
        Some(AdapterDropout { dropout, time: self.time })
    }
}
