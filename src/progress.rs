//! The one reducer that every view of a run reads.

use crate::protocol::{Event, StopReason};

/// Where a run stands, as told by its events so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Updates that the run is to make.
    pub max_iters: u64,
    /// Updates made.
    pub iteration: u64,
    /// The last step's loss.
    pub loss: Option<f64>,
    /// The last validation loss.
    pub val_loss: Option<f64>,
    /// The best validation loss.
    pub best_val_loss: Option<f64>,
    /// The least loss that is possible, where known.
    pub entropy_floor: Option<f64>,
    /// Speed over the last log interval.
    pub tokens_per_s: Option<f64>,
    /// Milliseconds an iteration over the last log interval.
    pub ms: Option<f64>,
    /// Why the run ended, if it has.
    pub ended: Option<StopReason>,
}

impl Progress {
    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Start { config, resumed_from, entropy_floor, .. } => {
                self.max_iters = config.max_iters.get();
                self.iteration = resumed_from.unwrap_or(0);
                self.entropy_floor = *entropy_floor;
            }
            Event::Step(step) => {
                self.iteration = step.iter + 1;
                self.loss = Some(step.loss);
                self.ms = Some(step.ms);
                self.tokens_per_s = Some(step.tokens_per_s);
            }
            Event::Eval { iter, val_loss, .. } => {
                self.iteration = *iter;
                self.val_loss = Some(*val_loss);
                let best = self.best_val_loss.map_or(*val_loss, |best| best.min(*val_loss));
                self.best_val_loss = Some(best);
            }
            Event::Done { iter, reason, .. } => {
                self.iteration = *iter;
                self.ended = Some(*reason);
            }
            _ => {}
        }
    }

    /// Seconds until the last iteration at the present speed, evaluation left out.
    pub fn seconds_left(&self) -> Option<f64> {
        let left = self.max_iters.saturating_sub(self.iteration);
        Some(self.ms? * 1e-3 * left as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_add_up() {
        let mut progress = Progress { max_iters: 100, ..Progress::default() };
        progress.apply(&Event::Eval { iter: 10, train_loss: 2.0, val_loss: 2.5 });
        progress.apply(&Event::Eval { iter: 20, train_loss: 1.0, val_loss: 3.5 });
        assert_eq!((progress.val_loss, progress.best_val_loss), (Some(3.5), Some(2.5)));
        assert_eq!(progress.seconds_left(), None);
        progress.ms = Some(500.0);
        assert_eq!(progress.seconds_left(), Some(40.0));
    }
}
