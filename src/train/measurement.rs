//! Measurements before the first update, which change no state of a run.

use std::time::Duration;

use web_time::Instant;

use super::Result;
use super::inputs::RunInputs;
use super::training::Training;
use crate::config::padded_vocab;
use crate::gpu::{self, OtherPrograms};
use crate::model::WeightGradients;
use crate::plan::{DeviceSpeed, Pace, SpeedPoint, Work, trained_weights};
use crate::runs::remember_speed;

/// The time of a measurement without its first micro-batch, and the most micro-batches in it.
const MEASUREMENT: Duration = Duration::from_secs(1);
const MAX_MICRO_BATCHES: u32 = 8;

/// A first micro-batch of this length is measured itself: compiling its kernels takes less.
const LONG_MICRO_BATCH: Duration = Duration::from_secs(20);

/// The most values of the sum that measures the network: 4 MiB, a third of a second at 100 Mbit/s.
const SUMMED_VALUES: u64 = 1 << 20;

/// Measures the gradients of a micro-batch, and keeps their speed for later estimates. The speed of ranks is not
/// kept: they slow each other down if they are on one machine.
pub(super) async fn device_speed(training: &Training) -> Result<SpeedPoint> {
    let mut others = OtherPrograms::default();
    let time = micro_batch_time(training).await?;
    let Training { inputs, steps, ranks, learner, .. } = training;
    let RunInputs { config, mode, .. } = inputs;
    let work = Work::micro_batch(config, learner.vocabulary(), steps.plan());
    let point = work.point(time.as_secs_f64()).with_others(others.share());
    if ranks.group.is_alone() {
        remember_speed(&learner.device.info, *mode, &[point]);
    }
    Ok(point)
}

/// Returns the mean time of the gradients of a micro-batch, once its kernels are compiled.
pub(super) async fn micro_batch_time(training: &Training) -> Result<Duration> {
    training.learner.device.watchdog.heartbeat();
    let first = time_micro_batch(training).await?;
    if first >= LONG_MICRO_BATCH {
        return Ok(first);
    }
    let start = Instant::now();
    let mut count = 0;
    while count < MAX_MICRO_BATCHES && start.elapsed() < MEASUREMENT {
        time_micro_batch(training).await?;
        count += 1;
    }
    Ok(start.elapsed() / count.max(1))
}

async fn time_micro_batch(training: &Training) -> Result<Duration> {
    let start = Instant::now();
    let learner = &training.learner;
    let mut grads = WeightGradients::default().scaled(learner.optimizer.loss_scale());
    training.add_gradients(0, training.counted_tokens()?, &mut grads, None)?;
    gpu::finish(&learner.device.device).await?;
    learner.device.watchdog.restart();
    Ok(start.elapsed())
}

/// Returns the pace of the run on all ranks, where this one has a device of `speed`. Each has its
/// part of an update and of an evaluation, and all wait for the slowest, then for the network.
pub(super) fn pace_of_ranks(
    training: &mut Training,
    speed: Option<DeviceSpeed>,
) -> Result<Option<Pace>> {
    let Training { inputs, steps, ranks, learner, .. } = training;
    let vocab = learner.vocabulary();
    let data = Some(inputs.data_size());
    let own = speed.map(|speed| Pace::new(&inputs.config, vocab, steps.plan(), data, &speed));
    if ranks.group.is_alone() {
        return Ok(own);
    }
    let share = ranks.share(&inputs.config);
    let [update, evaluation] =
        own.as_ref().map_or([0.0; 2], |own| [own.update, share * own.evaluation]);
    let slowest = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
    let update = slowest(ranks.measurements(update)?);
    let evaluation = slowest(ranks.measurements(evaluation)?);
    let update = update + network_seconds(training)?;
    let Some(mut pace) = own else { return Ok(None) };
    pace.update = update;
    pace.evaluation = evaluation;
    Ok(Some(pace))
}

/// Returns the seconds that the network takes in an update, from the time of a small sum, as
/// [`RanksEstimate`](crate::plan::RanksEstimate) has them from the speed of the network.
fn network_seconds(training: &mut Training) -> Result<f64> {
    let Training { inputs, ranks, learner, .. } = training;
    let weights = trained_weights(&inputs.config, padded_vocab(learner.vocabulary()).into());
    let count = weights.min(SUMMED_VALUES);
    let mut values = vec![1.0; count as usize];
    let mut seconds = 0.0;
    // The first sum connects the ranks.
    for _ in 0..2 {
        let begun = Instant::now();
        ranks.group.sum(&mut values)?;
        seconds = begun.elapsed().as_secs_f64();
    }
    // The weights of a sharded optimizer travel half as far as the gradients.
    let rounds = if inputs.config.shard_optimizer { 1.5 } else { 1.0 };
    Ok(rounds * (weights as f64 / count as f64) * seconds)
}
