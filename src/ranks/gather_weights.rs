//! Sends the weights of a model from the ranks that have updated them to all others.
//!
//! The weights of a rank are a stream, in the order of the model. In each round every rank sends the
//! next [`STAGED_ELEMENTS`] of its stream, which keeps all links busy, while the device copies the next
//! round's elements to the host. Weights are written in place: only the pieces in transit take memory.

use std::ops::Range;
use std::time::Duration;

use burn::tensor::{FloatDType, Tensor, TensorData};
use web_time::Instant;

use super::sharding::{Sharding, overlaps};
use super::{Group, RanksError};
use crate::gpu::{self, DeviceError, Reading, Watchdog};
use crate::model::{FlatWeight, Gpt, STAGED_ELEMENTS, parameters, put_weights, take_weights};

impl Sharding {
    /// Brings the weights that other ranks have updated to this one. Returns the time that the
    /// communication took.
    pub(crate) async fn gather_weights<E: From<RanksError> + From<DeviceError>>(
        &self,
        model: &mut Gpt,
        group: &mut Group,
        watchdog: &Watchdog,
    ) -> Result<Duration, E> {
        let (streams, is_own) = WeightStream::all(model, self, group.size());
        let weights = take_weights(model);
        let mut exchange =
            WeightExchange { weights, streams, rank: self.rank, spent: Duration::ZERO };
        exchange.run::<E>(group, watchdog).await?;
        for (FlatWeight { value, half, .. }, is_own) in exchange.weights.iter_mut().zip(is_own) {
            // The copy of a weight that another rank has updated.
            if !is_own && let Some(former) = half.take() {
                let dtype = FloatDType::from(former.dtype());
                drop(former);
                *half = Some(value.clone().cast(dtype));
            }
        }
        put_weights(model, exchange.weights);
        Ok(exchange.spent)
    }
}

/// The weights of one rank.
struct WeightStream {
    /// The indices of the tensors that hold them on this rank, with their elements. Devices may split
    /// an embedding into different shards, which are the same elements together.
    tensors: Vec<(usize, usize)>,
    elements: usize,
}

impl WeightStream {
    /// Returns the streams of all ranks, and for each tensor of `model` true if it is in this rank's stream.
    fn all(model: &Gpt, sharding: &Sharding, ranks: usize) -> (Vec<Self>, Vec<bool>) {
        let empty = || Self { tensors: Vec::new(), elements: 0 };
        let mut streams: Vec<Self> = (0..ranks).map(|_| empty()).collect();
        let mut is_own = Vec::new();
        for (parameter, &owner) in parameters(model).iter().zip(&sharding.owners) {
            for part in &parameter.parts {
                let [elements] = part.dims();
                streams[owner].tensors.push((is_own.len(), elements));
                streams[owner].elements += elements;
                is_own.push(owner == sharding.rank);
            }
        }
        (streams, is_own)
    }

    /// Returns the elements that are sent in a round.
    fn chunk(&self, round: usize) -> Range<usize> {
        let end = |round: usize| (round * STAGED_ELEMENTS).min(self.elements);
        end(round)..end(round + 1)
    }

    /// Returns the tensors with elements of a round, each with the range of these elements.
    fn pieces(&self, round: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let lengths = self.tensors.iter().map(|&(_, elements)| elements);
        overlaps(lengths, self.chunk(round)).map(|(at, range)| (self.tensors[at].0, range))
    }
}

/// The exchange of a model's weights between ranks.
struct WeightExchange {
    /// Nothing else holds their values.
    weights: Vec<FlatWeight>,
    /// One for each rank.
    streams: Vec<WeightStream>,
    rank: usize,
    /// The time in the communication.
    spent: Duration,
}

impl WeightExchange {
    async fn run<E: From<RanksError> + From<DeviceError>>(
        &mut self,
        group: &mut Group,
        watchdog: &Watchdog,
    ) -> Result<(), E> {
        let rounds = |stream: &WeightStream| stream.elements.div_ceil(STAGED_ELEMENTS);
        let rounds = self.streams.iter().map(rounds).max().unwrap_or(0);
        let mut next = self.begin_reads(0);
        for round in 0..rounds {
            let readings = std::mem::replace(&mut next, self.begin_reads(round + 1));
            let mut end = 0;
            let parts: Vec<Range<usize>> = self
                .streams
                .iter()
                .map(|stream| {
                    let start = end;
                    end += stream.chunk(round).len();
                    start..end
                })
                .collect();
            let mut values = vec![0.0; end];
            let mut at = parts[self.rank].start;
            for reading in readings {
                let data = reading.await?;
                let read: &[f32] = data.as_slice().expect("weights are f32");
                values[at..at + read.len()].copy_from_slice(read);
                at += read.len();
            }
            let begun = Instant::now();
            group.all_gather(&mut values, &parts)?;
            self.spent += begun.elapsed();
            self.write(round, &values, &parts);
            // Else the staging memory of all rounds would stay.
            if let Some(weight) = self.weights.first() {
                gpu::finish(&weight.value.device()).await?;
            }
            watchdog.restart();
        }
        Ok(())
    }

    /// Begins to read the weights that this rank sends in a round.
    fn begin_reads(&self, round: usize) -> Vec<Reading> {
        let begin = |(index, piece): (usize, Range<usize>)| {
            gpu::begin_read(self.weights[index].value.clone().narrow(0, piece.start, piece.len()))
        };
        self.streams[self.rank].pieces(round).map(begin).collect()
    }

    /// Writes the weights that have arrived in a round, `parts` of `values`.
    fn write(&mut self, round: usize, values: &[f32], parts: &[Range<usize>]) {
        for (owner, part) in parts.iter().enumerate() {
            if owner == self.rank {
                continue;
            }
            let mut rest = &values[part.clone()];
            for (index, piece) in self.streams[owner].pieces(round) {
                let (arrived, others) = rest.split_at(piece.len());
                rest = others;
                let weight = &mut self.weights[index].value;
                let data = TensorData::new(arrived.to_vec(), [arrived.len()]);
                let arrived = Tensor::from_data(data, &weight.device());
                weight.inplace(|weight| weight.slice_assign([piece], arrived));
            }
        }
    }
}
