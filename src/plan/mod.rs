//! Plans how a step is split and predicts its memory, from the configuration and the limits of the
//! device alone.

mod choice;
mod limits;
mod rows;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, GradCheckpoint, bytes};
pub use choice::plan;
pub(crate) use choice::{keep, smaller};
pub use limits::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Limits};
use rows::Sizes;
pub use rows::{Class, Row};

/// The split of a step into micro-batches and chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Sequences on the device at once.
    pub micro_batch: usize,
    /// Micro-batches per update; `micro_batch * accumulation` is the global batch.
    pub accumulation: usize,
    /// Rows of logits computed at once.
    pub loss_chunk: usize,
    /// Activation checkpointing: blocks save only their inputs and are recomputed in the backward
    /// pass.
    #[serde(default)]
    pub grad_checkpoint: bool,
    /// Sequences per micro-batch of an evaluation.
    pub eval_batch_size: usize,
}

/// A plan and its predicted memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// How a step is split.
    #[serde(flatten)]
    pub plan: Plan,
    /// Peak memory in bytes.
    pub predicted_bytes: u64,
    /// Bytes that the run may use; `None` = no limit.
    pub budget_bytes: Option<u64>,
    /// The largest single tensor, in bytes.
    pub largest_tensor: u64,
    /// The tensors that are live at the peak.
    pub rows: Vec<Row>,
    /// Bytes at the peak, by class.
    #[serde(default)]
    pub classes: BTreeMap<Class, u64>,
    /// How and why the plan differs from the requested settings; empty if it does not.
    pub why: String,
}

/// An error of [`plan()`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// No plan fits the budget.
    #[error(
        "this run needs at least {} of memory, but the budget is {}; it would fit with {}",
        bytes(least.predicted_bytes),
        bytes(least.budget_bytes.unwrap_or(0)),
        fixes.iter().map(Fix::to_string).collect::<Vec<_>>().join(", or ")
    )]
    TooBig {
        /// The plan that needs the least memory.
        least: Box<Forecast>,
        /// Changes that would fit, the mildest first.
        fixes: Vec<Fix>,
    },
    /// A tensor is larger than the device can bind, however the step is split.
    #[error(
        "this model has a tensor of {}, but the device binds at most {} at once",
        bytes(*need),
        bytes(*have)
    )]
    TensorTooLarge {
        /// Size of the tensor in bytes.
        need: u64,
        /// The largest binding of the device in bytes.
        have: u64,
    },
}

/// A change that makes the run fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The flags to type.
    pub option: String,
    /// Peak memory with the change, in bytes.
    pub predicted_bytes: u64,
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.option, bytes(self.predicted_bytes))
    }
}

/// Default size of a logits chunk in bytes: enough rows to keep a large product busy, a fortieth of
/// the logits of 16 x 1024 tokens of GPT-2.
const LOGITS_BYTES: u64 = 64 << 20;

/// Rows of a matrix product's tile on GPUs; a chunk that ends within a tile wastes the rest of it.
const TILE_ROWS: u64 = 128;

/// Default limit of the sequences per micro-batch of an evaluation.
const EVAL_BATCH: u64 = 8;

/// Fixed overhead in bytes: a page of the pool for small buffers (8 MiB), the driver's blocks for
/// allocations smaller than a page, on the device and for staging (4 MiB each), a slice of weights
/// read for a checkpoint (4 MiB), and ids, sums and masks (4 MiB).
const FIXED_SLACK: u64 = 24 << 20;

/// One in this many bytes of the pools is lost at the ends of pages, measured over models of many
/// shapes (docs/memory.md).
const FRAGMENTATION: u64 = 32;

/// Predicts the bytes that pools hold beyond their tensors.
///
/// The tensors take `held` bytes in pages of `page` bytes. The largest fills a page, and `next` is
/// the size of the second largest. The bound is a page and a quarter plus fragmentation or, if that
/// is less, the rest of whole pages, where the last page loses the room of four tensors of size
/// `next`, at most three quarters. In 161 random runs on a driver that counts allocations
/// (tests/budget), the peak stayed at least 2 MiB below the prediction.
fn pool_overhead(held: u64, page: u64, next: u64) -> u64 {
    let loose = page * 5 / 4 + held / FRAGMENTATION;
    let others = held.saturating_sub(page);
    let lost = others / FRAGMENTATION + (4 * next).min(page * 3 / 4);
    let pages = 1 + (others + lost).div_ceil(page);
    loose.min((pages * page).saturating_sub(held))
}

/// Smallest page of the pools in bytes: holds several weights of a small model.
const MIN_PAGE: u64 = 8 << 20;

/// Returns the page size of the pools, in bytes, for tensors of up to `largest` bytes.
fn page_bytes(largest: u64) -> u64 {
    largest.max(MIN_PAGE)
}

impl Plan {
    /// Splits the step as `config` requests, for a vocabulary of `vocab` tokens.
    pub(crate) fn new(config: &Config, vocab: u32) -> Self {
        let checkpoint = config.grad_checkpoint == GradCheckpoint::True;
        Self::split(config, vocab, u64::from(config.micro_batch().get()), checkpoint)
    }

    fn split(config: &Config, vocab: u32, micro_batch: u64, grad_checkpoint: bool) -> Self {
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
            grad_checkpoint,
            eval_batch_size: eval_batch_size as usize,
        }
    }
}

impl Forecast {
    /// Predicts the memory of `plan`.
    pub(crate) fn of(plan: Plan, config: &Config, vocab: u32, limits: &Limits) -> Self {
        let sizes = Sizes::new(config, vocab, limits.cube);
        let mut rows = sizes.rows(&plan);
        let [largest_tensor, next, ..] = sizes.largest_tensors(&plan, limits.largest_tensor);
        if limits.pools {
            let held: u64 = rows.iter().map(|row| row.bytes).sum();
            rows.push(Row {
                name: "allocator overhead".into(),
                class: Class::Slack,
                bytes: FIXED_SLACK + pool_overhead(held, page_bytes(largest_tensor), next),
            });
        }
        let mut classes = BTreeMap::new();
        for row in &rows {
            *classes.entry(row.class).or_insert(0) += row.bytes;
        }
        Self {
            plan,
            predicted_bytes: rows.iter().map(|row| row.bytes).sum(),
            budget_bytes: limits.budget,
            largest_tensor,
            rows,
            classes,
            why: String::new(),
        }
    }

    /// Returns the page size for the pools, in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        page_bytes(self.largest_tensor)
    }

    fn fits(&self, limits: &Limits) -> bool {
        limits.budget.is_none_or(|budget| self.predicted_bytes <= budget)
            && limits.largest_tensor.is_none_or(|largest| self.largest_tensor <= largest)
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nmemory: {} predicted", self.plan, bytes(self.predicted_bytes))?;
        if let Some(budget) = self.budget_bytes {
            write!(f, ", budget {}", bytes(budget))?;
        }
        if self.why.is_empty() { Ok(()) } else { write!(f, "\n{}", self.why) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "micro-batch {} x {} accumulation steps, logits chunk of {} rows, evaluation batch of {}",
            self.micro_batch, self.accumulation, self.loss_chunk, self.eval_batch_size
        )?;
        if self.grad_checkpoint { write!(f, ", activation checkpointing") } else { Ok(()) }
    }
}
