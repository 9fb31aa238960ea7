//! From what is asked to how a step is cut and what it takes: pure, from the configuration and the
//! device's limits alone.

mod rows;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Config, GradCheckpoint, bytes};
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

/// What a device allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that the run may take; `None` for any number.
    pub budget: Option<u64>,
    /// Bytes that a kernel can be given at once; `None` for any number.
    pub largest_tensor: Option<u64>,
    /// Whether memory comes from the device's pools, which hold more than their tensors.
    pub pools: bool,
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
/// checkpoint (4 MiB), and 2 MiB for ids, sums and masks.
const FIXED_SLACK: u64 = 22 << 20;

/// Of pools: one part in so many of what is held lies in pages whose rest is too small for anything,
/// measured over models of many shapes (docs/memory.md). The last page is empty or nearly so.
const UNFILLED_SHARE: u64 = 25;

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
    fn of(plan: Plan, config: &Config, vocab: u32, limits: &Limits) -> Self {
        let sizes = Sizes::new(config, vocab);
        let mut rows = sizes.rows(&plan);
        let largest_tensor = sizes.largest_tensor(&plan, limits.largest_tensor);
        if limits.pools {
            let held: u64 = rows.iter().map(|row| row.bytes).sum();
            rows.push(Row {
                name: "unfilled pages, small tensors".into(),
                class: Class::Slack,
                bytes: FIXED_SLACK + page_bytes(largest_tensor) * 5 / 4 + held / UNFILLED_SHARE,
            });
        }
        Self {
            plan,
            predicted_bytes: rows.iter().map(|row| row.bytes).sum(),
            budget_bytes: limits.budget,
            largest_tensor,
            rows,
            why: String::new(),
        }
    }

    /// The size of pages that pools are to cut, in bytes.
    pub fn page_bytes(&self) -> u64 {
        page_bytes(self.largest_tensor)
    }

    /// Bytes of one class.
    pub fn class(&self, class: Class) -> u64 {
        self.rows.iter().filter(|row| row.class == class).map(|row| row.bytes).sum()
    }

    fn fits(&self, limits: &Limits) -> bool {
        limits.budget.is_none_or(|budget| self.predicted_bytes <= budget)
            && limits.largest_tensor.is_none_or(|largest| self.largest_tensor <= largest)
    }
}

/// The fastest way to run a step of `config` that fits: the micro-batch as asked, else a smaller one
/// with more accumulation, else fewer rows of logits, else blocks that are run again. The global
/// batch, the order of the data and the result of an evaluation stay as they are.
///
/// # Errors
/// When nothing fits, with changes that would.
pub fn plan(config: &Config, vocab: u32, limits: &Limits) -> Result<Forecast, PlanError> {
    let forecast = |plan| Forecast::of(plan, config, vocab, limits);
    let mut candidates = candidates(config, vocab).into_iter().map(forecast);
    let Some(asked) = candidates.next() else { unreachable!("a step can be cut as asked") };
    if asked.fits(limits) {
        return Ok(asked);
    }
    let mut least = asked.clone();
    for mut candidate in candidates {
        if candidate.fits(limits) {
            candidate.why = why(&asked, &candidate, limits);
            return Ok(candidate);
        }
        if candidate.predicted_bytes < least.predicted_bytes {
            least = candidate;
        }
    }
    let need = least.largest_tensor;
    if let Some(have) = limits.largest_tensor.filter(|&have| need > have) {
        return Err(PlanError::TensorTooLarge { need, have });
    }
    let fixes = fixes(config, vocab, limits, &least);
    Err(PlanError::TooBig { least: Box::new(least), fixes })
}

/// The plan that a run had before, if the configuration still asks for the same and it fits: a run
/// that goes on gives the same bits only if its steps are cut as they were.
pub fn keep(
    config: &Config,
    before: &Config,
    plan: &Plan,
    vocab: u32,
    limits: &Limits,
) -> Option<Forecast> {
    let forecast = Forecast::of(plan.clone(), config, vocab, limits);
    let asks_the_same = Plan::new(config, vocab) == Plan::new(before, vocab)
        && config.grad_checkpoint == before.grad_checkpoint;
    (asks_the_same && forecast.fits(limits)).then_some(forecast)
}

/// Ways to cut a step, the fastest first.
fn candidates(config: &Config, vocab: u32) -> Vec<Plan> {
    let global = config.global_batch();
    let asked = u64::from(config.micro_batch().get());
    let micro_batches: Vec<u64> =
        (1..=asked).rev().filter(|&micro| global.is_multiple_of(micro)).collect();
    let mut found = Vec::new();
    let checkpoints = match config.grad_checkpoint {
        GradCheckpoint::Auto => &[false, true][..],
        GradCheckpoint::True => &[true],
        GradCheckpoint::False => &[false],
    };
    for &checkpoint in checkpoints {
        for &micro in &micro_batches {
            found.push(Plan::cut(config, vocab, micro, checkpoint));
        }
        // Smaller chunks of logits only where the smallest micro-batch is not enough.
        if config.loss_chunk == 0 {
            let smallest = Plan::cut(config, vocab, 1, checkpoint);
            let halves = [2, 4, 8].map(|parts| smallest.loss_chunk / parts);
            let chunks = halves.into_iter().filter(|&chunk| chunk >= 32);
            found.extend(chunks.map(|loss_chunk| Plan { loss_chunk, ..smallest.clone() }));
        }
    }
    found
}

fn why(asked: &Forecast, chosen: &Forecast, limits: &Limits) -> String {
    let mut changes = Vec::new();
    let (from, to) = (&asked.plan, &chosen.plan);
    if to.micro_batch != from.micro_batch {
        changes.push(format!("micro-batch {} instead of {}", to.micro_batch, from.micro_batch));
    }
    if to.loss_chunk < from.loss_chunk && to.micro_batch == 1 {
        changes.push(format!("logits of {} rows at a time", to.loss_chunk));
    }
    if to.grad_checkpoint && !from.grad_checkpoint {
        changes.push("blocks are run again for their gradients".to_string());
    }
    let reason = match limits.budget {
        Some(budget) if asked.predicted_bytes > budget => {
            format!("as asked takes {} of {}", bytes(asked.predicted_bytes), bytes(budget))
        }
        _ => "a tensor would be larger than the device takes".to_string(),
    };
    format!("{}: {reason}", changes.join(", "))
}

/// Changes that make it fit, each by itself: at most three.
fn fixes(config: &Config, vocab: u32, limits: &Limits, least: &Forecast) -> Vec<Fix> {
    let mut found = Vec::new();
    let mut try_config = |option: String, changed: Config| {
        let fits = plan_quietly(&changed, vocab, limits);
        let fits = fits.map(|forecast| Fix { option, predicted_bytes: forecast.predicted_bytes });
        let known = fits.is_some();
        found.extend(fits);
        known
    };
    if config.grad_checkpoint == GradCheckpoint::False {
        let changed = Config { grad_checkpoint: GradCheckpoint::Auto, ..config.clone() };
        try_config("--grad_checkpoint=auto".into(), changed);
    }
    let halves = |from: u32| (0..).map(move |n| from >> (n + 1)).take_while(|&value| value > 0);
    for block_size in halves(config.block_size.get()) {
        let Ok(size) = block_size.try_into() else { break };
        let changed = Config { block_size: size, ..config.clone() };
        if try_config(format!("--block_size={block_size}"), changed) {
            break;
        }
    }
    for layers in (1..config.n_layer.get()).rev() {
        let Ok(n_layer) = layers.try_into() else { break };
        if try_config(format!("--n_layer={layers}"), Config { n_layer, ..config.clone() }) {
            break;
        }
    }
    for heads in (1..config.n_head.get()).rev() {
        let (Ok(n_head), width) = (heads.try_into(), config.n_embd.get() / config.n_head * heads)
        else {
            break;
        };
        let Ok(n_embd) = width.try_into() else { break };
        let changed = Config { n_head, n_embd, ..config.clone() };
        if try_config(format!("--n_head={heads} --n_embd={width}"), changed) {
            break;
        }
    }
    // A card has no more than it has: only as a last resort.
    let mib = least.predicted_bytes.div_ceil(1 << 20);
    found.push(Fix {
        option: format!("--vram_budget={mib}MiB"),
        predicted_bytes: least.predicted_bytes,
    });
    found.truncate(3);
    found
}

fn plan_quietly(config: &Config, vocab: u32, limits: &Limits) -> Option<Forecast> {
    candidates(config, vocab)
        .into_iter()
        .map(|plan| Forecast::of(plan, config, vocab, limits))
        .find(|forecast| forecast.fits(limits))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    const GIB: u64 = 1 << 30;

    fn config(preset: &str, flags: &[(&str, &str)]) -> Config {
        let flags = flags.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let layers = vec![Layer::preset(preset).unwrap(), Layer::flags(flags).unwrap()];
        resolve(layers).unwrap().config
    }

    fn on_card(config: &Config, budget: u64) -> Result<Forecast, PlanError> {
        plan(config, 50_257, &Limits { budget: Some(budget), largest_tensor: None, pools: true })
    }

    #[test]
    fn gpt2_takes_what_was_promised() {
        for (flags, most) in [
            (&[("batch_size", "1")][..], 2.8),
            (&[("batch_size", "4")], 4.3),
            (&[("batch_size", "8"), ("grad_checkpoint", "true")], 3.2),
        ] {
            let asked = config("gpt2", flags);
            let limits = Limits { budget: None, largest_tensor: Some(128 << 20), pools: true };
            let forecast = plan(&asked, 50_257, &limits).unwrap();
            let gib = forecast.predicted_bytes as f64 / GIB as f64;
            assert!(gib < most && gib > 0.8 * most, "{flags:?}: {gib}");
            assert_eq!(forecast.why, "");
        }
    }

    #[test]
    fn less_budget_changes_the_cut_in_order_and_never_the_batch() {
        let asked = config("gpt2", &[("batch_size", "12")]);
        let mut last = (usize::MAX, usize::MAX, false);
        let mut seen = std::collections::BTreeSet::new();
        for budget in (20..=90).rev().map(|tenth| tenth * GIB / 10) {
            match on_card(&asked, budget) {
                Ok(forecast) => {
                    let plan = &forecast.plan;
                    assert!(forecast.predicted_bytes <= budget);
                    assert_eq!(plan.micro_batch * plan.accumulation, 480);
                    assert_eq!(forecast.why.is_empty(), plan.micro_batch == 12);
                    let now = (plan.micro_batch, plan.loss_chunk, plan.grad_checkpoint);
                    if now.2 == last.2 {
                        assert!(now.0 <= last.0 && now.1 <= last.1, "{last:?} then {now:?}");
                    }
                    seen.insert(now.2);
                    last = now;
                }
                Err(PlanError::TooBig { least, fixes }) => {
                    assert!(least.predicted_bytes > budget);
                    assert_eq!(fixes.len(), 3, "{fixes:?}");
                    assert!(fixes.iter().take(2).all(|fix| fix.predicted_bytes <= budget));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(seen.len(), 2, "both with and without running blocks again");
    }

    #[test]
    fn what_is_forbidden_is_not_chosen() {
        let never = config("gpt2", &[("grad_checkpoint", "false")]);
        let error = on_card(&never, 5 * GIB / 2).unwrap_err();
        let PlanError::TooBig { fixes, .. } = error else { panic!("{error}") };
        assert_eq!(fixes[0].option, "--grad_checkpoint=auto");
        let always = config("gpt2", &[("grad_checkpoint", "true")]);
        assert!(on_card(&always, 20 * GIB).unwrap().plan.grad_checkpoint);
    }

    #[test]
    fn a_tensor_that_the_device_cannot_take_cuts_the_batch() {
        let asked = config("gpt2", &[("batch_size", "16")]);
        let limits = Limits { budget: None, largest_tensor: Some(128 << 20), pools: true };
        let forecast = plan(&asked, 50_257, &limits).unwrap();
        // 4 x 768 wide activations of 10,922 rows fill 128 MiB.
        assert_eq!(forecast.plan.micro_batch, 10);
        assert!(forecast.largest_tensor <= 128 << 20);
        let tiny = Limits { largest_tensor: Some(1 << 20), ..limits };
        assert!(matches!(plan(&asked, 50_257, &tiny), Err(PlanError::TensorTooLarge { .. })));
    }

    #[test]
    fn a_run_that_goes_on_keeps_its_plan_while_it_fits() {
        let asked = config("gpt2", &[]);
        let small = on_card(&asked, 4 * GIB).unwrap();
        let roomy = Limits { budget: Some(20 * GIB), largest_tensor: None, pools: true };
        let kept = keep(&asked, &asked, &small.plan, 50_257, &roomy).unwrap();
        assert_eq!(kept.plan, small.plan);
        let tight = Limits { budget: Some(2 * GIB), ..roomy };
        assert_eq!(keep(&asked, &asked, &small.plan, 50_257, &tight), None);
        let other = config("gpt2", &[("micro_batch", "1")]);
        assert_eq!(keep(&other, &asked, &small.plan, 50_257, &roomy), None);
    }
}
