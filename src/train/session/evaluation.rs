//! Evaluation during a run.

use super::Session;
use crate::data::Split;
use crate::protocol::{Command, Event, StopReason};
use crate::train::{Commands, Evaluation, Next, TrainError, mean_loss};

impl Session<'_> {
    /// Evaluates without training.
    pub(super) async fn evaluate_only(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<StopReason, TrainError> {
        self.evaluate(commands).await?;
        Ok(self.apply_commands(commands).await?.unwrap_or(StopReason::EvalOnly))
    }

    /// Evaluates, and writes a checkpoint if the model is the best so far or every one is saved.
    pub(super) async fn evaluate_and_save(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<(), TrainError> {
        let Some(val_loss) = self.evaluate(commands).await? else { return Ok(()) };
        let best = self.best_val_loss.is_none_or(|best| val_loss < best);
        if best {
            self.best_val_loss = Some(val_loss);
        }
        if self.iteration > 0 && (best || self.config.always_save_checkpoint) {
            self.save().await?;
        }
        Ok(())
    }

    /// Returns the validation loss, or `None` if a command or `max_time` ends the run first.
    /// Commands that arrive meanwhile are queued.
    async fn evaluate(&mut self, commands: &mut impl Commands) -> Result<Option<f64>, TrainError> {
        let mut queued = std::mem::take(&mut self.queued);
        let mut stop = || {
            self.device.watchdog.restart();
            while let Next::Command(command) = commands.next() {
                queued.push_back(command);
            }
            queued.contains(&Command::Stop) || self.is_late()
        };
        let train_loss = self.split_loss(&self.dataset.train, &mut stop).await;
        let val_loss = self.split_loss(&self.dataset.val, &mut stop).await;
        self.queued = queued;
        let (Some(train_loss), Some(val_loss)) = (train_loss?, val_loss?) else { return Ok(None) };
        let iter = self.iteration;
        (self.last_eval, self.val_loss) = (Some(iter), Some(val_loss));
        self.emit(Event::Eval { iter, train_loss, val_loss });
        if let Some(value) = [train_loss, val_loss].into_iter().find(|loss| !loss.is_finite()) {
            return Err(TrainError::NotFinite { iter, value });
        }
        Ok(Some(val_loss))
    }

    async fn split_loss(
        &self,
        split: &Split,
        stop: &mut impl FnMut() -> bool,
    ) -> Result<Option<f64>, TrainError> {
        let windows =
            u64::from(self.config.eval_iters.get()) * u64::from(self.config.batch_size.get());
        let evaluation = Evaluation {
            block_size: self.config.eval_block_size().get() as usize,
            sequences: self.forecast.plan.eval_batch_size,
            chunk: self.forecast.plan.loss_chunk,
            mode: self.mode,
        };
        mean_loss(self.model(), &self.dataset, split, windows, &evaluation, stop).await
    }
}
