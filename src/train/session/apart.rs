//! Ranks that train apart for `sync_every` updates and then average their weights (DiLoCo): another
//! algorithm than on one device.
//!
//! A round ends at each multiple of `sync_every`, and when the run ends or is stopped. Only then do all
//! ranks have one model: evaluations and checkpoints that are due during a round wait for its end.
//! In between ranks exchange losses and commands, but no weights and no gradients.

use std::time::Duration;

use burn::tensor::Tensor;

use super::Session;
use crate::config::SumDtype;
use crate::model::scalar;
use crate::runs::{checkpoint, own_states};
use crate::train::TrainError;

/// Elements that are summed at once. The device is known to work in between.
const SUMMED_AT_ONCE: usize = 4 << 20;

impl Session<'_> {
    /// Returns true if all ranks have the same weights.
    pub(super) fn is_averaged(&self) -> bool {
        !self.job.config.trains_apart() || self.position.averaged == self.position.iteration
    }

    /// Returns true if every rank has a part in a checkpoint, so that all save at the same updates.
    pub(super) fn saves_together(&self) -> bool {
        self.job.config.trains_apart() || self.learner.optimizer.sharding.is_some()
    }

    /// Remembers the weights with which this process begins, and says what is to be computed.
    pub(super) async fn begin_apart(&mut self) {
        if !self.job.config.trains_apart() {
            return;
        }
        self.learner.begin_apart(&self.device.watchdog).await;
        let round = self.job.config.sync_every;
        self.journal.warn(format!(
            "sync_every = {round}: each rank makes {round} local updates before the weights are \
             averaged (DiLoCo). This is not the same algorithm as on one device, and its losses \
             differ"
        ));
    }

    /// Returns the mean of the loss over the global batch, where `own` is the mean over the `counted`
    /// tokens of this rank.
    pub(super) async fn mean_of_ranks(
        &mut self,
        own: Tensor<1>,
        counted: usize,
    ) -> Result<Tensor<1>, TrainError> {
        let (device, counted) = (own.device(), counted as f32);
        let mut sums = [counted * scalar(own).await, counted];
        self.device.watchdog.restart();
        self.ranks.sum(&mut sums, SumDtype::Float32)?;
        let [loss, tokens] = sums;
        Ok(Tensor::from_floats([loss / tokens], &device))
    }

    /// Averages the weights of all ranks and makes the outer step, unless they have the same weights.
    ///
    /// # Errors
    /// `NotFinite` on every rank if the weights of one are not finite.
    pub(super) async fn end_round(&mut self) -> Result<(), TrainError> {
        if self.is_averaged() {
            return Ok(());
        }
        let (share, sum_dtype) = (self.ranks.share(&self.job.config) as f32, self.ranks.sum_dtype);
        let (optimizer, model) = (&self.learner.optimizer, self.learner.model());
        let mut change = optimizer.change(model, share, &self.device.watchdog).await;
        for values in change.chunks_mut(SUMMED_AT_ONCE) {
            self.ranks.sum(values, sum_dtype)?;
        }
        if !change.iter().all(|change| change.is_finite()) {
            return Err(self.journal.not_finite(self.position.iteration - 1, None));
        }
        self.learner.step_outer(&change);
        self.device.watchdog.restart();
        self.position.averaged = self.position.iteration;
        if std::mem::take(&mut self.wants_checkpoint) {
            self.save().await?;
        }
        Ok(())
    }

    /// Writes the optimizer states of the ranks other than the first, which belong to the checkpoint
    /// that rank 0 writes then. One that cannot be written is a warning: a run can continue without it,
    /// and an error would end rank 0 before the checkpoint.
    pub(super) async fn write_own_states(&mut self) -> Result<(), TrainError> {
        let group = &mut self.ranks.group;
        if !self.job.config.trains_apart() || group.is_alone() {
            return Ok(());
        }
        let (folder, iteration, rank) =
            (&self.journal.folder, self.position.iteration, group.rank());
        let silence = self.device.watchdog.allow_silence(Duration::MAX);
        // Those that exist before this one: the former states stay until rank 0 has its checkpoint.
        let existing =
            group.share(checkpoint::iterations(&folder.checkpoints()).unwrap_or_default())?;
        let mut failed = None;
        if rank > 0 {
            own_states::prune(&folder.path, rank, &existing);
            let file = own_states::file(&folder.path, rank, iteration);
            let architecture = self.learner.model().architecture();
            let written = own_states::write(&file, architecture, self.learner.own_states()).await;
            failed =
                written.err().map(|error| format!("{error}; {}", error.hint().unwrap_or_default()));
        }
        // A checkpoint is complete only with them.
        let failed = group.collect(&failed)?;
        drop(silence);
        for (rank, failed) in failed.into_iter().enumerate() {
            let Some(error) = failed else { continue };
            self.journal.warn(format!(
                "rank {rank} has not saved its optimizer state; a run that continues from iteration \
                 {iteration} may use rank 0's, and its losses will differ slightly: {error}"
            ));
        }
        Ok(())
    }
}
