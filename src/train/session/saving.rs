//! Checkpoints during a run.

use std::time::Duration;

use web_time::Instant;

use super::{MODEL, Session};
use crate::protocol::Event;
use crate::ranks::{OtherStates, send_states};
use crate::runs::checkpoint::{self, Checkpoint, State};
use crate::runs::has_checkpoint;
use crate::train::TrainError;

/// The age of the last checkpoint at which another is written: a failure loses no more than this.
pub(super) const MAX_CHECKPOINT_AGE: Duration = Duration::from_secs(600);

/// The same before an evaluation or a new plan, which are more likely to fail than a step.
pub(super) const MAX_CHECKPOINT_AGE_AT_RISK: Duration = Duration::from_secs(60);

/// The longest time that a disk may take for a checkpoint before the watchdog takes the device for
/// hung.
const MAX_SAVE_TIME: Duration = Duration::from_secs(30 * 60);

impl Session<'_> {
    /// Writes a checkpoint if the last one is older than `age`.
    pub(super) async fn save_if_older(&mut self, age: Duration) -> Result<(), TrainError> {
        // By the clock of rank 0, which alone writes.
        let decides = self.group.is_first();
        let is_due = decides && self.iteration > 0 && self.saved.elapsed() >= age;
        if !self.is_averaged() {
            return Ok(());
        }
        // The others have parts of it, or states of their own.
        let is_due = match self.saves_together() {
            true => self.decided(is_due)?,
            false => is_due,
        };
        match is_due {
            true => self.save().await,
            false => Ok(()),
        }
    }

    /// Writes a checkpoint of a run that continues: a full disk is a warning, not its end. While ranks
    /// train apart, it is written at the end of their round.
    pub(super) async fn save(&mut self) -> Result<(), TrainError> {
        if !self.is_averaged() {
            self.wants_checkpoint = true;
            return Ok(());
        }
        match self.write_checkpoint().await {
            Err(error @ (TrainError::NotFinite { .. } | TrainError::Ranks(_))) => Err(error),
            Err(error) => {
                let last = match has_checkpoint(self.folder.path()) {
                    true => "; the last one is unchanged",
                    false => "",
                };
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                self.warn(format!("no checkpoint was written: {error}{last}{hint}"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Writes a checkpoint after checking that training has not diverged. A skipped update of a
    /// scaled loss is no reason against one.
    pub(super) async fn write_checkpoint(&mut self) -> Result<(), TrainError> {
        self.saved = Instant::now();
        self.results().await?;
        self.write_own_states().await?;
        let is_sharded = self.optimizer.is_sharded();
        if !self.group.is_first() {
            return if is_sharded { self.send_states().await } else { Ok(()) };
        }
        self.announce_checkpoint();
        let loss_scale = self.optimizer.read_loss_scale().await;
        let scales_loss = self.mode.precision.scales_loss();
        let state = State {
            version: checkpoint::VERSION,
            iteration: self.iteration,
            last_eval: self.last_eval,
            val_loss: self.val_loss.filter(|_| self.last_eval == Some(self.iteration)),
            best_val_loss: self.best_val_loss,
            learning_rate: self.learning_rate,
            loss_scale: Some(loss_scale).filter(|scale| scales_loss || scale.skipped > 0),
            config: self.config.clone(),
            plan: self.forecast.plan.clone(),
            tokenizer: self.dataset.tokenizer.clone(),
            data: self.dataset.fingerprint.clone(),
            hashes: Default::default(),
        };
        let folder = self.folder.checkpoints();
        let keep = self.config.keep_checkpoints.get();
        self.device.watchdog.allow_silence(MAX_SAVE_TIME);
        let model = self.model.as_ref().expect(MODEL);
        let mut others = OtherStates::new(is_sharded.then_some(&mut self.group));
        let written =
            Checkpoint::write(&folder, state, model, &self.optimizer, &mut others, keep).await;
        let ended = others.end();
        self.device.watchdog.restart();
        ended?;
        if let Some(checkpoint) = written? {
            let best = checkpoint.state.is_best();
            self.emit(Event::Checkpoint { iter: self.iteration, path: checkpoint.path, best });
        }
        Ok(())
    }

    /// Sends rank 0 the states of this rank that a checkpoint needs.
    async fn send_states(&mut self) -> Result<(), TrainError> {
        let states = self.optimizer.saved_states(self.model());
        // Until the disk of rank 0 has taken the weights.
        self.device.watchdog.allow_silence(Duration::MAX);
        let sent = send_states(&mut self.group, &states).await;
        self.device.watchdog.restart();
        Ok(sent?)
    }
}
