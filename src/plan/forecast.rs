//! A plan with its predicted memory as a table of rows, and whether it fits.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::row::{Class, Row, total};
use super::rows::RunMemory;
use super::{Kernels, Limits, Plan};
use crate::config::Config;
use crate::text::{bytes, bytes_of};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    #[serde(flatten)]
    pub plan: Plan,
    /// Peak memory of the device.
    pub predicted_bytes: u64,
    /// `None` = no limit.
    pub budget_bytes: Option<u64>,
    pub largest_tensor: u64,
    /// The tensors that are live at the peak.
    pub rows: Vec<Row>,
    /// Bytes at the peak, by class.
    #[serde(default)]
    pub classes: BTreeMap<Class, u64>,
    /// Host memory without the program; empty without an offloaded optimizer.
    #[serde(default)]
    pub host_rows: Vec<Row>,
    #[serde(default)]
    pub host_bytes: u64,
    /// The limit of `host_bytes`; `None` = no limit. If the device uses the machine's memory, its rows
    /// are subtracted.
    #[serde(default)]
    pub host_budget_bytes: Option<u64>,
    /// How and why the plan differs from the requested one, and the cost in time; empty if it does not.
    pub why: String,
}

/// A page of the pool for small buffers (8 MiB), the driver's blocks for allocations smaller than a
/// page, on the device and for staging (4 MiB each), a slice of weights read for a checkpoint (4 MiB),
/// and ids, sums and masks (4 MiB).
const FIXED_SLACK: u64 = 24 << 20;

/// One in this many bytes of the pools is lost at the ends of pages, as measured (docs/memory.md).
const FRAGMENTATION: u64 = 32;

/// cubecl makes a page this much larger than the tensor that it is for, and rounds up to a multiple.
const PAGE_MARGIN: u64 = 1 << 20;

/// Predicts the bytes that pools hold beyond their tensors, which take `held` bytes.
///
/// The largest tensor, of `largest` bytes, fills a page; `next` is the size of the second largest. The
/// bound is a page and a quarter plus fragmentation or, if that is less, the rest of whole pages, where
/// the last page loses the room of four tensors of size `next`, at most three quarters. tests/budget
/// compares it with a driver that counts allocations.
fn pool_overhead(held: u64, largest: u64, next: u64) -> u64 {
    let page = (largest + PAGE_MARGIN).next_multiple_of(PAGE_MARGIN);
    let loose = page * 5 / 4 + held / FRAGMENTATION;
    let others = held.saturating_sub(largest);
    let lost = others / FRAGMENTATION + (4 * next).min(page * 3 / 4);
    let pages = 1 + (others + lost).div_ceil(page);
    loose.min((pages * page).saturating_sub(held))
}

/// The program, its threads and their buffers, on the CPU.
const HOST_SLACK: u64 = 48 << 20;

/// One in this many bytes on the CPU is lost between tensors: the allocator does not return it.
const HOST_FRAGMENTATION: u64 = 16;

/// Smallest page of the pools: holds several weights of a small model.
const MIN_PAGE: u64 = 8 << 20;

impl Forecast {
    pub(crate) fn of(plan: Plan, config: &Config, vocab: u32, limits: &Limits) -> Self {
        let memory = RunMemory::new(config, vocab, limits, &plan);
        let mut rows = memory.rows();
        let [largest_tensor, next, ..] = memory.largest_tensors();
        let held = total(&rows);
        let overhead = match limits.kernels {
            Kernels::Cpu => Some(HOST_SLACK + held / HOST_FRAGMENTATION),
            _ if !limits.pools => None,
            _ => Some(FIXED_SLACK + pool_overhead(held, largest_tensor.max(MIN_PAGE), next)),
        };
        if let Some(bytes) = overhead {
            rows.push(Row::new("allocator overhead", Class::Slack, bytes));
        }
        let mut classes = BTreeMap::new();
        for row in &rows {
            *classes.entry(row.class).or_insert(0) += row.bytes;
        }
        let host_rows = memory.host_rows();
        let predicted_bytes = total(&rows);
        let of_device = if limits.unified { predicted_bytes } else { 0 };
        let host_budget = limits.host_budget.filter(|_| !host_rows.is_empty());
        Self {
            plan,
            predicted_bytes,
            budget_bytes: limits.budget,
            largest_tensor,
            rows,
            classes,
            host_bytes: total(&host_rows),
            host_rows,
            host_budget_bytes: host_budget.map(|budget| budget.saturating_sub(of_device)),
            why: String::new(),
        }
    }

    /// Says in a line whether the run fits its budget.
    pub fn verdict(&self) -> String {
        let shortage = self.shortage();
        if !shortage.is_empty() {
            return format!("Does not fit: {shortage}");
        }
        let of_host = match (self.host_bytes, self.host_budget_bytes) {
            (0, _) => String::new(),
            (need, None) => format!(", and {} of host memory", bytes(need)),
            (need, Some(budget)) => format!(", and {} of host memory", bytes_of(need, budget)),
        };
        match self.budget_bytes {
            None => format!("Needs {}{of_host}; no budget is set", bytes(self.predicted_bytes)),
            Some(budget) => format!("Fits: {}{of_host}", bytes_of(self.predicted_bytes, budget)),
        }
    }

    /// Says what the run lacks of the device's memory, or else of the host's; empty if it fits both.
    pub(crate) fn shortage(&self) -> String {
        let need = self.predicted_bytes;
        let budget = self.budget_bytes.unwrap_or(u64::MAX);
        if need > budget {
            let [need, more, budget] = [need, need - budget, budget].map(bytes);
            return format!("needs {need}, {more} more than the budget of {budget}");
        }
        let [need, free] = [self.host_bytes, self.host_budget()].map(bytes);
        match self.host_budget_bytes {
            _ if self.fits_host() => String::new(),
            _ if cfg!(target_arch = "wasm32") => {
                "a browser cannot keep the optimizer in host memory".into()
            }
            Some(0) => format!("needs {need} of host memory, and none is free for a run"),
            _ => format!("needs {need} of host memory, but only {free} is free for a run"),
        }
    }

    /// Returns the page size for the pools, in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.largest_tensor.max(MIN_PAGE)
    }

    pub(super) fn fits(&self, limits: &Limits) -> bool {
        self.fits_device(limits) && self.fits_host()
    }

    /// Returns true if the device has the memory and can bind the largest tensor.
    pub(super) fn fits_device(&self, limits: &Limits) -> bool {
        self.fits_budget() && self.largest_tensor <= limits.largest_tensor.unwrap_or(u64::MAX)
    }

    pub(super) fn fits_budget(&self) -> bool {
        self.predicted_bytes <= self.budget_bytes.unwrap_or(u64::MAX)
    }

    pub(super) fn fits_host(&self) -> bool {
        self.host_bytes <= self.host_budget()
    }

    pub(super) fn host_budget(&self) -> u64 {
        self.host_budget_bytes.unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nmemory: {} predicted", self.plan, bytes(self.predicted_bytes))?;
        if let Some(budget) = self.budget_bytes {
            write!(f, ", budget {}", bytes(budget))?;
        }
        if self.host_bytes > 0 {
            write!(f, ", {} of host memory", bytes(self.host_bytes))?;
        }
        if self.why.is_empty() { Ok(()) } else { write!(f, "\n{}", self.why) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dtype;
    use crate::plan::work::tests::{VOCAB, gpt2};
    use crate::plan::{Fix, MemoryHolder, PlanError, gpu_named};

    const GIB: u64 = 1 << 30;

    fn forecast(config: &Config, limits: Limits) -> Forecast {
        Forecast::of(Plan::new(config, VOCAB), config, VOCAB, &limits)
    }

    /// Adds up the rows with these names.
    fn bytes(rows: &[Row], names: &[&str]) -> u64 {
        rows.iter().filter(|row| names.contains(&row.name.as_str())).map(|row| row.bytes).sum()
    }

    #[test]
    fn the_verdict_is_one_line() {
        let with = |predicted_bytes, budget_bytes| {
            let forecast = forecast(&gpt2(&[]), Limits::default());
            Forecast { predicted_bytes, budget_bytes, ..forecast }
        };
        let least = with(25 * GIB / 2, Some(11 * GIB));
        let text = "needs 12.50 GiB, 1.50 GiB more than the budget of 11.00 GiB";
        for (forecast, verdict) in [
            (with(GIB / 2, Some(11 * GIB)), "Fits: 0.50 of 11.00 GiB"),
            (with(GIB / 4, Some(GIB / 2)), "Fits: 256.00 of 512.00 MiB"),
            (with(3 * GIB, None), "Needs 3.00 GiB; no budget is set"),
            (least.clone(), format!("Does not fit: {text}").as_str()),
        ] {
            assert_eq!(forecast.verdict(), verdict);
        }
        let fixes = vec![Fix { set: vec![("n_layer", "2".into())], predicted_bytes: GIB }];
        let error = PlanError::TooBig { least: Box::new(least), fixes, holders: Vec::new() };
        assert_eq!(error.to_string(), format!("this run does not fit: {text}"));
        let hint = error.hint().unwrap();
        assert!(hint.starts_with("it would fit with --n_layer=2 (1.00 GiB); "), "{hint}");
        let holder = |name: &str, bytes| MemoryHolder { name: name.into(), bytes };
        let holders = vec![holder("python3 (7)", 4 * GIB), holder("firefox (12)", GIB)];
        let hint = error.with_holders(holders).hint().unwrap();
        let programs =
            "close programs on the GPU (python3 (7) 4.00 GiB, firefox (12) 1.00 GiB); it would";
        assert!(hint.starts_with(programs), "{hint}");
    }

    #[test]
    fn no_two_rows_have_one_name_and_their_sum_is_the_prediction() {
        for preset in crate::config::preset_names() {
            for kernels in [Kernels::Wgsl, Kernels::Cube, Kernels::Cpu] {
                let limits = Limits { kernels, pools: true, ..Limits::default() };
                let forecast = forecast(&Config::of_preset(preset, &[]), limits);
                let names: std::collections::BTreeSet<_> =
                    forecast.rows.iter().map(|row| &row.name).collect();
                assert_eq!(names.len(), forecast.rows.len(), "{:?}", forecast.rows);
                assert_eq!(total(&forecast.rows), forecast.predicted_bytes);
            }
        }
    }

    #[test]
    fn half_precision_halves_activations_and_keeps_copies_of_the_weights() {
        let matrices = gpu_named("RTX 4070").unwrap().abilities();
        let float16 = gpu_named("RX 6800").unwrap().abilities();
        let forecast = |abilities: crate::config::Abilities, kernels, dtype| {
            let precision = abilities.planned(dtype);
            let largest_tensor = Some(128 << 20);
            let limits =
                Limits { largest_tensor, pools: true, kernels, precision, ..Limits::default() };
            forecast(&gpt2(&[("batch_size", "8")]), limits)
        };
        const COPIES: &str = "half copies of weight matrices";
        const CAST: &str = "embedding in the activation dtype";
        let full = forecast(matrices, Kernels::Wgsl, Dtype::Float32);
        let half = forecast(matrices, Kernels::Wgsl, Dtype::Float16);
        // 12 matrices of C x C in each block, and the embedding of 50,304 rows.
        assert_eq!(bytes(&half.rows, &[COPIES]), 2 * (12 * 12 * 768 * 768 + 50_304 * 768));
        for (name, ratio) in [
            ("qkv", 2),
            ("MLP pre-activations", 2),
            ("logits chunk", 2),
            ("head input and its gradient", 2),
            ("layer norm and softmax statistics", 1),
            ("parameters", 1),
            ("embedding gradient", 1),
        ] {
            assert_eq!(ratio * bytes(&half.rows, &[name]), bytes(&full.rows, &[name]), "{name}");
        }
        // As the step of docs/memory.md, which takes 5.69 GiB in f32.
        let gib = half.predicted_bytes as f64 / GIB as f64;
        assert!((4.0..=4.3).contains(&gib), "{gib}");
        // Without matrices the weights are multiplied as they are; CUDA's products cast them.
        let stored = forecast(float16, Kernels::Wgsl, Dtype::Float16);
        let cast = forecast(float16, Kernels::Cube, Dtype::Float16);
        for (forecast, expected) in [
            (full, [false, false]),
            (half, [true, false]),
            (stored, [false, false]),
            (cast, [false, true]),
        ] {
            assert_eq!([COPIES, CAST].map(|name| bytes(&forecast.rows, &[name]) > 0), expected);
        }
    }

    /// Bytes per weight, without embedding gradients and activations.
    #[test]
    fn a_weight_takes_16_bytes_or_8_or_6_and_12_on_the_host() {
        let per_weight = |[optimizer, dtype]: [&str; 2], offload_optimizer| {
            let flags = [("optimizer", optimizer), ("dtype", dtype)];
            let config = Config::of_preset("gpt2-xl", &flags);
            let precision = gpu_named("RTX 4070").unwrap().abilities().planned(config.dtype);
            let limits = Limits { precision, pools: true, ..Limits::default() };
            let plan = Plan { offload_optimizer, ..Plan::new(&config, VOCAB) };
            let Forecast { rows, classes, host_rows, host_bytes, .. } =
                Forecast::of(plan, &config, VOCAB, &limits);
            let device = [Class::Weights, Class::Optimizer]
                .map(|class| classes.get(&class).copied().unwrap_or(0))
                .iter()
                .sum::<u64>()
                + bytes(&rows, &["accumulated gradients"]);
            assert_eq!(total(&host_rows), host_bytes);
            let host = host_bytes - bytes(&host_rows, &["staging"]);
            [device, host].map(|bytes| bytes as f64 / config.parameters(50_304) as f64)
        };
        // 94.7% of the weights are in the matrices of the blocks, and 0.1% in vectors.
        for (settings, offload, expected) in [
            (["adamw", "float32"], false, [16.0, 0.0]),
            (["adamw", "float32"], true, [8.0, 12.0]),
            (["adamw", "float16"], false, [18.0, 0.0]),
            (["adamw", "float16"], true, [6.0, 12.0]),
            (["muon", "float32"], false, [16.0 - 4.0 * 0.947, 0.0]),
            (["muon", "float32"], true, [8.0, 12.0 - 8.0 * 0.947]),
            (["muon", "float16"], true, [6.0, 12.0 - 4.0 * 0.947]),
        ] {
            let found = per_weight(settings, offload);
            let near = |(found, expected): (f64, f64)| (found - expected).abs() < 0.01;
            assert!(
                found.into_iter().zip(expected).all(near),
                "{settings:?}, {offload}: {found:?}"
            );
        }
    }

    #[test]
    fn gpt2_xl_does_not_fit_the_memory_of_a_small_machine() {
        let limits = Limits { kernels: Kernels::Cpu, ..Limits::default() };
        // Weights, gradients and moments alone take 23.2 GiB.
        let forecast = forecast(&Config::of_preset("gpt2-xl", &[]), limits);
        assert!(forecast.predicted_bytes > 24 * GIB);
    }
}
