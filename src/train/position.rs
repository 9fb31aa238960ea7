//! Where a run is.

use crate::config::{self, Config, Schedule};
use crate::runs::Continued;
use crate::runs::checkpoint::CheckpointState;

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
        (self.train_loss, self.val_loss) = (Some(train_loss), Some(val_loss));
    }

    /// Returns true if no earlier evaluation of the run was as good, and remembers this one.
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

    /// Returns true if what happens every `interval` updates is due.
    pub fn is_due(&self, interval: u64) -> bool {
        self.iteration.is_multiple_of(interval)
    }

    /// Returns where the scalar logs of the run continue.
    pub fn continued(&self, config: &Config) -> Continued {
        // `eval_only` repeats the last evaluation.
        let last_eval = self.last_eval.filter(|_| !config.eval_only);
        Continued { iteration: self.iteration, last_eval }
    }
}
