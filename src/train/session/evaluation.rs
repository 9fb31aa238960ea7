//! Evaluation during a run.

use super::control::is_late;
use super::working::Reporter;
use super::{MODEL, Session};
use crate::protocol::{Command, Event, StopReason, Task};
use crate::train::hellaswag::Quiz;
use crate::train::{Commands, Evaluation, Next, TrainError, has_checkpoint, mean_loss};

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
        let losses = match self.group.is_alone() {
            true => self.evaluate_alone(commands).await?,
            false => Some(self.evaluate_together(self.eval_windows()).await?),
        };
        let Some([train_loss, val_loss]) = losses else { return Ok(None) };
        let iter = self.iteration;
        (self.last_eval, self.val_loss) = (Some(iter), Some(val_loss));
        self.emit(Event::Eval { iter, train_loss, val_loss });
        if ![train_loss, val_loss].into_iter().all(f64::is_finite) {
            let has_checkpoint = has_checkpoint(self.folder.path());
            return Err(TrainError::NotFinite { iter, scaling: None, has_checkpoint });
        }
        Ok(Some(val_loss))
    }

    /// Evaluates this rank's part of the windows of both splits and of the questions, in proportion to
    /// its share. Returns `None` if a command or `max_time` ends the run first, which only a run in one
    /// process allows: parts take different numbers of micro-batches, so that ranks could not stop
    /// together. Commands that arrive meanwhile wait for the end.
    async fn evaluate_part(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<Option<[f64; 2]>, TrainError> {
        let evaluation = self.evaluation();
        let wanted = self.eval_windows();
        let (model, dataset) = (self.model.as_ref().expect(MODEL), &self.dataset);
        let [in_train, in_val] =
            [&dataset.train, &dataset.val].map(|split| evaluation.windows(split, wanted));
        let watchdog = &self.device.watchdog;
        let total = in_train + in_val + self.quiz.as_ref().map_or(0, Quiz::len);
        let mut reporter = Reporter::new(Task::Evaluation, total, watchdog, &mut *self.emit);
        let mut queued = std::mem::take(&mut self.queued);
        let mut stop = |done: u64| {
            watchdog.restart();
            reporter.report(done);
            while let Next::Command(command) = commands.next() {
                queued.push_back(command);
            }
            queued.contains(&Command::Stop) || is_late(&self.config, self.started)
        };
        let split = &dataset.train;
        let train_loss = mean_loss(model, dataset, split, wanted, &evaluation, &mut stop).await;
        let mut stop = |done: u64| stop(in_train + done);
        let split = &dataset.val;
        let val_loss = mean_loss(model, dataset, split, wanted, &evaluation, &mut stop).await;
        let mut stop = |done: u64| stop(in_val + done);
        let answered = match &self.quiz {
            Some(quiz) => Some(quiz.share(model, &evaluation, &mut stop).await),
            None => None,
        };
        self.queued = queued;
        let (Some(train_loss), Some(val_loss)) = (train_loss?, val_loss?) else { return Ok(None) };
        Ok(Some([train_loss, val_loss]))
    }

    pub(super) fn evaluation(&self) -> Evaluation {
        Evaluation {
            block_size: self.config.eval_block_size().get() as usize,
            sequences: self.forecast.plan.eval_batch_size,
            chunk: self.forecast.plan.loss_chunk,
            mode: self.mode,
        }
    }
}
