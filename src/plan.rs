//! From what is asked to how a step is cut: pure, from the configuration alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// How one step runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Sequences on the device at a time.
    pub micro_batch: usize,
    /// Micro-batches of one update; `micro_batch * accumulation` is the global batch.
    pub accumulation: usize,
    /// Rows of logits that exist at a time.
    pub loss_chunk: usize,
    /// Whether blocks keep their inputs alone and are run again for their gradients.
    #[serde(default)]
    pub grad_checkpoint: bool,
    /// Sequences of an evaluation's micro-batch.
    pub eval_batch_size: usize,
}

/// Logits that exist at a time where nothing else is asked, in bytes: enough rows to keep a large
/// product busy, a fortieth of what 16 x 1024 tokens of GPT-2 would take.
const LOGITS_BYTES: u64 = 64 << 20;

/// Rows of a product's tile on graphics cards: a chunk that ends within one wastes the rest of it.
const TILE_ROWS: u64 = 128;

/// Sequences of an evaluation's micro-batch where nothing else is asked.
const EVAL_BATCH: u64 = 8;

impl Plan {
    /// Cuts the step of `config` over a vocabulary of `vocab` tokens.
    pub fn new(config: &Config, vocab: u32) -> Self {
        let global = config.global_batch();
        let micro_batch = u64::from(config.micro_batch().get());
        let rows = micro_batch * u64::from(config.block_size.get());
        let loss_chunk = match u64::from(config.loss_chunk) {
            0 => (LOGITS_BYTES / (4 * u64::from(vocab.max(1)))).max(1).next_multiple_of(TILE_ROWS),
            asked => asked,
        };
        let eval_batch_size = match u64::from(config.eval_batch_size) {
            0 => micro_batch.min(EVAL_BATCH),
            asked => asked,
        };
        Self {
            micro_batch: micro_batch as usize,
            accumulation: (global / micro_batch) as usize,
            loss_chunk: loss_chunk.min(rows) as usize,
            grad_checkpoint: false,
            eval_batch_size: eval_batch_size as usize,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "micro-batch {} x {}, logits {} rows at a time, evaluation {} sequences at a time",
            self.micro_batch, self.accumulation, self.loss_chunk, self.eval_batch_size
        )
    }
}
