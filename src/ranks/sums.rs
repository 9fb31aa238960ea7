//! The sums of gradients and losses over all ranks, through host memory.
//!
//! Everything here blocks its thread, which has nothing else to do meanwhile: ranks are processes.

use std::collections::VecDeque;
use std::time::Duration;

use burn::tensor::{Device, Tensor, TensorData};
use web_time::Instant;

use super::{Group, RanksError};
use crate::gpu::{self, DeviceError, Reading, Watchdog};

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

/// The gradients of an update that leave for the host while the device continues the backward pass.
///
/// A GPU copies each gradient once it is computed, with the rest of the pass queued behind it: the device
/// computes while this thread sums over ranks what has arrived. The CPU computes in this thread, and
/// CUDA's reads block it; there, the sums begin after the pass.
#[derive(Default)]
pub struct LeavingGradients {
    /// Reads that have begun, with their elements.
    begun: VecDeque<(Reading, usize)>,
    elements: usize,
    held: VecDeque<Tensor<1>>,
    /// The index of each gradient in the model's order.
    order: Vec<usize>,
    nudges: Vec<Reading>,
}

impl LeavingGradients {
    /// Takes a gradient to which nothing more is added, and its index in the model's order.
    pub fn push(&mut self, index: usize, gradient: Tensor<1>) {
        self.order.push(index);
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
    fn next(&mut self, later: &Tensor<1>) -> Result<Option<TensorData>, DeviceError> {
        let Some((mut reading, elements)) = self.begun.pop_front() else { return Ok(None) };
        let mut pause = SHORTEST_PAUSE;
        while !gpu::is_done(&mut reading) {
            // wgpu reports what has arrived when something is submitted, else not before all is done. A
            // read must not be dropped, or its memory would count as free.
            self.nudges.push(gpu::begin_read(later.clone()));
            if !gpu::is_done(&mut reading) {
                std::thread::sleep(pause);
                pause = LONGEST_PAUSE.min(2 * pause);
            }
        }
        let data = wait(reading)?;
        self.elements -= elements;
        self.begin_reads();
        Ok(Some(data))
    }

    /// Ends what [`next`](Self::next) has begun.
    fn end(self) -> Result<(), DeviceError> {
        for nudge in self.nudges {
            wait(nudge)?;
        }
        Ok(())
    }
}

pub struct GradientSums {
    /// In the model's order.
    pub gradients: Vec<Tensor<1>>,
    /// `[1]`.
    pub loss: Tensor<1>,
    /// The time that the communication took after the backward pass of this rank, which includes the
    /// time for which it waited for others.
    pub waited: Duration,
}

/// The gradients of an update between the host, the other ranks and the device.
struct Summing<'a> {
    group: &'a mut Group,
    device: Device,
    /// The read of the loss, which is queued behind the backward pass.
    loss: Reading,
    /// Elements of this rank. The first `summed` of them are already the sums over all ranks.
    values: Vec<f32>,
    summed: usize,
    /// The lengths of the tensors in `values`.
    lengths: VecDeque<usize>,
    done: Vec<Tensor<1>>,
    waited: Duration,
}

/// Sums gradients and the `loss` `[1]` over all ranks. Each rank has the same number of elements.
///
/// Each gradient leaves the device before its sum returns, so the device holds no more than before. Cuts do
/// not follow the tensors, because devices may split an embedding into other shards.
pub fn sum_over_ranks<E: From<RanksError> + From<DeviceError>>(
    group: &mut Group,
    watchdog: &Watchdog,
    mut gradients: LeavingGradients,
    loss: Tensor<1>,
) -> Result<GradientSums, E> {
    let mut summing = Summing {
        group,
        device: loss.device(),
        loss: gpu::begin_read(loss.clone()),
        values: Vec::new(),
        summed: 0,
        lengths: VecDeque::new(),
        done: Vec::new(),
        waited: Duration::ZERO,
    };
    while let Some(data) = gradients.next(&loss)? {
        watchdog.restart();
        summing.add(&data)?;
    }
    let order = std::mem::take(&mut gradients.order);
    gradients.end()?;
    summing.finish(order)
}

impl Summing<'_> {
    fn add(&mut self, data: &TensorData) -> Result<(), RanksError> {
        self.values.extend_from_slice(f32s(data));
        self.lengths.push_back(data.num_elements());
        while self.values.len() - self.summed >= SUMMED_AT_ONCE {
            self.sum(SUMMED_AT_ONCE)?;
        }
        Ok(())
    }

    /// Sums the next `count` elements, and uploads the tensors that are complete.
    fn sum(&mut self, count: usize) -> Result<(), RanksError> {
        let waits = gpu::is_done(&mut self.loss);
        let begun = Instant::now();
        let values = &mut self.values[self.summed..self.summed + count];
        self.group.sum(values)?;
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

    /// Sums the rest and the loss. `order` has the index of each gradient.
    fn finish<E>(mut self, order: Vec<usize>) -> Result<GradientSums, E>
    where
        E: From<RanksError> + From<DeviceError>,
    {
        let rest = self.values.len() - self.summed;
        self.sum(rest)?;
        let mut loss = f32s(&wait(self.loss)?).to_vec();
        let begun = Instant::now();
        self.group.sum(&mut loss)?;
        let loss = Tensor::from_data(TensorData::new(loss, [1]), &self.device);
        let waited = self.waited + begun.elapsed();
        let mut gradients: Vec<_> = order.into_iter().zip(self.done).collect();
        gradients.sort_by_key(|(index, _)| *index);
        let gradients = gradients.into_iter().map(|(_, gradient)| gradient).collect();
        Ok(GradientSums { gradients, loss, waited })
    }
}

fn f32s(data: &TensorData) -> &[f32] {
    data.as_slice().expect("gradients and losses are f32")
}

/// Waits for the device. A page has one rank, which sums nothing.
fn wait<T>(work: impl Future<Output = T>) -> T {
    #[cfg(not(target_arch = "wasm32"))]
    return pollster::block_on(work);
    #[cfg(target_arch = "wasm32")]
    unreachable!("a page must not block, and has no other ranks: {}", size_of_val(&work))
}
