//! Plans how a step is split, and predicts its memory and the time and disk of the whole run, from
//! the configuration and what is known of the device alone.

mod choice;
mod gpus;
mod limits;
pub(crate) mod products;
mod rows;
mod speed;
mod totals;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, GradCheckpoint, bytes};
pub use choice::plan;
pub(crate) use choice::{keep, smaller};
pub use gpus::{Gpu, gpu_named, gpu_names};
pub use limits::{BROWSER_BUDGET, DeviceMemory, DeviceProfile, Kernels, Limits};
use rows::Sizes;
pub use rows::{Class, Row};
pub use speed::{DeviceSpeed, SpeedPoint, Work};
pub use totals::{DataSize, TimeEstimate, Totals, duration, within};

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
    #[error("this run does not fit: {}{}", least.shortage(), Fix::offer(fixes))]
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

impl Fix {
    /// Returns the end of a refusal that offers `fixes`.
    fn offer(fixes: &[Fix]) -> String {
        if fixes.is_empty() {
            return String::new();
        }
        let fixes: Vec<String> = fixes.iter().map(Fix::to_string).collect();
        format!("; it would fit with {}", fixes.join(", or "))
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.option, bytes(self.predicted_bytes))
    }
}

/// Default size of a logits chunk in bytes: enough rows to keep a large product busy, a fortieth of
/// the logits of 16 x 1024 tokens of GPT-2.
const LOGITS_BYTES: u64 = 64 << 20;

/// The most that it takes of what is left of the budget, in bytes. Each chunk reads the embedding
/// and its gradient once more, which 64 MiB makes a twentieth of a step; eight times as much makes
/// the rest too small to count.
const MAX_LOGITS_BYTES: u64 = 512 << 20;

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

/// Fixed overhead on the CPU, in bytes: the program, its threads and their buffers.
const HOST_SLACK: u64 = 48 << 20;

/// One in this many bytes on the CPU is lost between tensors: freed memory that the allocator has
/// not returned.
const HOST_FRAGMENTATION: u64 = 16;

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
        let sizes = Sizes::new(config, vocab, limits);
        let mut rows = sizes.rows(&plan);
        let [largest_tensor, next, ..] = sizes.largest_tensors(&plan, limits.largest_tensor);
        let held: u64 = rows.iter().map(|row| row.bytes).sum();
        let overhead = match limits.kernels {
            Kernels::Cpu => Some(HOST_SLACK + held / HOST_FRAGMENTATION),
            _ if !limits.pools => None,
            _ => Some(FIXED_SLACK + pool_overhead(held, page_bytes(largest_tensor), next)),
        };
        if let Some(bytes) = overhead {
            rows.push(Row { name: "allocator overhead".into(), class: Class::Slack, bytes });
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

    /// Returns whether the run fits its budget, as a line for the user.
    pub fn verdict(&self) -> String {
        let need = self.predicted_bytes;
        match self.budget_bytes {
            None => format!("Needs {}; no budget is set", bytes(need)),
            Some(budget) if need <= budget => {
                let [need, budget] = [need, budget].map(|bytes| bytes as f64);
                let (unit, name) = unit(budget);
                format!("Fits: {:.2} of {:.2} {name}", need / unit, budget / unit)
            }
            Some(_) => format!("Does not fit: {}", self.shortage()),
        }
    }

    fn shortage(&self) -> String {
        let (need, budget) = (self.predicted_bytes, self.budget_bytes.unwrap_or(0));
        let (need, more) = (bytes(need), bytes(need.saturating_sub(budget)));
        format!("needs {need}, {more} more than the budget of {}", bytes(budget))
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

/// Returns the unit in which `bytes` are shown, and its name.
fn unit(bytes: f64) -> (f64, &'static str) {
    match bytes {
        ..1_073_741_824.0 => (1_048_576.0, "MiB"),
        _ => (1_073_741_824.0, "GiB"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Abilities, Dtype, Layer, Matrices, resolve};

    const GIB: u64 = 1 << 30;

    fn forecast(preset: &str, limits: Limits) -> Forecast {
        let config = resolve(vec![Layer::preset(preset).unwrap()]).unwrap().config;
        Forecast::of(Plan::new(&config, 50_257), &config, 50_257, &limits)
    }

    #[test]
    fn the_verdict_is_one_line() {
        let verdict = |predicted_bytes, budget_bytes| {
            let forecast = forecast("gpt2", Limits::default());
            Forecast { predicted_bytes, budget_bytes, ..forecast }.verdict()
        };
        assert_eq!(verdict(GIB / 2, Some(11 * GIB)), "Fits: 0.50 of 11.00 GiB");
        assert_eq!(verdict(GIB / 4, Some(GIB / 2)), "Fits: 256.00 of 512.00 MiB");
        assert_eq!(verdict(3 * GIB, None), "Needs 3.00 GiB; no budget is set");
        let text = "needs 12.50 GiB, 1.50 GiB more than the budget of 11.00 GiB";
        assert_eq!(verdict(25 * GIB / 2, Some(11 * GIB)), format!("Does not fit: {text}"));
        let fix = Fix { option: "--n_layer=2".into(), predicted_bytes: GIB };
        let error = |fixes| {
            let least = Forecast {
                predicted_bytes: 25 * GIB / 2,
                budget_bytes: Some(11 * GIB),
                ..forecast("gpt2", Limits::default())
            };
            PlanError::TooBig { least: Box::new(least), fixes }.to_string()
        };
        assert_eq!(error(Vec::new()), format!("this run does not fit: {text}"));
        assert!(error(vec![fix]).ends_with("; it would fit with --n_layer=2 (1.00 GiB)"));
    }

    #[test]
    fn no_two_rows_have_one_name_and_their_sum_is_the_prediction() {
        for preset in crate::config::preset_names() {
            for kernels in [Kernels::Wgsl, Kernels::Cube, Kernels::Cpu] {
                let limits = Limits { kernels, pools: true, ..Limits::default() };
                let forecast = forecast(preset, limits);
                let names: std::collections::BTreeSet<_> =
                    forecast.rows.iter().map(|row| &row.name).collect();
                assert_eq!(names.len(), forecast.rows.len(), "{:?}", forecast.rows);
                let sum: u64 = forecast.rows.iter().map(|row| row.bytes).sum();
                assert_eq!(sum, forecast.predicted_bytes);
            }
        }
    }

    #[test]
    fn half_precision_halves_activations_and_keeps_copies_of_the_weights() {
        let flags = [("batch_size".to_string(), "8".to_string())];
        let layers = vec![Layer::preset("gpt2").unwrap(), Layer::flags(flags).unwrap()];
        let config = resolve(layers).unwrap().config;
        let forecast = |abilities: Abilities, kernels, dtype| {
            let largest_tensor = Some(128 << 20);
            let precision = abilities.planned(dtype);
            let limits =
                Limits { largest_tensor, pools: true, kernels, precision, ..Limits::default() };
            Forecast::of(Plan::new(&config, 50_257), &config, 50_257, &limits)
        };
        let bytes = |forecast: &Forecast, name: &str| {
            let row = forecast.rows.iter().find(|row| row.name == name);
            row.map_or(0, |row| row.bytes)
        };
        const COPIES: &str = "half copies of weight matrices";
        const CAST: &str = "embedding in the activation dtype";
        let float16 = Abilities { float16: true, ..Abilities::default() };
        let matrices = Abilities { matrices: Some(Matrices::Sixteen), ..float16 };
        let full = forecast(matrices, Kernels::Wgsl, Dtype::Float32);
        let half = forecast(matrices, Kernels::Wgsl, Dtype::Float16);
        // 12 matrices of C x C in each block, and the embedding of 50,304 rows.
        assert_eq!(bytes(&half, COPIES), 2 * (12 * 12 * 768 * 768 + 50_304 * 768));
        for name in ["qkv", "MLP pre-activations", "logits chunk", "head input and its gradient"] {
            assert_eq!(2 * bytes(&half, name), bytes(&full, name), "{name}");
        }
        for name in ["layer norm and softmax statistics", "parameters", "embedding gradient"] {
            assert_eq!(bytes(&half, name), bytes(&full, name), "{name}");
        }
        // As the step of docs/memory.md, which takes 5.69 GiB in f32.
        let gib = half.predicted_bytes as f64 / GIB as f64;
        assert!((4.0..=4.3).contains(&gib), "{gib}");
        // Without matrices the weights are multiplied as they are; CUDA's products cast them.
        let stored = forecast(float16, Kernels::Wgsl, Dtype::Float16);
        let cast = forecast(float16, Kernels::Cube, Dtype::Float16);
        for (forecast, of_copies, of_cast) in [
            (&full, false, false),
            (&half, true, false),
            (&stored, false, false),
            (&cast, false, true),
        ] {
            assert_eq!(
                (bytes(forecast, COPIES) > 0, bytes(forecast, CAST) > 0),
                (of_copies, of_cast)
            );
        }
    }

    #[test]
    fn gpt2_xl_does_not_fit_the_memory_of_a_small_machine() {
        let limits = Limits { kernels: Kernels::Cpu, ..Limits::default() };
        // Weights, gradients and moments alone take 23.2 GiB.
        assert!(forecast("gpt2-xl", limits).predicted_bytes > 24 * GIB);
    }
}
