//! Ranks that train apart for `sync_every` updates and then average their weights (DiLoCo): another
//! algorithm than that of one device.
//!
//! A round ends at each multiple of `sync_every`, and when the run ends or is stopped. Only then do all
//! ranks have one model: evaluations and checkpoints that are due during a round wait for its end.
//! In between ranks exchange losses and commands, but no weights and no gradients.

use std::ops::Range;
use std::time::Duration;

use burn::tensor::Tensor;
use web_time::Instant;

use super::together::waiting;
use super::{MODEL, Session};
use crate::model::scalar;
use crate::ranks::Wire;
use crate::runs::{checkpoint, has_checkpoint, own_states};
use crate::train::TrainError;

/// Elements that are summed at once. The device is known to work in between.
const SUMMED_AT_ONCE: usize = 4 << 20;

impl Session<'_> {
    /// Returns the sequences of the global batch over whose tokens the loss of an update is a mean, and
    /// its gradient: all, or those of this rank while ranks train apart.
    pub(super) fn mean_over(&self) -> Range<usize> {
        let first = self.first_sequence();
        match self.config.trains_apart() {
            true => first..first + self.division.shares.sequences(self.group.rank()) as usize,
            false => 0..self.config.global_batch() as usize,
        }
    }

    /// Returns the part of this rank in the global batch.
    fn part(&self) -> f32 {
        let own = self.division.shares.sequences(self.group.rank());
        (own as f64 / self.config.global_batch() as f64) as f32
    }

    /// Returns true if what happens every `interval` updates is due. While ranks train apart, it is due
    /// at the end of the round in which the interval ends.
    pub(super) fn is_due(&self, interval: u64) -> bool {
        let round = self.config.sync_every.get();
        self.iteration.is_multiple_of(round) && self.iteration % interval < round
    }

    /// Returns true if all ranks have the same weights.
    pub(super) fn is_averaged(&self) -> bool {
        !self.config.trains_apart() || self.averaged == self.iteration
    }

    /// Returns true if every rank has a part in a checkpoint, so that all save at the same updates.
    pub(super) fn saves_together(&self) -> bool {
        self.config.trains_apart() || self.optimizer.is_sharded()
    }

    /// Remembers the weights with which this process begins, and says what is to be computed.
    pub(super) async fn begin_apart(&mut self) {
        if !self.config.trains_apart() {
            return;
        }
        let model = self.model.as_ref().expect(MODEL);
        self.optimizer.begin_apart(model, &self.device.watchdog).await;
        let round = self.config.sync_every;
        self.warn(format!(
            "sync_every = {round}: each rank makes {round} updates apart before the weights are \
             averaged (DiLoCo). This is a different algorithm from that of one device, with other \
             losses"
        ));
    }

    /// Returns the mean of the loss over the global batch, where `own` is that over the `counted` tokens
    /// of this rank.
    pub(super) async fn mean_of_ranks(
        &mut self,
        own: Tensor<1>,
        counted: usize,
    ) -> Result<Tensor<1>, TrainError> {
        let (device, counted) = (own.device(), counted as f32);
        let mut sums = [counted * scalar(own).await, counted];
        self.device.watchdog.restart();
        let begun = Instant::now();
        let group = &mut self.group;
        waiting(&self.device.watchdog, || group.sum(&mut sums, Wire::Float32))?;
        self.network += begun.elapsed();
        let [loss, tokens] = sums;
        Ok(Tensor::from_floats([loss / tokens], &device))
    }

    /// Ends the round if it is over.
    pub(super) async fn end_round_if_due(&mut self) -> Result<(), TrainError> {
        match self.iteration.is_multiple_of(self.config.sync_every.get()) {
            true => self.end_round().await,
            false => Ok(()),
        }
    }

    /// Averages the weights of all ranks and makes the outer step, unless they have the same weights.
    ///
    /// # Errors
    /// `NotFinite` on every rank if the weights of one are not finite.
    pub(super) async fn end_round(&mut self) -> Result<(), TrainError> {
        if self.is_averaged() {
            return Ok(());
        }
        let part = self.part();
        let model = self.model.take().expect(MODEL);
        let mut change = self.optimizer.change(&model, part, &self.device.watchdog).await;
        let spent = self.sum(&mut change)?;
        self.network += spent;
        if !change.iter().all(|change| change.is_finite()) {
            let has_checkpoint = has_checkpoint(self.folder.path());
            let iter = self.iteration - 1;
            return Err(TrainError::NotFinite { iter, scaling: None, has_checkpoint });
        }
        self.model = Some(self.optimizer.step_outer(model, &change));
        self.device.watchdog.restart();
        self.averaged = self.iteration;
        if std::mem::take(&mut self.wants_checkpoint) {
            self.save().await?;
        }
        Ok(())
    }

    /// Sums values over all ranks; returns the time that it took.
    fn sum(&mut self, values: &mut [f32]) -> Result<Duration, TrainError> {
        let begun = Instant::now();
        for values in values.chunks_mut(SUMMED_AT_ONCE) {
            let (group, wire) = (&mut self.group, self.wire);
            waiting(&self.device.watchdog, || group.sum(values, wire))?;
        }
        Ok(begun.elapsed())
    }

    /// Writes the optimizer states of the ranks other than the first, which belong to the checkpoint
    /// that rank 0 writes then. One that cannot be written is a warning: a run can continue without it,
    /// and an error would end rank 0 before the checkpoint.
    ///
    /// # Errors
    /// If a rank does not answer.
    pub(super) async fn write_own_states(&mut self) -> Result<(), TrainError> {
        if !self.config.trains_apart() || self.group.is_alone() {
            return Ok(());
        }
        let (run, rank) = (self.folder.path(), self.group.rank());
        self.device.watchdog.allow_silence(Duration::MAX);
        // Those that are there before this one: the former states stay until rank 0 has its checkpoint.
        let existing = self.group.share(checkpoint::iterations(&self.folder.checkpoints()))?;
        let mut failed = None;
        if rank > 0 {
            own_states::prune(run, rank, &existing);
            let file = own_states::file(run, rank, self.iteration);
            let written = own_states::write(&file, self.model(), &self.optimizer).await;
            failed =
                written.err().map(|error| format!("{error}; {}", error.hint().unwrap_or_default()));
        }
        // A checkpoint is complete only with them.
        let failed = self.group.collect(&failed)?;
        self.device.watchdog.restart();
        for (rank, failed) in failed.into_iter().enumerate() {
            let Some(error) = failed else { continue };
            self.warn(format!(
                "rank {rank} has not saved its optimizer state; a run that continues from iteration \
                 {} may take that of rank 0, with slightly other losses: {error}",
                self.iteration
            ));
        }
        Ok(())
    }
}
