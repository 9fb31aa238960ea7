//! Checkpoints during a run.

use std::time::Duration;

use web_time::Instant;

use super::Session;
use crate::plan;
use crate::protocol::{self, Event, Exit, Failure, Task};
use crate::ranks::{OtherStates, send_states};
use crate::runs::checkpoint::{self, Checkpoint, CheckpointState};
use crate::runs::has_checkpoint;

/// The age of the last checkpoint at which another is written: a failure loses no more than this.
pub(super) const MAX_CHECKPOINT_AGE: Duration = Duration::from_secs(600);

/// The same before an evaluation or a new plan, which are more likely to fail than a step.
pub(super) const MAX_CHECKPOINT_AGE_AT_RISK: Duration = Duration::from_secs(60);

/// The longest time that a disk may take for a checkpoint before the watchdog takes the device for
/// hung.
const MAX_SAVE_TIME: Duration = Duration::from_secs(30 * 60);

/// The bytes of a checkpoint that is announced: smaller ones are written in a moment.
const LARGE_CHECKPOINT: u64 = 64 << 20;

impl Session<'_> {
    /// Writes a checkpoint if the last one is older than `age`.
    pub(super) async fn save_if_older(&mut self, age: Duration) -> Result<(), Failure> {
        // By the clock of rank 0, which alone writes.
        let decides = self.ranks.group.is_first();
        // Without its folder, the run ends with a checkpoint in a new one.
        let mut is_due = decides
            && self.position.iteration > 0
            && (self.saved.elapsed() >= age || self.journal.folder.is_lost());
        // The others have parts of it.
        if self.learner.optimizer.sharding.is_some() {
            is_due = self.ranks.group.share(is_due)?;
        }
        if is_due { self.save().await } else { Ok(()) }
    }

    /// Writes a checkpoint of a run that continues: a full disk is a warning, not its end.
    pub(super) async fn save(&mut self) -> Result<(), Failure> {
        if self.journal.folder.is_lost() {
            return self.write_checkpoint().await;
        }
        match self.write_checkpoint_here().await {
            Err(Failure { text, hint, exit: Exit::Failure | Exit::BadData, .. }) => {
                let has_checkpoint = has_checkpoint(&self.journal.folder.path);
                let last = if has_checkpoint { "; the last one is unchanged" } else { "" };
                self.journal.warn(format!("no checkpoint was written: {text}{last}; {hint}"));
                Ok(())
            }
            result => result,
        }
    }

    /// Writes a checkpoint. If the run folder was deleted or moved, it goes into a new one, and the run ends.
    pub(super) async fn write_checkpoint(&mut self) -> Result<(), Failure> {
        let folder = &mut self.journal.folder;
        if !folder.is_lost() {
            return self.write_checkpoint_here().await;
        }
        let lost =
            format!("{}: this folder was deleted or moved during the run", folder.path.display());
        let mut saved = folder.rescue(&mut self.job.config);
        if saved.is_ok() {
            saved = self.write_checkpoint_here().await;
        }
        Err(match saved {
            Ok(()) => {
                let path = self.journal.folder.path.display();
                let hint = "continue it there with --resume and --run; if you moved the old folder, you \
                            can also continue its last checkpoint";
                Failure::new(format!("{lost}; the run is saved in {path}"), hint)
            }
            Err(error) => {
                let hint = "if you moved the folder, continue its last checkpoint with --resume and \
                            --run; if it is gone, start a new run";
                Failure::new(
                    format!("{lost}, and the run could not be saved elsewhere: {error}"),
                    hint,
                )
            }
        })
    }

    /// Writes a checkpoint after checking that training has not diverged. A skipped update of a
    /// scaled loss is no reason against one.
    async fn write_checkpoint_here(&mut self) -> Result<(), Failure> {
        self.journal.folder.restore_config(&self.job.config)?;
        self.saved = Instant::now();
        self.results().await?;
        let is_sharded = self.learner.optimizer.sharding.is_some();
        let group = &mut self.ranks.group;
        if !group.is_first() {
            if is_sharded {
                let states = self.learner.optimizer.saved_states(self.learner.model());
                send_states(group, &states).await?;
            }
            return Ok(());
        }
        if plan::checkpoint_bytes(&self.job.config, self.learner.vocabulary()) >= LARGE_CHECKPOINT {
            self.journal.report(Task::Checkpoint, 0).announce(0);
        }
        let state = self.checkpoint_state().await;
        let folder = self.journal.folder.checkpoints();
        let keep = self.job.config.keep_checkpoints.get();
        let silence = self.device.watchdog.allow_silence(MAX_SAVE_TIME);
        self.journal.folder.sync();
        let mut others = OtherStates { group: is_sharded.then_some(&mut self.ranks.group) };
        let tensors = self.learner.saved();
        let written = Checkpoint::write(&folder, state, tensors, &mut others, keep).await;
        let ended = others.end();
        drop(silence);
        ended?;
        if let Some(checkpoint) = written? {
            let (iter, best) = (self.position.iteration, checkpoint.state.is_best());
            let path = checkpoint.path;
            self.journal.emit(Event::Checkpoint(protocol::Checkpoint { iter, path, best }));
        }
        Ok(())
    }

    /// Returns the state of a checkpoint, yet without the hashes of its files.
    async fn checkpoint_state(&self) -> CheckpointState {
        let Self { position, job, .. } = self;
        CheckpointState {
            version: checkpoint::VERSION,
            iteration: position.iteration,
            last_eval: position.last_eval,
            val_loss: position.val_loss.filter(|_| position.was_evaluated()),
            best_val_loss: position.best_val_loss,
            learning_rate: position.set_rate,
            loss_scale: self.learner.saved_loss_scale().await,
            config: job.config.clone(),
            plan: self.steps.plan().clone(),
            tokenizer: job.dataset.tokenizer.clone(),
            data: job.dataset.fingerprint.clone(),
            hashes: Default::default(),
        }
    }
}
