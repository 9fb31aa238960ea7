//! Evaluation during a run.

use serde::{Deserialize, Serialize};

use super::Session;
use crate::eval::{LossSum, Quiz, sum_losses};
use crate::protocol::{Command, Event, Failure, StopReason, Task};
use crate::runs::checkpoint::Checkpoint;
use crate::train::Commands;
use crate::train::position::Position;

/// A validation loss that is larger by this factor has risen.
const RISEN: f64 = 1.01;

/// The part of a rank in an evaluation, or of several.
#[derive(Serialize, Deserialize)]
struct EvaluationPart {
    train: LossSum,
    val: LossSum,
    right: u64,
}

impl EvaluationPart {
    fn plus(self, other: Self) -> Self {
        Self {
            train: self.train.plus(other.train),
            val: self.val.plus(other.val),
            right: self.right + other.right,
        }
    }
}

impl Session<'_> {
    pub(super) async fn evaluate_only(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<StopReason, Failure> {
        self.evaluate(commands).await?;
        Ok(self.apply_commands(commands).await?.unwrap_or(StopReason::EvalOnly))
    }

    /// Evaluates, and writes a checkpoint if the model is the best so far or every one is saved.
    pub(super) async fn evaluate_and_save(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<(), Failure> {
        let Some(val_loss) = self.evaluate(commands).await? else { return Ok(()) };
        let is_best = self.position.is_best(val_loss);
        let is_saved = is_best || self.job.config.always_save_checkpoint;
        if self.position.iteration > 0 && is_saved {
            self.save().await?;
        }
        Ok(())
    }

    /// Warns at the end of a run whose validation loss has risen since it was lowest.
    pub(super) fn warn_of_overfitting(&mut self) {
        let best = Checkpoint::best_loss(&self.journal.folder.checkpoints());
        let Position { val_loss: Some(last), train_loss: Some(train), .. } = self.position else {
            return;
        };
        let Some((iter, best)) = best else { return };
        // After a rate that is too high, both have risen.
        let has_memorised = last > RISEN * best && last > RISEN * train;
        if self.ranks.group.is_first() && has_memorised {
            self.journal.warn(format!(
                "the validation loss was lowest at iteration {iter}, {best:.4}, and has risen to {last:.4} \
                 since: the model memorises the data. Use the checkpoint of iteration {iter}; more \
                 text, dropout, or fewer updates help"
            ));
        }
    }

    /// Returns the validation loss, or `None` if a command or `max_time` ends the run first.
    async fn evaluate(&mut self, commands: &mut impl Commands) -> Result<Option<f64>, Failure> {
        let Some(own) = self.evaluate_part(commands).await? else { return Ok(None) };
        let parts = self.ranks.group.collect(&own)?;
        let Some(EvaluationPart { train, val, right }) =
            parts.into_iter().reduce(EvaluationPart::plus)
        else {
            return Ok(None);
        };
        let questions = self.job.quiz.as_ref().map(Quiz::len);
        let hellaswag = questions.map(|questions| right as f64 / questions as f64);
        let (iter, bits_per_byte) = (self.position.iteration, val.bits_per_byte());
        let (train_loss, val_loss) = (train.per_token(), val.per_token());
        self.position.evaluated(train_loss, val_loss);
        self.journal.emit(Event::Eval { iter, train_loss, val_loss, bits_per_byte, hellaswag });
        if ![train_loss, val_loss].into_iter().all(f64::is_finite) {
            return Err(self.journal.not_finite(iter, None));
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
    ) -> Result<Option<EvaluationPart>, Failure> {
        let evaluation = self.job.evaluation(self.steps.plan());
        let (model, dataset, config) = (self.learner.model(), &self.job.dataset, &self.job.config);
        // A split may have fewer.
        let wanted = u64::from(config.eval_iters.get()) * u64::from(config.batch_size.get());
        let (rank, shares) = (self.ranks.group.rank(), &self.ranks.division.shares);
        let [of_train, of_val] = [&dataset.train, &dataset.val].map(|split| {
            let all = split.windows(evaluation.block_size).evaluation(wanted);
            all[shares.part(rank, all.len())].to_vec()
        });
        let questions = self.job.quiz.as_ref().map_or(0..0, |quiz| shares.part(rank, quiz.len()));
        let (in_train, in_val) = (of_train.len() as u64, of_val.len() as u64);
        let total = in_train + in_val + questions.len() as u64;
        let mut reporter = self.journal.report(Task::Evaluation, total);
        let may_stop = self.ranks.group.is_alone();
        let mut queued = std::mem::take(&mut self.queued);
        let mut stop = |done: u64| {
            self.device.watchdog.restart();
            reporter.report(done);
            if !may_stop {
                return false;
            }
            queued.extend(std::iter::from_fn(|| commands.next()));
            queued.contains(&Command::Stop) || self.job.is_late()
        };
        let split = &dataset.train;
        let train = sum_losses(model, dataset, split, &of_train, &evaluation, &mut stop).await;
        let mut stop = |done: u64| stop(in_train + done);
        let split = &dataset.val;
        let val = sum_losses(model, dataset, split, &of_val, &evaluation, &mut stop).await;
        let mut stop = |done: u64| stop(in_val + done);
        let right = match &self.job.quiz {
            Some(quiz) => quiz.right(questions, model, &evaluation, &mut stop).await,
            None => Some(0),
        };
        self.queued = queued;
        let (Some(train), Some(val), Some(right)) = (train?, val?, right) else { return Ok(None) };
        Ok(Some(EvaluationPart { train, val, right }))
    }
}
