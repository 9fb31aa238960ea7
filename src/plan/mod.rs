//! Plans how a step is split, and predicts its memory and the time and disk of the whole run, from
//! the configuration and what is known of the device alone.

mod advice;
mod architecture;
mod choice;
mod device;
mod fixes;
mod forecast;
mod gpus;
mod limits;
mod lora;
mod network;
pub(crate) mod products;
mod recipe;
mod row;
mod rows;
mod sharding;
mod shares;
mod speed;
mod totals;
mod work;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Choice, Config, Precision, padded_vocab};
use crate::text::bytes;
pub use architecture::{Architecture, Blocks, LlamaBlocks};
pub(crate) use architecture::{HEAD, MAX_BLOCK, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
pub use choice::plan;
pub(crate) use choice::{keep, replan, smaller, smaller_or_offloaded};
pub use device::{Backend, DeviceHealth, DeviceKind, DeviceLine, OtherUse, Throttle};
pub use forecast::Forecast;
pub use gpus::{PublishedGpu, gpu_named, gpus};
pub(crate) use limits::free_for_a_run;
pub use limits::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Kernels, Limits, MemoryHolder};
pub(crate) use lora::{
    A as LORA_A, B as LORA_B, is_on_host, largest_frozen_tensor, trained_weights,
};
pub use lora::{AdaptedLayer, Lora};
pub use network::{RanksEstimate, parse_network};
pub(crate) use recipe::most_updates;
pub use recipe::{ExpectedBits, Recipe, RecipeQuestion, TIMES, recipe};
pub use row::{Class, Row};
pub(crate) use sharding::owners;
pub(crate) use shares::{Shares, of_share};
pub use speed::{DeviceSpeed, SpeedPoint};
pub use totals::{DataSize, TimeEstimate, Totals};
pub(crate) use totals::{Pace, checkpoint_bytes};
pub use work::Work;

/// The split of a step into micro-batches and chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Sequences on the device at once.
    pub micro_batch: usize,
    /// Micro-batches per update; `micro_batch * accumulation` is the global batch.
    pub accumulation: usize,
    /// Rows of logits computed at once.
    pub loss_chunk: usize,
    #[serde(default)]
    pub grad_checkpoint: bool,
    #[serde(default)]
    pub offload_optimizer: bool,
    pub eval_batch_size: usize,
}

/// An error of [`plan()`]; [`hint`](Self::hint) says what to do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// No plan fits the budget of the device and the memory of the host.
    #[error("this run does not fit: {}", least.shortage())]
    TooBig {
        /// The plan that needs the least memory of the device or, if that has enough, of the host.
        least: Box<Forecast>,
        /// Changes that would fit, the mildest first.
        fixes: Vec<Fix>,
        /// The programs that hold memory of the device, where known.
        holders: Vec<MemoryHolder>,
    },
    /// A tensor is larger than the device can bind, however the step is split.
    #[error(
        "this model has a tensor of {}, but the device allows at most {} per tensor",
        bytes(*need),
        bytes(*have)
    )]
    TensorTooLarge { need: u64, have: u64 },
}

impl PlanError {
    pub fn hint(&self) -> Option<String> {
        // The window shows what takes the memory, and changes that make a run fit.
        if cfg!(target_arch = "wasm32") {
            return Some("see \"Will it fit?\"".into());
        }
        let PlanError::TooBig { least, fixes, holders } = self else {
            return Some(
                "use another device (`wgpt devices` shows the limits), --device=cpu, or a smaller \
                 n_embd or block_size"
                    .into(),
            );
        };
        let mut steps = Vec::new();
        if least.fits_budget() && !least.fits_host() {
            steps.push("close other programs".to_string());
        } else if !holders.is_empty() {
            steps.push(format!("close programs on the GPU ({})", listed(holders)));
        }
        if !fixes.is_empty() {
            let fixes: Vec<String> = fixes.iter().map(Fix::to_string).collect();
            steps.push(format!("it would fit with {}", fixes.join(", or ")));
        }
        steps.push("`wgpt plan` shows what takes the memory".into());
        Some(steps.join("; "))
    }
}

impl PlanError {
    /// Adds the programs that hold memory of the device.
    pub(crate) fn with_holders(mut self, holding: Vec<MemoryHolder>) -> Self {
        if let PlanError::TooBig { holders, .. } = &mut self {
            *holders = holding;
        }
        self
    }
}

/// Formats programs and what they hold: `firefox (4711) 1.20 GiB, python3 (815) 4.00 GiB`.
pub(crate) fn listed(holders: &[MemoryHolder]) -> String {
    holders.iter().map(MemoryHolder::to_string).collect::<Vec<_>>().join(", ")
}

/// New values of settings, as they are typed.
pub type SettingValues = Vec<(&'static str, String)>;

/// A change of settings that makes the run fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    pub set: SettingValues,
    /// Peak memory with the change.
    pub predicted_bytes: u64,
}

impl Fix {
    /// Returns the flags to type: `--n_head=6 --n_embd=384`.
    pub fn flags(&self) -> String {
        let flags = self.set.iter().map(|(key, value)| format!("--{key}={value}"));
        flags.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.flags(), bytes(self.predicted_bytes))
    }
}

/// Layers, heads and width of OpenAI's GPT-2, the largest first, with their names.
pub(crate) const GPT2_SIZES: [([u32; 3], &str); 4] = [
    ([48, 25, 1600], "GPT-2 XL, 1.5B"),
    ([36, 20, 1280], "GPT-2 large, 774M"),
    ([24, 16, 1024], "GPT-2 medium, 350M"),
    ([12, 12, 768], "GPT-2, 124M"),
];

/// Default bytes of a logits chunk: enough rows to keep a large product busy, a fortieth of the logits of
/// 16 x 1024 tokens of GPT-2.
const LOGITS_BYTES: u64 = 64 << 20;

/// The most bytes that a logits chunk takes of the rest of the budget. Each chunk reads the embedding and
/// its gradient once more. That is a twentieth of a step with chunks of 64 MiB, and too little to count
/// with eight times as much.
const MAX_LOGITS_BYTES: u64 = 512 << 20;

/// Rows of a matrix product's tile on GPUs. A chunk that ends within a tile wastes the rest of it.
const TILE_ROWS: u64 = 128;

/// Largest number of shards of an embedding. Kernels have an argument for each.
pub(crate) const MAX_SHARDS: usize = 8;

/// Workgroups that share the rows of a layer norm's backward pass.
pub(crate) const NORM_GROUPS: usize = 128;

/// Rows of a half-precision embedding that sampling casts at a time.
pub(crate) const CAST_ROWS: usize = 4096;

/// The most elements that one transfer between device and host has: 4 MiB of f32. With whole
/// embeddings, a checkpoint would be the peak of a run's memory. With smaller pieces, submissions would
/// take longer than copies: a submission costs as much time as 1 MiB over PCI Express.
pub(crate) const STAGED_ELEMENTS: usize = 1 << 20;

/// Default limit of the sequences per micro-batch of an evaluation.
const EVAL_BATCH: u64 = 8;

impl Plan {
    /// Splits the step as `config` requests, for a vocabulary of `vocab` tokens.
    pub(crate) fn new(config: &Config, vocab: u32) -> Self {
        Self {
            grad_checkpoint: config.grad_checkpoint == Choice::True,
            offload_optimizer: config.offload_optimizer == Choice::True,
            ..Self::split(config, vocab, u64::from(config.micro_batch().get()))
        }
    }

    fn split(config: &Config, vocab: u32, micro_batch: u64) -> Self {
        let rows = micro_batch * u64::from(config.block_size.get());
        let loss_chunk = match u64::from(config.loss_chunk) {
            0 => (LOGITS_BYTES / (4 * u64::from(vocab.max(1)))).max(1).next_multiple_of(TILE_ROWS),
            requested => requested,
        };
        let eval_batch_size = match u64::from(config.eval_batch_size) {
            0 => micro_batch.min(EVAL_BATCH),
            requested => requested,
        };
        Self {
            micro_batch: micro_batch as usize,
            accumulation: (config.global_batch() / micro_batch) as usize,
            loss_chunk: loss_chunk.min(rows) as usize,
            grad_checkpoint: false,
            offload_optimizer: false,
            eval_batch_size: eval_batch_size as usize,
        }
    }
}

impl Plan {
    /// Doubles the logits chunk; `None` if it would be longer than a micro-batch, or so large that it would
    /// save nothing.
    pub(crate) fn with_larger_chunk(
        &self,
        config: &Config,
        vocab: u32,
        precision: Precision,
    ) -> Option<Self> {
        let row = precision.activation_bytes() * u64::from(padded_vocab(vocab));
        let rows = self.micro_batch * config.block_size.get() as usize;
        let most = rows.min((MAX_LOGITS_BYTES / row.max(1)) as usize);
        let loss_chunk = 2 * self.loss_chunk;
        (loss_chunk <= most).then(|| Self { loss_chunk, ..self.clone() })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "micro-batch {} x {} accumulation steps, logits chunk of {} rows, evaluation batch of {}",
            self.micro_batch, self.accumulation, self.loss_chunk, self.eval_batch_size
        )?;
        if self.grad_checkpoint {
            write!(f, ", activation checkpointing")?;
        }
        if self.offload_optimizer { write!(f, ", optimizer in host memory") } else { Ok(()) }
    }
}
