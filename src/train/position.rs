//! The position of a run: its iteration, and what was evaluated last.

use std::num::NonZeroU64;

use crate::config::{self, Config, Schedule};
use crate::runs::Continued;
use crate::runs::checkpoint::CheckpointState;

/// A validation loss that is larger by this factor has risen.
const RISEN: f64 = 1.01;

/// The end of a run is moved if it would move by more than this share of what is left: a speed is known to a few
/// percent, so that the end is known the better the nearer it is.
const RETIMED: f64 = 0.05;

/// Fewer more updates than this share of all are not worth a new schedule.
const MORE: f64 = 0.01;

#[derive(Debug, Default)]
pub(super) struct Position {
    pub iteration: u64,
    pub resumed_from: Option<u64>,
    pub last_eval: Option<u64>,
    /// The validation loss of `last_eval`, if this process evaluated it.
    pub val_loss: Option<f64>,
    /// The same of the training split.
    pub train_loss: Option<f64>,
    pub best_val_loss: Option<f64>,
    /// The learning rate that a command has set in place of the schedule.
    pub set_rate: Option<f64>,
}

impl Position {
    /// Returns the position of a run that continues from a checkpoint.
    pub fn of(state: &CheckpointState) -> Self {
        Self {
            iteration: state.iteration,
            resumed_from: Some(state.iteration),
            last_eval: state.last_eval,
            val_loss: None,
            train_loss: None,
            best_val_loss: state.best_val_loss,
            set_rate: state.learning_rate,
        }
    }

    /// Returns true if the weights of this position have been evaluated.
    pub fn was_evaluated(&self) -> bool {
        self.last_eval == Some(self.iteration)
    }

    pub fn evaluated(&mut self, train_loss: f64, val_loss: f64) {
        self.last_eval = Some(self.iteration);
        self.train_loss = Some(train_loss);
        self.val_loss = Some(val_loss);
    }

    pub fn evaluation_is_due(&self, config: &Config) -> bool {
        self.iteration.is_multiple_of(config.eval_interval.get()) && !self.was_evaluated()
    }

    /// Returns true if a sample is due, by `sample_interval` or together with an evaluation.
    pub fn sample_is_due(&self, config: &Config) -> bool {
        match config.sample_interval {
            0 => self.evaluation_is_due(config),
            interval => self.iteration.is_multiple_of(interval),
        }
    }

    /// Returns true if this is the run's best evaluation so far, and remembers it.
    pub fn is_best(&mut self, val_loss: f64) -> bool {
        let is_best = self.best_val_loss.is_none_or(|best| val_loss < best);
        if is_best {
            self.best_val_loss = Some(val_loss);
        }
        is_best
    }

    pub fn learning_rate(&self, config: &Config) -> f64 {
        self.set_rate.unwrap_or_else(|| config::learning_rate(config, self.iteration))
    }

    /// Returns to the schedule if its settings have changed since `former`. Else a learning rate that a
    /// command has set stays, and the returned sentence says so.
    pub fn return_to_schedule(&mut self, config: &Config, former: &Config) -> Option<String> {
        let schedule = |config: &Config| {
            let Config { learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters, .. } =
                *config;
            let decay_start = (config.schedule == Schedule::Wsd).then(|| config.decay_start());
            (learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters, decay_start)
        };
        let rate = self.set_rate?;
        if schedule(config) != schedule(former) {
            self.set_rate = None;
            return None;
        }
        Some(format!(
            "the learning rate stays at {rate}, as it was set during the run; to return to the \
             schedule, change one of its settings, like --min_lr"
        ))
    }

    /// Returns the updates after which the run is to end instead of when it is planned to, if `possible` more fit
    /// into its time; at most `most` in all, if it may become longer.
    pub fn retiming(&self, config: &Config, possible: u64, most: u64) -> Option<NonZeroU64> {
        let whole = config.max_iters.get();
        let planned = whole.saturating_sub(self.iteration);
        let most = if config.fill_time { most.max(whole) } else { whole };
        let left = possible.min(most - self.iteration.min(most));
        let least = RETIMED * left as f64;
        let least = if left > planned { least.max(MORE * whole as f64) } else { least };
        let is_kept = (left.abs_diff(planned) as f64) < least;
        NonZeroU64::new(left).filter(|_| !is_kept && self.set_rate.is_none())
    }

    /// Returns a warning at the end of a run whose validation loss has risen since it was lowest, at the
    /// iteration in `best`.
    pub fn overfitting(&self, best: Option<(u64, f64)>) -> Option<String> {
        let (iter, best) = best?;
        let last = self.val_loss?;
        // After a rate that is too high, both losses have risen.
        let has_memorised = last > RISEN * best && last > RISEN * self.train_loss?;
        has_memorised.then(|| {
            format!(
                "the validation loss was lowest at iteration {iter}, {best:.4}, and has risen to {last:.4} \
                 since: the model memorises the data. Use the checkpoint of iteration {iter}; more \
                 text, dropout, or fewer updates help"
            )
        })
    }

    /// Returns where the scalar logs of the run continue.
    pub fn continued(&self, config: &Config) -> Continued {
        // `eval_only` repeats the last evaluation.
        let last_eval = self.last_eval.filter(|_| !config.eval_only);
        Continued { iteration: self.iteration, last_eval }
    }
}
