//! The warnings before a run trains.

use super::inputs::RunInputs;
use super::training::Training;
use crate::config::{Choice, Config, Schedule};
use crate::runs::checkpoint::{Checkpoint, Damaged};
use crate::text::percent;

/// The share of padding from which a run says so: half of its time is spent on it.
const MUCH_PADDING: f64 = 0.5;

/// Returns a sentence about conversations that fit badly into windows.
pub(super) fn about_conversations(inputs: &RunInputs) -> Option<String> {
    let block_size = inputs.config.block_size.get();
    let windows = inputs.dataset.train.windows(block_size as usize);
    let packing = windows.packing()?;
    if packing.cut > 0 {
        return Some(format!(
            "{} of {} conversations are longer than block_size = {block_size} and lose their first tokens",
            packing.cut, packing.conversations
        ));
    }
    let padding = packing.padding();
    (padding > MUCH_PADDING).then(|| {
        format!(
            "{} of each window is padding: few conversations fit into block_size = {block_size}; a \
             smaller one trains faster",
            percent(padding, 0)
        )
    })
}

/// Sets `damaged` checkpoints aside. Returns warnings about them, and about what differs from the run that
/// wrote `checkpoint`.
pub(super) fn about_checkpoint(
    checkpoint: &Checkpoint,
    damaged: Vec<Damaged>,
    training: &mut Training,
) -> Vec<String> {
    let Training { inputs, position, .. } = training;
    let Checkpoint { path, state: former } = checkpoint;
    let mut warnings = Vec::new();
    for damaged in damaged {
        damaged.set_aside();
        warnings.push(format!("{}; continuing from {} instead", damaged.error, path.display()));
    }
    if former.data != inputs.dataset.fingerprint {
        warnings.push("the data has changed since this run was started".into());
    }
    let before = former.config.dtype;
    let now = inputs.config.dtype;
    if before != now {
        warnings.push(format!(
            "this run computed in {before} and continues in {now}: its losses will differ slightly"
        ));
    }
    warnings.extend(position.return_to_schedule(&inputs.config, &former.config));
    warnings.extend(about_more_iterations(&inputs.config, &former.config));
    warnings
}

/// Returns a sentence about a run that was to end with its decay, and now goes on after it.
fn about_more_iterations(config: &Config, former: &Config) -> Option<String> {
    let goes_on = |config: &Config| config.max_iters.get() > config.lr_decay_iters;
    if !decays_as_cosine(config) || !goes_on(config) || goes_on(former) {
        return None;
    }
    let Config { max_iters, lr_decay_iters, min_lr, .. } = config;
    Some(format!(
        "from iteration {lr_decay_iters} to {max_iters} the learning rate stays at min_lr = {min_lr}, because \
         the decay ends at lr_decay_iters; to train with more, set lr_decay_iters={max_iters} too"
    ))
}

fn decays_as_cosine(config: &Config) -> bool {
    config.decay_lr && config.schedule == Schedule::Cosine
}

/// Returns a sentence about a new run that ends before its learning rate has reached its height.
pub(super) fn about_warmup(config: &Config) -> Option<String> {
    let Config { max_iters, warmup_iters, .. } = *config;
    (config.decay_lr && warmup_iters >= max_iters.get()).then(|| {
        format!(
            "the run ends at iteration {max_iters}, before the warmup does (warmup_iters = {warmup_iters}): it \
             never trains with its learning rate; set warmup_iters to about {}",
            max_iters.get() / 50
        )
    })
}

/// Returns warnings about settings without an effect.
pub(super) fn about_settings(training: &Training) -> Vec<String> {
    let Training { inputs, steps, ranks, learner, .. } = training;
    let config = &inputs.config;
    let mut warnings = Vec::new();
    if config.offload_optimizer == Choice::True && !steps.plan().offload_optimizer {
        let is_sharded = learner.optimizer.sharding.is_some();
        let place = if is_sharded { "with shard_optimizer" } else { "on the CPU" };
        warnings.push(format!("offload_optimizer=true has no effect {place}"));
    }
    if config.shard_optimizer && ranks.group.is_alone() {
        warnings.push("shard_optimizer has no effect in one process".into());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(max_iters: u64, warmup_iters: u64, lr_decay_iters: u64) -> Config {
        let max_iters = max_iters.try_into().unwrap();
        Config { max_iters, warmup_iters, lr_decay_iters, ..Config::default() }
    }

    #[test]
    fn schedules_that_cannot_work_are_said() {
        let short = about_warmup(&config(100, 2000, 600_000)).unwrap();
        assert!(short.contains("iteration 100") && short.contains("to about 2"), "{short}");
        assert_eq!(about_warmup(&config(2000, 100, 2000)), None);
        let constant = Config { decay_lr: false, ..config(100, 2000, 600_000) };
        assert_eq!(about_warmup(&constant), None);

        let former = config(5000, 100, 5000);
        let longer = about_more_iterations(&config(9000, 100, 5000), &former).unwrap();
        assert!(
            longer.contains("5000 to 9000") && longer.contains("lr_decay_iters=9000"),
            "{longer}"
        );
        for same in [config(9000, 100, 9000), config(5000, 100, 5000)] {
            assert_eq!(about_more_iterations(&same, &former), None);
        }
        // A run that was meant to end at the lowest rate.
        assert_eq!(about_more_iterations(&config(9000, 100, 5000), &config(6000, 100, 5000)), None);
    }
}
