//! The checkpoints that a run writes.

use std::time::Duration;

use web_time::Instant;

use super::Result;
use super::journal::Journal;
use super::training::Training;
use crate::plan;
use crate::protocol::{self, Event, Exit, Failure, Task};
use crate::ranks::{OtherStates, send_states};
use crate::runs::checkpoint::{self, Checkpoint, CheckpointState};
use crate::runs::has_checkpoint;

/// The age of the last checkpoint at which another is written: a failure loses no more than this.
pub(super) const MAX_AGE: Duration = Duration::from_secs(600);

/// The same before an evaluation or a new plan, which are more likely to fail than a step.
pub(super) const MAX_AGE_AT_RISK: Duration = Duration::from_secs(60);

/// The longest time that a disk may take for a checkpoint before the watchdog takes the device for
/// hung.
const MAX_SAVE_TIME: Duration = Duration::from_secs(30 * 60);

/// The bytes of a checkpoint that is announced: smaller ones are written in a moment.
const LARGE_CHECKPOINT: u64 = 64 << 20;

pub(super) struct CheckpointWriter {
    /// The time of the last checkpoint, or of the start.
    written: Instant,
}

impl CheckpointWriter {
    pub fn new() -> Self {
        Self { written: Instant::now() }
    }

    /// Writes a checkpoint if the last one is older than `age`.
    pub async fn save_if_older(
        &mut self,
        age: Duration,
        training: &mut Training,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let Training { ranks, learner, position, .. } = training;
        // By the clock of rank 0, which alone writes. Without its folder, the run ends with a checkpoint in
        // a new one.
        let mut is_due = ranks.group.is_first()
            && position.iteration > 0
            && (self.written.elapsed() >= age || journal.folder.is_lost());
        // The others have parts of it.
        if learner.optimizer.sharding.is_some() {
            is_due = ranks.group.share(is_due)?;
        }
        if is_due { self.save(training, journal).await } else { Ok(()) }
    }

    /// Writes a checkpoint of a run that continues: a full disk is a warning, not its end.
    pub async fn save(&mut self, training: &mut Training, journal: &mut Journal<'_>) -> Result<()> {
        if journal.folder.is_lost() {
            return self.write(training, journal).await;
        }
        match self.write_files(training, journal).await {
            Err(Failure { text, hint, exit: Exit::Failure | Exit::BadData, .. }) => {
                let has_checkpoint = has_checkpoint(&journal.folder.path);
                let last = if has_checkpoint { "; the last one is unchanged" } else { "" };
                journal.warn(format!("no checkpoint was written: {text}{last}; {hint}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Writes a checkpoint. If the run folder was deleted or moved, it goes into a new one, and the run ends.
    pub async fn write(
        &mut self,
        training: &mut Training,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        let folder = &mut journal.folder;
        if !folder.is_lost() {
            return self.write_files(training, journal).await;
        }
        let lost =
            format!("{}: this folder was deleted or moved during the run", folder.path.display());
        let mut saved = folder.rescue(&mut training.inputs.config);
        if saved.is_ok() {
            saved = self.write_files(training, journal).await;
        }
        Err(match saved {
            Ok(()) => {
                let path = journal.folder.path.display();
                let hint = "continue it there with --resume and --run; if you moved the old folder, you \
                            can also continue its last checkpoint";
                Failure::new(format!("{lost}; the run is saved in {path}"), hint)
            }
            Err(error) => {
                let hint = "if you moved the folder, continue its last checkpoint with --resume and \
                            --run; if it is gone, start a new run";
                let text = format!("{lost}, and the run could not be saved elsewhere: {error}");
                Failure::new(text, hint)
            }
        })
    }

    /// Writes a checkpoint after checking that training has not diverged. A skipped update of a
    /// scaled loss is no reason against one.
    async fn write_files(
        &mut self,
        training: &mut Training,
        journal: &mut Journal<'_>,
    ) -> Result<()> {
        journal.folder.keep_lock()?;
        journal.folder.restore_config(&training.inputs.config)?;
        self.written = Instant::now();
        training.results(journal).await?;
        let Training { inputs, ranks, learner, .. } = &mut *training;
        let is_sharded = learner.optimizer.sharding.is_some();
        if !ranks.group.is_first() {
            if is_sharded {
                let states = learner.optimizer.saved_states(&learner.model);
                send_states(&mut ranks.group, &states).await?;
            }
            return Ok(());
        }
        if plan::checkpoint_bytes(&inputs.config, learner.vocabulary()) >= LARGE_CHECKPOINT {
            journal.report(Task::Checkpoint, 0).announce(0);
        }
        let state = checkpoint_state(training).await;
        let Training { inputs, ranks, learner, position, .. } = training;
        let folder = journal.folder.checkpoints();
        let keep = inputs.config.keep_checkpoints.get();
        let silence = learner.device.watchdog.allow_silence(MAX_SAVE_TIME);
        journal.folder.sync();
        let mut others = OtherStates { group: is_sharded.then_some(&mut ranks.group) };
        let written = Checkpoint::write(&folder, state, learner.saved(), &mut others, keep).await;
        let ended = others.end();
        drop(silence);
        ended?;
        if let Some(Checkpoint { path, state }) = written? {
            let best = state.is_best();
            let iter = position.iteration;
            journal.emit(Event::Checkpoint(protocol::SavedCheckpoint { iter, path, best }));
        }
        Ok(())
    }
}

/// Returns the state of a checkpoint, without the hashes of its files.
async fn checkpoint_state(training: &Training) -> CheckpointState {
    let Training { inputs, steps, learner, position, .. } = training;
    CheckpointState {
        version: checkpoint::VERSION,
        iteration: position.iteration,
        last_eval: position.last_eval,
        val_loss: position.val_loss.filter(|_| position.was_evaluated()),
        best_val_loss: position.best_val_loss,
        learning_rate: position.set_rate,
        loss_scale: learner.saved_loss_scale().await,
        products: inputs.products(),
        seconds: inputs.config.fill_time.then(|| inputs.clock.used().as_secs_f64()),
        base: inputs.base.clone(),
        config: inputs.config.clone(),
        // A run that has made way returns to that.
        plan: steps.wanted.as_ref().map_or(steps.plan(), |(_, whole)| &whole.plan).clone(),
        tokenizer: inputs.dataset.tokenizer.clone(),
        data: inputs.dataset.fingerprint.clone(),
        hashes: Default::default(),
    }
}
