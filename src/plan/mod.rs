//! From what is asked to how a step is cut and what it takes: pure, from the configuration and the
//! device's limits alone.

mod choice;
mod limits;
mod rows;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, GradCheckpoint, bytes};
pub use choice::{keep, plan, smaller};
pub use limits::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Limits};
use rows::Sizes;
pub use rows::{Class, Row};

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

/// A plan and what it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// How a step is cut.
    #[serde(flatten)]
    pub plan: Plan,
    /// Bytes at the fullest moment.
    pub predicted_bytes: u64,
    /// Bytes that may be taken; `None` for any number.
    pub budget_bytes: Option<u64>,
    /// The largest single tensor, in bytes.
    pub largest_tensor: u64,
    /// What is there at that moment.
    pub rows: Vec<Row>,
    /// Their sums by class.
    #[serde(default)]
    pub classes: BTreeMap<Class, u64>,
    /// Why not as asked; empty if it is.
    pub why: String,
}

/// Why no plan was made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Nothing fits the budget.
    #[error(
        "this run needs {} of memory at the least, the budget is {}; it would fit with {}",
        bytes(least.predicted_bytes),
        bytes(least.budget_bytes.unwrap_or(0)),
        fixes.iter().map(Fix::to_string).collect::<Vec<_>>().join(", or ")
    )]
    TooBig {
        /// The plan that needs the least.
        least: Box<Forecast>,
        /// What would fit, the mildest change first.
        fixes: Vec<Fix>,
    },
    /// One tensor is more than the device takes, however the step is cut.
    #[error(
        "one tensor of this model takes {}, the device takes at most {}",
        bytes(*need),
        bytes(*have)
    )]
    TensorTooLarge {
        /// Its bytes.
        need: u64,
        /// The most that a kernel can be given.
        have: u64,
    },
}

/// A change that makes a configuration fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fix {
    /// The option as it is typed.
    pub option: String,
    /// What the run takes then, in bytes.
    pub predicted_bytes: u64,
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.option, bytes(self.predicted_bytes))
    }
}

/// Logits that exist at a time where nothing else is asked, in bytes: enough rows to keep a large
/// product busy, a fortieth of what 16 x 1024 tokens of GPT-2 would take.
const LOGITS_BYTES: u64 = 64 << 20;

/// Rows of a product's tile on graphics cards: a chunk that ends within one wastes the rest of it.
const TILE_ROWS: u64 = 128;

/// Sequences of an evaluation's micro-batch where nothing else is asked.
const EVAL_BATCH: u64 = 8;

/// A page of the pools for small tensors (8 MiB), blocks of the driver for what is smaller than a
/// page, on the device and for staging (4 MiB each), a slice of weights that is read for a
/// checkpoint (4 MiB), and 4 MiB for ids, sums and masks.
const FIXED_SLACK: u64 = 24 << 20;

/// Of pools: one part in so many of what is held lies in pages whose rest is too small for anything,
/// measured over models of many shapes (docs/memory.md). The last page is empty or nearly so.
const UNFILLED_SHARE: u64 = 32;

/// What pages of `page` bytes hold beyond tensors of `held` bytes, of which the largest has a page to
/// itself and `next` is the size after that: a page and a quarter, and a share of all. Where that is
/// less, what is left of whole pages, of which the room for four of the next size is lost, or three
/// quarters of one. Of 161 random runs on a driver that counts (tests/budget), with the rest of
/// the slack, the closest was 2 MiB below the prediction.
fn unfilled(held: u64, page: u64, next: u64) -> u64 {
    let loosely = page * 5 / 4 + held / UNFILLED_SHARE;
    let others = held.saturating_sub(page);
    let lost = others / UNFILLED_SHARE + (4 * next).min(page * 3 / 4);
    let pages = 1 + (others + lost).div_ceil(page);
    loosely.min((pages * page).saturating_sub(held))
}

/// The least size of a pool's pages, in bytes: several weights of a small model to a page.
const LEAST_PAGE: u64 = 8 << 20;

/// The size of pages that pools are to cut for tensors of up to `largest` bytes.
fn page_bytes(largest: u64) -> u64 {
    largest.max(LEAST_PAGE)
}

impl Plan {
    /// Cuts the step of `config` over a vocabulary of `vocab` tokens as it asks for.
    pub fn new(config: &Config, vocab: u32) -> Self {
        let checkpoint = config.grad_checkpoint == GradCheckpoint::True;
        Self::cut(config, vocab, u64::from(config.micro_batch().get()), checkpoint)
    }

    fn cut(config: &Config, vocab: u32, micro_batch: u64, grad_checkpoint: bool) -> Self {
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
            accumulation: (config.global_batch() / micro_batch) as usize,
            loss_chunk: loss_chunk.min(rows) as usize,
            grad_checkpoint,
            eval_batch_size: eval_batch_size as usize,
        }
    }
}

impl Forecast {
    /// What `plan` takes.
    pub fn of(plan: Plan, config: &Config, vocab: u32, limits: &Limits) -> Self {
        let sizes = Sizes::new(config, vocab, limits.cube);
        let mut rows = sizes.rows(&plan);
        let [largest_tensor, next, ..] = sizes.largest_tensors(&plan, limits.largest_tensor);
        if limits.pools {
            let held: u64 = rows.iter().map(|row| row.bytes).sum();
            rows.push(Row {
                name: "unfilled pages, small tensors".into(),
                class: Class::Slack,
                bytes: FIXED_SLACK + unfilled(held, page_bytes(largest_tensor), next),
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

    /// The size of pages that pools are to cut, in bytes.
    pub fn page_bytes(&self) -> u64 {
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
            "micro-batch {} x {}, logits {} rows at a time, evaluation {} sequences at a time",
            self.micro_batch, self.accumulation, self.loss_chunk, self.eval_batch_size
        )?;
        if self.grad_checkpoint { write!(f, ", blocks run again") } else { Ok(()) }
    }
}
