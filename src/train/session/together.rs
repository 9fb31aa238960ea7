//! What a session does together with the other ranks of its run: sums of gradients and losses, and
//! the decisions of rank 0.

use std::collections::VecDeque;
use std::time::Duration;

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use web_time::Instant;

use super::Session;
use super::control::is_late;
use crate::gpu::{self, DeviceError, Reading, Watchdog};
use crate::protocol::RankStep;
use crate::ranks::{Group, Wire};
use crate::train::{Commands, Next, TrainError};

/// Elements that are summed at once: enough that the answer time of a network does not count, and few
/// enough that the next tensors come from the device meanwhile. The last sum of an update has fewer.
const SUMMED_AT_ONCE: usize = 4 << 20;

/// The most elements that leave the device at once, 512 MiB in the staging memory of the host: more than
/// a network carries during the backward pass of a micro-batch, unless it is so fast that it does not
/// matter.
const MOST_BEGUN: usize = 128 << 20;

/// The time between two looks for a gradient that has not arrived.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

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

    /// Returns the measurements of all ranks, with the same bits on each.
    pub(super) fn measured_by_ranks(&mut self, own: f64) -> Result<Vec<f64>, TrainError> {
        let group = &mut self.group;
        let all = waiting(&self.device.watchdog, || group.collect(&own.to_bits()))?;
        Ok(all.into_iter().map(f64::from_bits).collect())
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
}

/// The gradients of an update on their way to the host, while the device goes on with the backward pass.
///
/// A GPU copies each when it has computed it, with the rest of the pass queued behind: while this thread
/// sums over ranks what has arrived, the device computes. The CPU computes in this thread, and CUDA's
/// reads block it; there, the sums begin after the pass.
#[derive(Default)]
pub(super) struct Gradients {
    /// Reads that have begun, with their elements.
    begun: VecDeque<(Reading, usize)>,
    /// The elements of all of them.
    elements: usize,
    /// The gradients that follow.
    held: VecDeque<Tensor<1>>,
    nudges: Vec<Reading>,
}

impl Gradients {
    /// Takes a gradient to which nothing more is added.
    pub fn push(&mut self, gradient: Tensor<1>) {
        self.held.push_back(gradient);
        self.begin_reads();
    }

    fn begin_reads(&mut self) {
        while let Some(gradient) = self.held.pop_front() {
            let [elements] = gradient.dims();
            if !self.begun.is_empty() && self.elements + elements > MOST_BEGUN {
                self.held.push_front(gradient);
                return;
            }
            self.elements += elements;
            self.begun.push_back((gpu::begin_read(gradient), elements));
        }
    }

    /// Returns the next gradient when it has arrived; `later` is a tensor of the device.
    async fn next(&mut self, later: &Tensor<1>) -> Result<Option<TensorData>, DeviceError> {
        let Some((mut reading, elements)) = self.begun.pop_front() else { return Ok(None) };
        let mut pause = SHORTEST_PAUSE;
        while !gpu::is_done(&mut reading) {
            // wgpu tells what has arrived when something is submitted, else not before all is done. A
            // read must not be dropped: its memory would be taken for free.
            self.nudges.push(gpu::begin_read(later.clone()));
            if !gpu::is_done(&mut reading) {
                std::thread::sleep(pause);
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        }
        let data = reading.await?;
        self.elements -= elements;
        self.begin_reads();
        Ok(Some(data))
    }

    /// Ends what [`next`](Self::next) has begun.
    async fn end(self) -> Result<(), DeviceError> {
        for nudge in self.nudges {
            nudge.await?;
        }
        Ok(())
    }
}

/// The sums of gradients and loss over all ranks.
pub(super) struct Sums {
    /// In the order in which the gradients were given.
    pub gradients: Vec<Tensor<1>>,
    /// `[1]`.
    pub loss: Tensor<1>,
    /// The time that the communication took after the backward pass of this rank, which includes the
    /// time for which it waited for others.
    pub waited: Duration,
}

/// The gradients of an update, on their way from the host over all ranks and back to the device.
struct Summing<'a> {
    group: &'a mut Group,
    wire: Wire,
    watchdog: &'a Watchdog,
    device: Device,
    /// The read of the loss, which is queued behind the backward pass.
    loss: Reading,
    /// Elements of this rank, of which the first `summed` are those of all ranks.
    values: Vec<f32>,
    summed: usize,
    /// The lengths of the tensors in `values`.
    lengths: VecDeque<usize>,
    done: Vec<Tensor<1>>,
    waited: Duration,
}

/// Sums gradients and the `loss` `[1]` over all ranks, whose gradients have as many elements in all.
///
/// Each gradient leaves the device before its sum comes back, so that the device holds no more than
/// before. Cuts do not follow the tensors: devices may split an embedding into other shards.
pub(super) async fn sum_over_ranks(
    group: &mut Group,
    wire: Wire,
    watchdog: &Watchdog,
    mut gradients: Gradients,
    loss: Tensor<1>,
) -> Result<Sums, TrainError> {
    let mut summing = Summing {
        group,
        wire,
        watchdog,
        device: loss.device(),
        loss: gpu::begin_read(loss.clone()),
        values: Vec::new(),
        summed: 0,
        lengths: VecDeque::new(),
        done: Vec::new(),
        waited: Duration::ZERO,
    };
    while let Some(data) = gradients.next(&loss).await? {
        watchdog.restart();
        summing.add(&data)?;
    }
    gradients.end().await?;
    summing.finish().await
}

impl Summing<'_> {
    fn add(&mut self, data: &TensorData) -> Result<(), TrainError> {
        self.values.extend_from_slice(f32s(data));
        self.lengths.push_back(data.num_elements());
        while self.values.len() - self.summed >= SUMMED_AT_ONCE {
            self.sum(SUMMED_AT_ONCE)?;
        }
        Ok(())
    }

    /// Sums the next `count` elements, and uploads the tensors that are complete.
    fn sum(&mut self, count: usize) -> Result<(), TrainError> {
        let waits = gpu::is_done(&mut self.loss);
        let begun = Instant::now();
        let values = &mut self.values[self.summed..self.summed + count];
        let (group, wire) = (&mut *self.group, self.wire);
        waiting(self.watchdog, || group.sum(values, wire))?;
        if waits {
            self.waited += begun.elapsed();
        }
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

    /// Sums the rest, and the loss, which is a number to be read and keeps its digits.
    async fn finish(mut self) -> Result<Sums, TrainError> {
        let rest = self.values.len() - self.summed;
        self.sum(rest)?;
        let mut loss = f32s(&self.loss.await?).to_vec();
        let begun = Instant::now();
        waiting(self.watchdog, || self.group.sum(&mut loss, Wire::Float32))?;
        let loss = Tensor::from_data(TensorData::new(loss, [1]), &self.device);
        let waited = self.waited + begun.elapsed();
        Ok(Sums { gradients: self.done, loss, waited })
    }
}

fn f32s(data: &TensorData) -> &[f32] {
    data.as_slice().expect("gradients and losses are f32")
}
