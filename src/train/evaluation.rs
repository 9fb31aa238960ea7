//! Evaluation during a run.

use serde::{Deserialize, Serialize};

use super::Result;
use super::inputs::RunInputs;
use super::journal::Journal;
use super::training::Training;
use crate::eval::{LossSum, Quiz, sum_losses};
use crate::protocol::{Event, Task};

/// A rank's part of an evaluation, or the sum of several.
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

/// Returns the validation loss, or `None` if `wants_stop` or `max_time` ends the run first.
pub(super) async fn evaluate(
    training: &mut Training,
    journal: &mut Journal<'_>,
    wants_stop: impl FnMut() -> bool,
) -> Result<Option<f64>> {
    let Some(own) = evaluate_part(training, journal, wants_stop).await? else { return Ok(None) };
    let parts = training.ranks.group.collect(&own)?;
    let Some(EvaluationPart { train, val, right }) = parts.into_iter().reduce(EvaluationPart::plus)
    else {
        return Ok(None);
    };
    let questions = training.inputs.quiz.as_ref().map(Quiz::len);
    let hellaswag = questions.map(|questions| right as f64 / questions as f64);
    let iter = training.position.iteration;
    let train_loss = train.per_token();
    let val_loss = val.per_token();
    let bits_per_byte = val.bits_per_byte();
    training.position.evaluated(train_loss, val_loss);
    journal.emit(Event::Eval { iter, train_loss, val_loss, bits_per_byte, hellaswag });
    if ![train_loss, val_loss].into_iter().all(f64::is_finite) {
        return Err(journal.not_finite(iter, None));
    }
    Ok(Some(val_loss))
}

/// Evaluates this rank's part of the windows of both splits and of the questions, in proportion to its
/// share. Only a run in one process can stop early: ranks have different numbers of micro-batches, so
/// they could not stop together.
async fn evaluate_part(
    training: &Training,
    journal: &mut Journal<'_>,
    mut wants_stop: impl FnMut() -> bool,
) -> Result<Option<EvaluationPart>> {
    let Training { inputs, steps, ranks, learner, .. } = training;
    let evaluation = inputs.evaluation(steps.plan());
    let RunInputs { config, dataset, quiz, .. } = inputs;
    let model = &learner.model;
    // A split may have fewer.
    let wanted = u64::from(config.eval_iters.get()) * u64::from(config.batch_size.get());
    let rank = ranks.group.rank();
    let shares = &ranks.division.shares;
    let [of_train, of_val] = [&dataset.train, &dataset.val].map(|split| {
        let all = split.windows(evaluation.block_size).evaluation(wanted);
        all[shares.part(rank, all.len())].to_vec()
    });
    let questions = quiz.as_ref().map_or(0..0, |quiz| shares.part(rank, quiz.len()));
    let in_train = of_train.len() as u64;
    let in_val = of_val.len() as u64;
    let mut reporter = journal.report(Task::Evaluation, in_train + in_val + questions.len() as u64);
    let may_stop = ranks.group.is_alone();
    let mut stop = |done: u64| {
        learner.device.watchdog.restart();
        reporter.report(done);
        may_stop && (wants_stop() || inputs.is_late())
    };
    let split = &dataset.train;
    let train = sum_losses(model, dataset, split, &of_train, &evaluation, &mut stop).await;
    let mut stop = |done: u64| stop(in_train + done);
    let split = &dataset.val;
    let val = sum_losses(model, dataset, split, &of_val, &evaluation, &mut stop).await;
    let mut stop = |done: u64| stop(in_val + done);
    let right = match quiz {
        Some(quiz) => quiz.right(questions, model, &evaluation, &mut stop).await,
        None => Some(0),
    };
    let (Some(train), Some(val), Some(right)) = (train?, val?, right) else { return Ok(None) };
    Ok(Some(EvaluationPart { train, val, right }))
}
