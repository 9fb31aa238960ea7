//! What a session does together with the other ranks of its run: sums of gradients and losses, and
//! the decisions of rank 0.

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use web_time::Instant;

use super::control::is_late;
use super::working::Reporter;
use super::{MODEL, Session};
use crate::data::windows;
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu;
use crate::gpu::Watchdog;
use crate::protocol::{RankStep, Task};
#[cfg(not(target_arch = "wasm32"))]
use crate::ranks::Wire;
use crate::ranks::{Group, RanksError};
use crate::train::evaluate::sum_losses;
use crate::train::{Commands, Next, TrainError};

/// Elements that are summed at once: enough that the answer time of a network does not count, and few
/// enough that the next tensors come from the device meanwhile. The last sum of an update has fewer.
#[cfg(not(target_arch = "wasm32"))]
const SUMMED_AT_ONCE: usize = 4 << 20;

/// What rank 0 decides between two updates, by its clock and its commands.
#[derive(Serialize, Deserialize)]
pub(super) struct Turn {
    /// True once the run has used up its `max_time`.
    pub is_late: bool,
    /// The next command.
    pub next: Next,
}

/// Calls `work`, in which this rank waits for others: its device is not to be taken for hung.
pub(super) fn waiting<T>(watchdog: &Watchdog, work: impl FnOnce() -> T) -> T {
    watchdog.allow_silence(Duration::MAX);
    let result = work();
    watchdog.restart();
    result
}

impl Session<'_> {
    /// Returns the decision of rank 0, which is the same on every rank: all apply the same commands
    /// between the same two updates.
    pub(super) fn turn(&mut self, commands: &mut impl Commands) -> Result<Turn, TrainError> {
        let decides = self.group.is_first();
        let is_late = decides && is_late(&self.config, self.started);
        let next = match decides && !is_late {
            true => self.queued.pop_front().map_or_else(|| commands.next(), Next::Command),
            false => Next::None,
        };
        let own = Turn { is_late, next };
        if self.group.is_alone() {
            return Ok(own);
        }
        let group = &mut self.group;
        Ok(waiting(&self.device.watchdog, || group.share(own))?)
    }

    /// Returns what rank 0 has decided.
    pub(super) fn decided(&mut self, own: bool) -> Result<bool, TrainError> {
        let group = &mut self.group;
        Ok(waiting(&self.device.watchdog, || group.share(own))?)
    }

    /// Takes the schedule of rank 0, which has measured the time of an update.
    pub(super) fn share_schedule(&mut self) -> Result<(), TrainError> {
        let config = &mut self.config;
        let own = (config.max_iters, config.warmup_iters, config.lr_decay_iters);
        let group = &mut self.group;
        let shared = waiting(&self.device.watchdog, || group.share(own))?;
        (config.max_iters, config.warmup_iters, config.lr_decay_iters) = shared;
        Ok(())
    }

    /// Returns the parts of all ranks in the last updates; none for a run in one process.
    pub(super) fn of_all_ranks(&mut self, own: RankStep) -> Result<Vec<RankStep>, TrainError> {
        if self.group.is_alone() {
            return Ok(Vec::new());
        }
        let group = &mut self.group;
        Ok(waiting(&self.device.watchdog, || group.collect(&own))?)
    }

    /// Returns the mean losses of both splits, of which each rank evaluates a part in proportion to its
    /// share. Commands that arrive meanwhile wait for the end: the parts take different numbers of
    /// micro-batches, so that ranks could not stop together.
    pub(super) async fn evaluate_together(&mut self, wanted: u64) -> Result<[f64; 2], TrainError> {
        let evaluation = self.evaluation();
        let (rank, watchdog) = (self.group.rank(), &self.device.watchdog);
        let (model, dataset) = (self.model.as_ref().expect(MODEL), &self.dataset);
        let block_size = evaluation.block_size;
        let splits = [&dataset.train, &dataset.val];
        let all = splits.map(|split| windows::eval_starts(split.len(), block_size as u64, wanted));
        let own =
            [&all[0], &all[1]].map(|starts| &starts[self.division.shares.part(rank, starts.len())]);
        let count = (own[0].len() + own[1].len()) as u64;
        let mut reporter = Reporter::new(Task::Evaluation, count, watchdog, &mut *self.emit);
        let (mut sums, mut before) = ([0.0; 2], 0);
        for (sum, (split, starts)) in sums.iter_mut().zip(splits.into_iter().zip(own)) {
            let mut stop = |done: u64| {
                watchdog.restart();
                reporter.report(before + done);
                false
            };
            let of_split =
                sum_losses(model, dataset, split, starts, &evaluation, &mut stop).await?;
            *sum = of_split.unwrap_or_default();
            before += starts.len() as u64;
        }
        let tokens = all.map(|starts| (starts.len() * block_size) as f64);
        let group = &mut self.group;
        let sums = waiting(watchdog, || sum_exactly(group, sums))?;
        Ok([sums[0] / tokens[0], sums[1] / tokens[1]])
    }
}

/// Sums numbers over all ranks, in f64. As text they might lose their last bit, and NaN.
fn sum_exactly(group: &mut Group, own: [f64; 2]) -> Result<[f64; 2], RanksError> {
    let all = group.collect(&own.map(f64::to_bits))?;
    let mut sums = [0.0; 2];
    for of_rank in all {
        for (sum, bits) in sums.iter_mut().zip(of_rank) {
            *sum += f64::from_bits(bits);
        }
    }
    Ok(sums)
}

/// The gradients of an update, on their way from the device over all ranks and back.
#[cfg(not(target_arch = "wasm32"))]
struct Summing<'a> {
    group: &'a mut Group,
    wire: Wire,
    watchdog: &'a Watchdog,
    device: Device,
    /// Elements of this rank, of which the first `summed` are those of all ranks.
    values: Vec<f32>,
    summed: usize,
    /// The lengths of the tensors in `values`.
    lengths: VecDeque<usize>,
    done: Vec<Tensor<1>>,
    /// The time in the communication.
    spent: Duration,
}

/// Sums tensors `[elements]` over all ranks, whose tensors have as many elements in all. Returns the
/// sums on the device of the tensors, and the time that the communication took, which includes the
/// time for which this rank waited for others.
///
/// Each tensor leaves the device before its sum comes back, so that the device holds no more than
/// before. Cuts do not follow the tensors: devices may split an embedding into other shards.
#[cfg(not(target_arch = "wasm32"))]
pub(super) async fn sum_over_ranks(
    group: &mut Group,
    wire: Wire,
    watchdog: &Watchdog,
    tensors: Vec<Tensor<1>>,
) -> Result<(Vec<Tensor<1>>, Duration), TrainError> {
    let Some(first) = tensors.first() else { return Ok((tensors, Duration::ZERO)) };
    let mut summing = Summing {
        group,
        wire,
        watchdog,
        device: first.device(),
        values: Vec::new(),
        summed: 0,
        lengths: VecDeque::new(),
        done: Vec::with_capacity(tensors.len()),
        spent: Duration::ZERO,
    };
    let mut readings = tensors.into_iter().map(gpu::begin_read);
    let mut next = readings.next();
    while let Some(reading) = next {
        let data = reading.await?;
        watchdog.restart();
        // It is on its way while the others are summed.
        next = readings.next();
        summing.add(&data)?;
    }
    summing.finish()
}

#[cfg(not(target_arch = "wasm32"))]
impl Summing<'_> {
    fn add(&mut self, data: &TensorData) -> Result<(), TrainError> {
        let values: &[f32] = data.as_slice().expect("sums of gradients are f32");
        self.values.extend_from_slice(values);
        self.lengths.push_back(values.len());
        while self.values.len() - self.summed >= SUMMED_AT_ONCE {
            self.sum(SUMMED_AT_ONCE)?;
        }
        Ok(())
    }

    /// Sums the next `count` elements, and uploads the tensors that are complete.
    fn sum(&mut self, count: usize) -> Result<(), TrainError> {
        let begun = Instant::now();
        let values = &mut self.values[self.summed..self.summed + count];
        let (group, wire) = (&mut *self.group, self.wire);
        waiting(self.watchdog, || group.sum(values, wire))?;
        self.spent += begun.elapsed();
        self.summed += count;
        let mut taken = 0;
        while let Some(&length) = self.lengths.front()
            && taken + length <= self.summed
        {
            let own = self.values[taken..taken + length].to_vec();
            self.done.push(Tensor::from_data(TensorData::new(own, [length]), &self.device));
            self.lengths.pop_front();
            taken += length;
        }
        self.values.drain(..taken);
        self.summed -= taken;
        Ok(())
    }

    fn finish(mut self) -> Result<(Vec<Tensor<1>>, Duration), TrainError> {
        let rest = self.values.len() - self.summed;
        self.sum(rest)?;
        Ok((self.done, self.spent))
    }
}
