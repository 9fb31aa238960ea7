//! Chooses the fastest plan that fits.

use std::iter::successors;

use super::{Fix, Forecast, Kernels, Limits, MAX_LOGITS_BYTES, Plan, PlanError};
use crate::config::{Config, GradCheckpoint, bytes, padded_vocab};

/// The smallest automatic logits chunk in rows. A smaller one would save too little memory for the
/// additional launches.
const MIN_CHUNK: usize = 32;

/// Returns the fastest plan for a step of `config` that fits the limits: first with the requested
/// micro-batch, then with a smaller one and more accumulation, then with a smaller logits chunk,
/// then with activation checkpointing. A larger logits chunk takes what is left of the budget.
///
/// The global batch, the order of the data and the result of evaluations stay the same.
///
/// # Errors
/// If no plan fits, with changes to the configuration that would.
pub fn plan(config: &Config, vocab: u32, limits: &Limits) -> Result<Forecast, PlanError> {
    let forecast = |plan| Forecast::of(plan, config, vocab, limits);
    let mut candidates = candidates(config, vocab).into_iter().map(forecast);
    let Some(requested) = candidates.next() else { unreachable!("the first is as requested") };
    if requested.fits(limits) {
        return Ok(with_larger_chunk(requested, config, vocab, limits));
    }
    let mut least = requested.clone();
    for mut candidate in candidates {
        if candidate.fits(limits) {
            candidate.why = explain(&requested, &candidate, limits);
            return Ok(with_larger_chunk(candidate, config, vocab, limits));
        }
        if candidate.predicted_bytes < least.predicted_bytes {
            least = candidate;
        }
    }
    let need = least.largest_tensor;
    if let Some(have) = limits.largest_tensor.filter(|&have| need > have) {
        return Err(PlanError::TensorTooLarge { need, have });
    }
    let fixes = FixSearch { config, vocab, limits }.fixes(&least);
    Err(PlanError::TooBig { least: Box::new(least), fixes })
}

/// Doubles the logits chunk of a plan as long as it fits the budget, up to the whole micro-batch.
/// Without a budget, or with a chunk that is set, it stays. So does the CPU's, whose caches a larger
/// one exceeds.
fn with_larger_chunk(
    mut forecast: Forecast,
    config: &Config,
    vocab: u32,
    limits: &Limits,
) -> Forecast {
    if config.loss_chunk > 0 || limits.budget.is_none() || limits.kernels == Kernels::Cpu {
        return forecast;
    }
    let row = limits.precision.activation_bytes() * u64::from(padded_vocab(vocab));
    let rows = forecast.plan.micro_batch * config.block_size.get() as usize;
    let most = rows.min((MAX_LOGITS_BYTES / row.max(1)) as usize);
    while 2 * forecast.plan.loss_chunk <= most {
        let plan = Plan { loss_chunk: 2 * forecast.plan.loss_chunk, ..forecast.plan.clone() };
        let larger = Forecast::of(plan, config, vocab, limits);
        if !larger.fits(limits) {
            break;
        }
        forecast = Forecast { why: forecast.why, ..larger };
    }
    forecast
}

/// Returns the forecast of an earlier `plan`, if the configuration still requests the same split
/// and the plan fits. A resumed run is bit-identical only if its steps are split as before.
pub(crate) fn keep(
    config: &Config,
    before: &Config,
    plan: &Plan,
    vocab: u32,
    limits: &Limits,
) -> Option<Forecast> {
    let forecast = Forecast::of(plan.clone(), config, vocab, limits);
    let same_request = Plan::new(config, vocab) == Plan::new(before, vocab)
        && config.grad_checkpoint == before.grad_checkpoint;
    (same_request && forecast.fits(limits)).then_some(forecast)
}

/// Returns the next smaller plan for the same step: with half the micro-batch, then half the logits
/// chunk, then activation checkpointing. `None` if none is smaller.
pub(crate) fn smaller(plan: &Plan) -> Option<Plan> {
    let global = plan.micro_batch * plan.accumulation;
    if plan.micro_batch > 1 {
        let half = plan.micro_batch / 2;
        let micro_batch = (1..=half).rev().find(|&micro| global.is_multiple_of(micro))?;
        let accumulation = global / micro_batch;
        return Some(Plan { micro_batch, accumulation, ..plan.clone() });
    }
    if plan.loss_chunk >= 2 * MIN_CHUNK {
        return Some(Plan { loss_chunk: plan.loss_chunk / 2, ..plan.clone() });
    }
    (!plan.grad_checkpoint).then(|| Plan { grad_checkpoint: true, ..plan.clone() })
}

/// Lists the plans for a step, the fastest first; never empty.
fn candidates(config: &Config, vocab: u32) -> Vec<Plan> {
    let global = config.global_batch();
    let requested = u64::from(config.micro_batch().get());
    let micro_batches: Vec<u64> =
        (1..=requested).rev().filter(|&micro| global.is_multiple_of(micro)).collect();
    let checkpoints = match config.grad_checkpoint {
        GradCheckpoint::Auto => &[false, true][..],
        GradCheckpoint::True => &[true],
        GradCheckpoint::False => &[false],
    };
    let mut plans = Vec::new();
    for &checkpoint in checkpoints {
        for &micro in &micro_batches {
            plans.push(Plan::split(config, vocab, micro, checkpoint));
        }
        // Smaller logits chunks only if the smallest micro-batch is not enough.
        if config.loss_chunk == 0 {
            let smallest = Plan::split(config, vocab, 1, checkpoint);
            let parts = [2, 4, 8].map(|parts| smallest.loss_chunk / parts);
            let chunks = parts.into_iter().filter(|&chunk| chunk >= MIN_CHUNK);
            plans.extend(chunks.map(|loss_chunk| Plan { loss_chunk, ..smallest.clone() }));
        }
    }
    plans
}

/// Explains how and why the chosen plan differs from the requested one.
fn explain(requested: &Forecast, chosen: &Forecast, limits: &Limits) -> String {
    let mut changes = Vec::new();
    let (from, to) = (&requested.plan, &chosen.plan);
    if to.micro_batch != from.micro_batch {
        changes.push(format!("micro-batch {} instead of {}", to.micro_batch, from.micro_batch));
    }
    if to.loss_chunk < from.loss_chunk && to.micro_batch == 1 {
        changes.push(format!("logits chunk of {} rows", to.loss_chunk));
    }
    if to.grad_checkpoint && !from.grad_checkpoint {
        changes.push("activation checkpointing".to_string());
    }
    let need = requested.predicted_bytes;
    let reason = match limits.budget {
        Some(budget) if need > budget => {
            format!("the requested settings need {}, the budget is {}", bytes(need), bytes(budget))
        }
        _ => "with the requested settings a tensor exceeds the device's largest binding".into(),
    };
    format!("{}: {reason}", changes.join(", "))
}

/// Layers, heads and width of OpenAI's GPT-2, the largest first.
const GPT2_SIZES: [(u32, u32, u32); 4] =
    [(48, 25, 1600), (36, 20, 1280), (24, 16, 1024), (12, 12, 768)];

/// Searches for changes to a configuration that does not fit.
struct FixSearch<'a> {
    config: &'a Config,
    vocab: u32,
    limits: &'a Limits,
}

impl FixSearch<'_> {
    /// Returns up to three changes, each of which makes the run fit, the mildest first.
    fn fixes(&self, least: &Forecast) -> Vec<Fix> {
        let fixes = [
            self.checkpointing(),
            self.block_size(),
            self.layers(),
            self.heads(),
            self.gpt2_size(),
            self.budget(least),
        ];
        fixes.into_iter().flatten().take(3).collect()
    }

    fn checkpointing(&self) -> Option<Fix> {
        if self.config.grad_checkpoint != GradCheckpoint::False {
            return None;
        }
        let changed = Config { grad_checkpoint: GradCheckpoint::Auto, ..self.config.clone() };
        self.fix("--grad_checkpoint=auto".into(), &changed)
    }

    fn block_size(&self) -> Option<Fix> {
        let halves = successors(Some(self.config.block_size.get() / 2), |size| Some(size / 2));
        halves.take_while(|&size| size > 0).find_map(|size| {
            let changed = Config { block_size: size.try_into().ok()?, ..self.config.clone() };
            self.fix(format!("--block_size={size}"), &changed)
        })
    }

    fn layers(&self) -> Option<Fix> {
        let with_layers =
            |layers: u32| Some(Config { n_layer: layers.try_into().ok()?, ..self.config.clone() });
        let layers = self.largest(self.config.n_layer.get(), &with_layers)?;
        self.fix(format!("--n_layer={layers}"), &with_layers(layers)?)
    }

    /// Fewer heads of the same size.
    fn heads(&self) -> Option<Fix> {
        let head_size = self.config.n_embd.get() / self.config.n_head;
        let with_heads = |heads: u32| {
            let n_embd = (head_size * heads).try_into().ok()?;
            Some(Config { n_head: heads.try_into().ok()?, n_embd, ..self.config.clone() })
        };
        let heads = self.largest(self.config.n_head.get(), &with_heads)?;
        let changed = with_heads(heads)?;
        self.fix(format!("--n_head={heads} --n_embd={}", changed.n_embd), &changed)
    }

    fn gpt2_size(&self) -> Option<Fix> {
        let Config { n_layer, n_embd, .. } = *self.config;
        let smaller = GPT2_SIZES
            .into_iter()
            .filter(|&(layers, _, width)| layers < n_layer.get() && width < n_embd.get());
        smaller.into_iter().find_map(|(layers, heads, width)| {
            let changed = Config {
                n_layer: layers.try_into().ok()?,
                n_head: heads.try_into().ok()?,
                n_embd: width.try_into().ok()?,
                ..self.config.clone()
            };
            let option = format!("--n_layer={layers} --n_head={heads} --n_embd={width}");
            self.fix(option, &changed)
        })
    }

    /// A larger budget, up to the memory of the device.
    fn budget(&self, least: &Forecast) -> Option<Fix> {
        let predicted_bytes = least.predicted_bytes;
        if self.limits.memory.is_some_and(|memory| predicted_bytes > memory) {
            return None;
        }
        let mib = predicted_bytes.div_ceil(1 << 20);
        Some(Fix { option: format!("--vram_budget={mib}MiB"), predicted_bytes })
    }

    /// Returns the largest count below `end` whose configuration fits.
    fn largest(&self, end: u32, with_count: &dyn Fn(u32) -> Option<Config>) -> Option<u32> {
        let counts: Vec<u32> = (1..end).collect();
        // Memory grows with the count, so the counts that fit come first.
        let fits = |&count: &u32| {
            with_count(count).is_some_and(|changed| self.first_fit(&changed).is_some())
        };
        counts[..counts.partition_point(fits)].last().copied()
    }

    fn fix(&self, option: String, changed: &Config) -> Option<Fix> {
        let predicted_bytes = self.first_fit(changed)?.predicted_bytes;
        Some(Fix { option, predicted_bytes })
    }

    /// Returns the fastest plan that fits, without an explanation.
    fn first_fit(&self, config: &Config) -> Option<Forecast> {
        candidates(config, self.vocab)
            .into_iter()
            .map(|plan| Forecast::of(plan, config, self.vocab, self.limits))
            .find(|forecast| forecast.fits(self.limits))
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

    fn plan_with(config: &Config, budget: u64) -> Result<Forecast, PlanError> {
        plan(config, 50_257, &Limits { budget: Some(budget), pools: true, ..Limits::default() })
    }

    #[test]
    fn gpt2_needs_the_documented_memory() {
        for (flags, most) in [
            (&[("batch_size", "1")][..], 2.8),
            (&[("batch_size", "4")], 4.3),
            (&[("batch_size", "8"), ("grad_checkpoint", "true")], 3.2),
        ] {
            let requested = config("gpt2", flags);
            let limits =
                Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
            let forecast = plan(&requested, 50_257, &limits).unwrap();
            let gib = forecast.predicted_bytes as f64 / GIB as f64;
            assert!(gib < most && gib > 0.8 * most, "{flags:?}: {gib}");
            assert_eq!(forecast.why, "");
        }
    }

    #[test]
    fn a_smaller_budget_changes_the_split_in_order_and_never_the_global_batch() {
        let requested = config("gpt2", &[("batch_size", "12")]);
        let mut last = (usize::MAX, usize::MAX, false);
        let mut seen = std::collections::BTreeSet::new();
        for budget in (20..=90).rev().map(|tenth| tenth * GIB / 10) {
            match plan_with(&requested, budget) {
                Ok(forecast) => {
                    let plan = &forecast.plan;
                    assert!(forecast.predicted_bytes <= budget);
                    assert_eq!(plan.micro_batch * plan.accumulation, 480);
                    assert_eq!(forecast.why.is_empty(), plan.micro_batch == 12);
                    let now = (plan.micro_batch, plan.loss_chunk, plan.grad_checkpoint);
                    if now.2 == last.2 {
                        // A smaller micro-batch leaves more for the logits.
                        assert!((now.0, now.1) <= (last.0, last.1), "{last:?} then {now:?}");
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
        assert_eq!(seen.len(), 2, "with and without activation checkpointing");
    }

    #[test]
    fn the_logits_take_what_is_left_of_the_budget() {
        let requested = config("gpt2", &[("batch_size", "8")]);
        let default = Plan::new(&requested, 50_257).loss_chunk;
        let limits = |budget| Limits { budget, pools: true, ..Limits::default() };
        let chunk = |config: &Config, limits: &Limits| {
            let forecast = plan(config, 50_257, limits).unwrap();
            assert_eq!((forecast.plan.micro_batch, forecast.why.as_str()), (8, ""));
            forecast.plan.loss_chunk
        };
        assert_eq!(chunk(&requested, &limits(None)), default);
        let need = plan(&requested, 50_257, &limits(None)).unwrap().predicted_bytes;
        assert_eq!(chunk(&requested, &limits(Some(need))), default);
        // 309 MB of logits; twice as much is more than they ever take.
        assert_eq!(chunk(&requested, &limits(Some(2 * need))), 4 * default);
        let set = config("gpt2", &[("batch_size", "8"), ("loss_chunk", "256")]);
        assert_eq!(chunk(&set, &limits(Some(2 * need))), 256);
        let cpu = Limits { kernels: Kernels::Cpu, ..limits(Some(2 * need)) };
        assert_eq!(chunk(&requested, &cpu), default);
    }

    #[test]
    fn card_presets_fit_their_card_unchanged() {
        for (name, gigabytes) in
            [4, 6, 8, 12, 16, 24].map(|size| (format!("card-{size}gb"), size * 1_000_000_000))
        {
            let requested = config(&name, &[]);
            let forecast = plan_with(&requested, gigabytes / 10 * 9).unwrap();
            assert_eq!((forecast.why.as_str(), forecast.plan.grad_checkpoint), ("", false));
            assert_eq!(requested.global_batch(), 480, "{name}");
            // A batch half as large again does not fit.
            let more = (requested.batch_size.get() * 3).div_ceil(2).to_string();
            let larger = config(&name, &[("batch_size", more.as_str())]);
            assert_ne!(plan_with(&larger, gigabytes / 10 * 9).unwrap().why, "", "{name}");
        }
    }

    #[test]
    fn plans_respect_the_grad_checkpoint_setting() {
        let never = config("gpt2", &[("grad_checkpoint", "false")]);
        let error = plan_with(&never, 5 * GIB / 2).unwrap_err();
        let PlanError::TooBig { fixes, .. } = error else { panic!("{error}") };
        assert_eq!(fixes[0].option, "--grad_checkpoint=auto");
        let always = config("gpt2", &[("grad_checkpoint", "true")]);
        assert!(plan_with(&always, 20 * GIB).unwrap().plan.grad_checkpoint);
    }

    #[test]
    fn the_largest_binding_limits_the_micro_batch() {
        let requested = config("gpt2", &[("batch_size", "16")]);
        let limits = Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
        let forecast = plan(&requested, 50_257, &limits).unwrap();
        // 10,922 rows of 4 x 768 activations fill 128 MiB.
        assert_eq!(forecast.plan.micro_batch, 10);
        assert!(forecast.largest_tensor <= 128 << 20);
        let tiny = Limits { largest_tensor: Some(1 << 20), ..limits };
        assert!(matches!(plan(&requested, 50_257, &tiny), Err(PlanError::TensorTooLarge { .. })));
    }

    #[test]
    fn a_resumed_run_keeps_its_plan_if_it_fits() {
        let requested = config("gpt2", &[]);
        let small = plan_with(&requested, 4 * GIB).unwrap();
        let roomy = Limits { budget: Some(20 * GIB), pools: true, ..Limits::default() };
        let resumed = keep(&requested, &requested, &small.plan, 50_257, &roomy).unwrap();
        assert_eq!(resumed.plan, small.plan);
        let tight = Limits { budget: Some(2 * GIB), ..roomy };
        assert_eq!(keep(&requested, &requested, &small.plan, 50_257, &tight), None);
        let other = config("gpt2", &[("micro_batch", "1")]);
        assert_eq!(keep(&other, &requested, &small.plan, 50_257, &roomy), None);
    }

    #[test]
    fn smaller_plans_end_with_activation_checkpointing() {
        let mut plan = Plan {
            micro_batch: 12,
            accumulation: 40,
            loss_chunk: 100,
            grad_checkpoint: false,
            eval_batch_size: 8,
        };
        let mut seen = Vec::new();
        while let Some(next) = smaller(&plan) {
            assert_eq!(next.micro_batch * next.accumulation, 480);
            seen.push((next.micro_batch, next.loss_chunk, next.grad_checkpoint));
            plan = next;
        }
        let wanted =
            [(6, 100, false), (3, 100, false), (1, 100, false), (1, 50, false), (1, 50, true)];
        assert_eq!(seen, wanted);
    }
}
