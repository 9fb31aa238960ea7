//! Which of the ways to cut a step is taken.

use super::{Fix, Forecast, Limits, Plan, PlanError};
use crate::config::{Config, GradCheckpoint, bytes};

/// Rows of logits below which a smaller chunk frees nothing worth its launches.
const LEAST_CHUNK: usize = 32;

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

/// The next smaller way to run the same step, if there is any: half the micro-batch, then fewer rows
/// of logits, then blocks that are run again.
pub fn smaller(plan: &Plan) -> Option<Plan> {
    let global = plan.micro_batch * plan.accumulation;
    if plan.micro_batch > 1 {
        let half = plan.micro_batch / 2;
        let micro_batch = (1..=half).rev().find(|&micro| global.is_multiple_of(micro))?;
        let accumulation = global / micro_batch;
        return Some(Plan { micro_batch, accumulation, ..plan.clone() });
    }
    if plan.loss_chunk >= 2 * LEAST_CHUNK {
        return Some(Plan { loss_chunk: plan.loss_chunk / 2, ..plan.clone() });
    }
    (!plan.grad_checkpoint).then(|| Plan { grad_checkpoint: true, ..plan.clone() })
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
            let chunks = halves.into_iter().filter(|&chunk| chunk >= LEAST_CHUNK);
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

/// Layers, heads and width of OpenAI's GPT-2, the largest first.
const GPT2_SIZES: [(u32, u32, u32); 4] =
    [(48, 25, 1600), (36, 20, 1280), (24, 16, 1024), (12, 12, 768)];

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
    let largest = |counts: std::ops::Range<u32>, with: &dyn Fn(u32) -> Option<Config>| {
        let counts: Vec<u32> = counts.collect();
        // More of them never takes less.
        let fits = |&count: &u32| {
            with(count).is_some_and(|changed| plan_quietly(&changed, vocab, limits).is_some())
        };
        counts[..counts.partition_point(fits)].last().copied()
    };
    let halves = |from: u32| (0..).map(move |n| from >> (n + 1)).take_while(|&value| value > 0);
    for block_size in halves(config.block_size.get()) {
        let Ok(size) = block_size.try_into() else { break };
        let changed = Config { block_size: size, ..config.clone() };
        if try_config(format!("--block_size={block_size}"), changed) {
            break;
        }
    }
    let with_layers =
        |layers: u32| Some(Config { n_layer: layers.try_into().ok()?, ..config.clone() });
    if let Some(layers) = largest(1..config.n_layer.get(), &with_layers)
        && let Some(changed) = with_layers(layers)
    {
        try_config(format!("--n_layer={layers}"), changed);
    }
    let with_heads = |heads: u32| {
        let n_embd = (config.n_embd.get() / config.n_head * heads).try_into().ok()?;
        Some(Config { n_head: heads.try_into().ok()?, n_embd, ..config.clone() })
    };
    if let Some(heads) = largest(1..config.n_head.get(), &with_heads)
        && let Some(changed) = with_heads(heads)
    {
        try_config(format!("--n_head={heads} --n_embd={}", changed.n_embd), changed);
    }
    let smaller = |&(layers, _, width): &(u32, u32, u32)| {
        layers < config.n_layer.get() && width < config.n_embd.get()
    };
    for (layers, heads, width) in GPT2_SIZES.into_iter().filter(smaller) {
        let sizes = (layers.try_into(), heads.try_into(), width.try_into());
        let (Ok(n_layer), Ok(n_head), Ok(n_embd)) = sizes else { break };
        let option = format!("--n_layer={layers} --n_head={heads} --n_embd={width}");
        if try_config(option, Config { n_layer, n_head, n_embd, ..config.clone() }) {
            break;
        }
    }
    // A card has no more than it has: only as a last resort, and not beyond that.
    if limits.memory.is_none_or(|memory| least.predicted_bytes <= memory) {
        let mib = least.predicted_bytes.div_ceil(1 << 20);
        found.push(Fix {
            option: format!("--vram_budget={mib}MiB"),
            predicted_bytes: least.predicted_bytes,
        });
    }
    found.truncate(3);
    found
}

fn plan_quietly(config: &Config, vocab: u32, limits: &Limits) -> Option<Forecast> {
    candidates(config, vocab)
        .into_iter()
        .map(|plan| Forecast::of(plan, config, vocab, limits))
        .find(|forecast| forecast.fits(limits))
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
        plan(config, 50_257, &Limits { budget: Some(budget), pools: true, ..Limits::default() })
    }

    #[test]
    fn gpt2_takes_what_was_promised() {
        for (flags, most) in [
            (&[("batch_size", "1")][..], 2.8),
            (&[("batch_size", "4")], 4.3),
            (&[("batch_size", "8"), ("grad_checkpoint", "true")], 3.2),
        ] {
            let asked = config("gpt2", flags);
            let limits =
                Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
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
    fn presets_by_card_fit_their_card_as_they_stand() {
        for (name, gigabytes) in
            [4, 6, 8, 12, 16, 24].map(|size| (format!("card-{size}gb"), size * 1_000_000_000))
        {
            let asked = config(&name, &[]);
            let forecast = on_card(&asked, gigabytes / 10 * 9).unwrap();
            assert_eq!((forecast.why.as_str(), forecast.plan.grad_checkpoint), ("", false));
            assert_eq!(asked.global_batch(), 480, "{name}");
            // A larger batch would not fit: half as much again.
            let more = (asked.batch_size.get() * 3).div_ceil(2).to_string();
            let larger = config(&name, &[("batch_size", more.as_str())]);
            assert_ne!(on_card(&larger, gigabytes / 10 * 9).unwrap().why, "", "{name}");
        }
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
        let limits = Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
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
        let roomy = Limits { budget: Some(20 * GIB), pools: true, ..Limits::default() };
        let kept = keep(&asked, &asked, &small.plan, 50_257, &roomy).unwrap();
        assert_eq!(kept.plan, small.plan);
        let tight = Limits { budget: Some(2 * GIB), ..roomy };
        assert_eq!(keep(&asked, &asked, &small.plan, 50_257, &tight), None);
        let other = config("gpt2", &[("micro_batch", "1")]);
        assert_eq!(keep(&other, &asked, &small.plan, 50_257, &roomy), None);
    }

    #[test]
    fn less_and_less_until_there_is_no_less() {
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
