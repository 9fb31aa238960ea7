//! The warnings before a run trains.

use super::inputs::RunInputs;
use super::training::Training;
use crate::config::Choice;
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
    warnings
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
