//! The totals of a whole run: tokens, epochs, disk and time.

use std::time::Duration;

use serde::Serialize;

use super::{DeviceSpeed, Plan, Work, trained_weights};
use crate::config::Config;
use crate::text::{bytes, count, estimate, grouped, two_digits};

/// The tokens of the splits of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSize {
    pub train: u64,
    pub val: u64,
}

/// The size of a run: parameters, updates, tokens, disk and time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Totals {
    /// Without padding.
    pub parameters: u64,
    /// Those of the adapter that is trained in place of the others, if there is one.
    pub adapter: Option<u64>,
    pub updates: u64,
    /// The updates before `max_time` shortened the schedule, if it did.
    pub shortened_from: Option<u64>,
    pub tokens_per_update: u64,
    pub tokens: u64,
    pub data_tokens: Option<u64>,
    pub epochs: Option<f64>,
    pub checkpoint_bytes: u64,
    /// The most checkpoints on the disk at once: those that are kept, the best, and one being written.
    pub checkpoints: u64,
    pub disk_bytes: u64,
    /// `None` if the speed of the device is unknown.
    pub time: Option<TimeEstimate>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeEstimate {
    pub seconds_per_update: f64,
    /// Of the whole run, with evaluations but without samples and checkpoints.
    pub seconds: f64,
    /// The true time is expected between the estimate divided by this factor and multiplied by it.
    pub uncertainty: f64,
    pub source: String,
}

/// Bytes of a checkpoint's other files. The tokenizer's are the largest.
const SMALL_FILES: u64 = 2 << 20;

/// Returns the bytes of a checkpoint: weights and optimizer state in f32, and small files.
pub(crate) fn checkpoint_bytes(config: &Config, vocab: u32) -> u64 {
    let weights = trained_weights(config, vocab.into());
    // AdamW has two moments of a weight, and Muon one.
    4 * (3 * weights - config.muon_weights()) + SMALL_FILES
}

impl Totals {
    /// Returns the totals of a run of `config` with a vocabulary of `vocab` tokens and steps split
    /// by `plan`. With `plans_schedule`, `max_time` shortens its schedule.
    pub fn new(
        config: &Config,
        vocab: u32,
        plan: &Plan,
        data: Option<DataSize>,
        speed: Option<&DeviceSpeed>,
        plans_schedule: bool,
    ) -> Self {
        let pace = speed.map(|speed| Pace::new(config, vocab, plan, data, speed));
        let shortened = match (&pace, config.max_time) {
            (Some(pace), Some(limit)) if plans_schedule => pace.within(config, limit),
            _ => None,
        };
        let shortened_from = shortened.as_ref().map(|_| config.max_iters.get());
        let config = shortened.as_ref().unwrap_or(config);
        let updates = config.max_iters.get();
        let tokens_per_update =
            config.global_batch().saturating_mul(config.block_size.get().into());
        let tokens = tokens_per_update.saturating_mul(updates);
        let time = pace.zip(speed).map(|(pace, speed)| TimeEstimate {
            seconds_per_update: pace.update,
            seconds: pace.seconds(updates),
            uncertainty: speed.uncertainty(Work::update(config, vocab, plan)),
            source: speed.source(),
        });
        let checkpoint_bytes = checkpoint_bytes(config, vocab);
        let checkpoints = u64::from(config.keep_checkpoints.get()) + 2;
        Self {
            parameters: config.parameters(vocab.into()),
            adapter: (config.lora_rank > 0).then(|| trained_weights(config, vocab.into())),
            updates,
            shortened_from,
            tokens_per_update,
            tokens,
            data_tokens: data.map(|data| data.train),
            epochs: data.map(|data| tokens as f64 / data.train.max(1) as f64),
            checkpoint_bytes,
            checkpoints,
            disk_bytes: checkpoint_bytes.saturating_mul(checkpoints),
            time,
        }
    }

    /// Returns the totals as lines with labels. A line that continues the one before has an empty label.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let whole = |count: u64| grouped(count as f64, 0);
        let updates = whole(self.updates);
        let each = whole(self.tokens_per_update);
        let run = format!("{updates} updates of {each} tokens: {} tokens", count(self.tokens));
        let mut model = format!("{} parameters", count(self.parameters));
        if let Some(adapter) = self.adapter {
            model = format!("{model}, and an adapter of {}", count(adapter));
        }
        let mut lines = vec![("model", model), ("run", run)];
        if let Some(before) = self.shortened_from {
            let before = whole(before);
            lines.push(("", format!("max_time shortens the schedule of {before} updates")));
        }
        if let (Some(data), Some(epochs)) = (self.data_tokens, self.epochs) {
            let epochs = two_digits(epochs);
            lines.push(("data", format!("{} training tokens: {epochs} passes", count(data))));
        }
        let [disk, of_one] = [self.disk_bytes, self.checkpoint_bytes].map(bytes);
        let most = self.checkpoints;
        lines.push(("disk", format!("{disk} for up to {most} checkpoints of {of_one}")));
        if let Some(time) = &self.time {
            lines.push(("time", time.to_string()));
            lines.push(("", time.source.clone()));
        }
        lines
    }
}

impl std::fmt::Display for TimeEstimate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seconds_per_update: update, seconds, uncertainty, .. } = *self;
        let least = seconds / uncertainty;
        let most = seconds * uncertainty;
        let [update, all, least, most] = [update, seconds, least, most].map(estimate);
        write!(f, "about {update} an update, {all} in all ({least} to {most})")
    }
}

/// The seconds of an update and of an evaluation.
pub(crate) struct Pace {
    pub update: f64,
    pub evaluation: f64,
    eval_interval: u64,
}

impl Pace {
    /// Returns the pace of a run whose steps are split by `plan`, on one device of this speed.
    pub fn new(
        config: &Config,
        vocab: u32,
        plan: &Plan,
        data: Option<DataSize>,
        speed: &DeviceSpeed,
    ) -> Self {
        let wanted = u64::from(config.eval_iters.get()) * u64::from(config.batch_size.get());
        // An evaluation covers each token of a split at most once.
        let of_split = |tokens: u64| wanted.min(tokens / u64::from(config.eval_block_size().get()));
        let windows =
            data.map_or(2 * wanted, |data| of_split(data.train) + of_split(data.val)).max(1);
        Self {
            update: speed.seconds(Work::update(config, vocab, plan)),
            evaluation: speed.seconds(Work::evaluation(config, vocab, plan, windows)),
            eval_interval: config.eval_interval.get(),
        }
    }

    /// Returns the seconds of `updates` updates, with evaluations before, at each interval and at the end.
    fn seconds(&self, updates: u64) -> f64 {
        self.with_evaluations(updates, self.eval_interval)
    }

    /// The same with evaluations at another interval, with windows in proportion to it.
    fn with_evaluations(&self, updates: u64, interval: u64) -> f64 {
        let evaluations = 1 + updates.div_ceil(interval);
        let each = self.evaluation * interval as f64 / self.eval_interval as f64;
        updates as f64 * self.update + evaluations as f64 * each
    }

    /// Returns `config` with a schedule that ends within `limit`, or `None` if its own schedule does.
    pub fn within(&self, config: &Config, limit: Duration) -> Option<Config> {
        let limit = limit.as_secs_f64();
        let fixed = RESERVED_SECONDS.min(MOST_RESERVED * limit);
        let seconds = limit - fixed.max(RESERVED_SHARE * limit);
        let updates = config.max_iters.get();
        if self.seconds(updates) <= seconds {
            return None;
        }
        // The time grows with the updates, so the counts that fit come first.
        let mut fits = 1;
        let mut exceeds = updates;
        while exceeds - fits > 1 {
            let middle = fits + (exceeds - fits) / 2;
            let interval = config.shortened_eval_interval(middle).get();
            if self.with_evaluations(middle, interval) <= seconds {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        Some(config.with_updates(fits))
    }
}

/// The share of `max_time` that a schedule leaves for samples, checkpoints, and updates that take
/// longer than the measured ones; at least these seconds, as far as they are a small part of it.
const RESERVED_SHARE: f64 = 0.05;
const RESERVED_SECONDS: f64 = 6.0;
const MOST_RESERVED: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::work::tests::{VOCAB, gpt2, published};

    #[test]
    fn the_gpt2_preset_takes_years_on_a_small_gpu_and_says_so() {
        let (config, speed) = (gpt2(&[]), published("RTX 3060"));
        let data = Some(DataSize { train: 9_035_582_198, val: 4_434_897 });
        let plan = Plan::new(&config, VOCAB);
        let totals = Totals::new(&config, VOCAB, &plan, data, Some(&speed), true);
        for (label, text) in totals.lines() {
            assert!(label.len() <= 8 && text.len() <= 70, "{label}: {text}");
        }
        assert_eq!((totals.parameters, totals.tokens_per_update), (124_439_808, 491_520));
        assert_eq!(totals.tokens, 294_912_000_000);
        assert!((totals.epochs.unwrap() - 32.6).abs() < 0.1);
        assert_eq!(totals.checkpoints, 4);
        let gib = totals.disk_bytes as f64 / f64::from(1 << 30);
        assert!((gib - 4.0 * 1.39).abs() < 0.05, "{gib}");
        let time = totals.time.unwrap();
        // 395 TFLOP per update at a third of 12.7 TFLOP/s.
        assert!((time.seconds_per_update - 94.0).abs() < 3.0, "{time:?}");
        assert!((1.5..2.5).contains(&(time.seconds / 3.156e7)), "{time:?}");
    }

    #[test]
    fn a_checkpoint_has_one_moment_of_muon_and_two_of_adamw() {
        let adamw = gpt2(&[]);
        let (weights, matrices) = (adamw.parameters(VOCAB.into()), adamw.block_matrices());
        assert_eq!(checkpoint_bytes(&adamw, VOCAB), 12 * weights + SMALL_FILES);
        let muon = gpt2(&[("optimizer", "muon")]);
        assert_eq!(checkpoint_bytes(&muon, VOCAB), 12 * weights - 4 * matrices + SMALL_FILES);
    }

    #[test]
    fn a_run_evaluates_before_the_first_update_at_each_interval_and_at_the_end() {
        let config = gpt2(&[("eval_interval", "100")]);
        let (plan, speed) = (Plan::new(&config, VOCAB), published("RTX 3060"));
        let pace = Pace::new(&config, VOCAB, &plan, None, &speed);
        for (updates, evaluations) in [(1, 2), (100, 2), (101, 3), (200, 3)] {
            let expected = updates as f64 * pace.update + f64::from(evaluations) * pace.evaluation;
            let seconds = pace.seconds(updates);
            assert!((seconds / expected - 1.0).abs() < 1e-9, "{updates}: {seconds}, {expected}");
        }
    }

    #[test]
    fn a_schedule_is_planned_to_end_within_the_limit() {
        let (config, speed) = (gpt2(&[]), published("RTX 3060"));
        let plan = Plan::new(&config, VOCAB);
        let limit = Duration::from_secs(8 * 3600);
        let pace = Pace::new(&config, VOCAB, &plan, None, &speed);
        let planned = pace.within(&config, limit).unwrap();
        let seconds = |config: &Config| {
            let totals = Totals::new(config, VOCAB, &plan, None, Some(&speed), true);
            totals.time.unwrap().seconds
        };
        let taken = seconds(&planned);
        assert!((0.9 * 27_360.0..=27_360.0).contains(&taken), "{taken}");
        let more = planned.with_updates(planned.max_iters.get());
        assert_eq!(more, planned);
        let limited = Config { max_time: Some(limit), ..config.clone() };
        let totals = |plans| Totals::new(&limited, VOCAB, &plan, None, Some(&speed), plans);
        assert_eq!(totals(true).updates, planned.max_iters.get());
        assert_eq!(totals(true).shortened_from, Some(600_000));
        assert_eq!((totals(false).updates, totals(false).shortened_from), (600_000, None));
        // A run that ends in time stays as it is.
        let shorter = Pace::new(&planned, VOCAB, &plan, None, &speed);
        assert_eq!(shorter.within(&planned, limit), None);
        // Even the shortest limit leaves an update.
        let least = pace.within(&config, Duration::from_secs(1)).unwrap();
        assert_eq!(least.max_iters.get(), 1);
        // As much time in the network as on the device.
        let slower = Pace { update: 2.0 * pace.update, ..pace };
        let fewer = slower.within(&config, limit).unwrap();
        assert!(fewer.max_iters.get().abs_diff(planned.max_iters.get() / 2) <= 1, "{fewer:?}");
    }
}
