//! The outer step of ranks that train apart: DiLoCo (Douillard et al. 2023, arXiv:2311.08105).
//!
//! Each rank makes some updates on its own. Then the ranks average what their weights have moved by,
//! which takes the place of a gradient in an SGD with Nesterov momentum over the weights of the last
//! average:
//!
//! ```text
//! change   = sum over ranks of share * (weights - own weights)
//! momentum = outer_momentum * momentum + change
//! weights -= outer_learning_rate * (change + outer_momentum * momentum)
//! ```
//!
//! Without momentum and with a rate of 1 the weights become the average of all ranks' own.
//!
//! The weights of the last average and the momentum are in host memory, 8 bytes a weight. They are
//! needed once in many updates, and the change crosses the host on its way to the other ranks. Every
//! rank makes the same step from the same sums, so that no rank sends its weights.

use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::state::{cut, host, lengths, pieces};
use super::{OUTER, Optimizer};
use crate::config::Config;
use crate::gpu::Watchdog;
use crate::model::{FlatWeight, Gpt, Parameter, map_weights, parameters, values};

/// The state of the outer step, in the order of the model's weights, padding included.
#[derive(Debug, Default)]
pub(super) struct Outer {
    /// The weights after the last average; empty before the first update of a process.
    weights: Vec<f32>,
    /// The momentum; empty before the first step of a run.
    momentum: Vec<f32>,
    learning_rate: f32,
    beta: f32,
}

impl Outer {
    /// The outer step of a run of `config`; `None` if its ranks do not train apart.
    pub fn of(config: &Config) -> Option<Self> {
        let (learning_rate, beta) =
            (config.outer_learning_rate as f32, config.outer_momentum as f32);
        config.trains_apart().then(|| Self { learning_rate, beta, ..Self::default() })
    }

    /// Turns the weights of this rank into their change since the last average, times its share.
    fn change(&self, own: &mut [f32], share: f32) {
        for (own, weight) in own.iter_mut().zip(&self.weights) {
            *own = (weight - *own) * share;
        }
    }

    /// Makes a step along the change of all ranks.
    fn step(&mut self, change: &[f32]) {
        self.momentum.resize(self.weights.len(), 0.0);
        let state = self.weights.iter_mut().zip(&mut self.momentum);
        for ((weight, momentum), change) in state.zip(change) {
            *momentum = self.beta * *momentum + change;
            *weight -= self.learning_rate * (change + self.beta * *momentum);
        }
    }
}

impl Optimizer {
    /// Remembers the weights from which the ranks move apart, before the first update of a process.
    pub async fn begin_apart(&mut self, model: &Gpt, watchdog: &Watchdog) {
        let weights = read(self.weights(model), watchdog).await;
        if let Some(outer) = &mut self.outer {
            outer.weights = weights;
        }
    }

    /// Returns what the weights of this rank have moved by since the last average, times its share of
    /// the global batch, negated like a gradient. To be summed over all ranks.
    pub async fn change(&self, model: &Gpt, share: f32, watchdog: &Watchdog) -> Vec<f32> {
        let mut values = read(self.weights(model), watchdog).await;
        if let Some(outer) = &self.outer {
            outer.change(&mut values, share);
        }
        values
    }

    /// Makes the outer step along `change`, summed over all ranks, and gives `model` its weights.
    pub fn step_outer(&mut self, mut model: Gpt, change: &[f32]) -> Gpt {
        let Some(outer) = &mut self.outer else { return model };
        outer.step(change);
        // They are made anew from the weights.
        let had_copies = !model.take_half_weights().is_empty();
        let (mut parts, mut rest) = (self.parts.iter_mut(), outer.weights.as_slice());
        let mut model = map_weights(model, |FlatWeight { id, value, shape }| {
            let (device, dtype) = (value.device(), value.dtype());
            // Its memory is free for the new one.
            drop(value);
            let elements = shape.num_elements();
            let (own, others) = rest.split_at(elements.min(rest.len()));
            rest = others;
            // The master weights, too, if the host keeps them.
            if let Some(part) = parts.next()
                && let Some(master) = part.masters.first()
            {
                part.masters = cut(own, &lengths(elements), &master.device());
            }
            let new = TensorData::new(own.to_vec(), [elements]);
            let new: Tensor<1> = Tensor::from_data(new, &device);
            let value = if dtype == DType::F32 { new } else { new.cast(FloatDType::from(dtype)) };
            FlatWeight { id, value, shape }
        });
        if had_copies {
            model.keep_half_weights(self.mode.precision);
        }
        model
    }

    /// Returns the momentum of the outer step as checkpoints save it, like
    /// [`saved_states`](Self::saved_states); nothing before the first step.
    pub fn saved_outer(&self, model: &Gpt) -> Vec<Parameter> {
        let Some(outer) = self.outer.as_ref().filter(|outer| !outer.momentum.is_empty()) else {
            return Vec::new();
        };
        let mut rest = outer.momentum.as_slice();
        let saved = |Parameter { name, shape, parts }: Parameter| {
            let device = host().unwrap_or_else(|| parts[0].device());
            let (own, others) = rest.split_at(elements(&parts).min(rest.len()));
            rest = others;
            let parts = cut(own, &lengths(own.len()), &device);
            Parameter { name: format!("{OUTER}.{name}"), shape, parts }
        };
        parameters(model).into_iter().map(saved).collect()
    }

    /// Continues with the saved momentum of the outer step. `saved` is as in [`load`](Self::load).
    pub fn load_outer<E>(
        &mut self,
        model: &Gpt,
        mut saved: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        let Some(outer) = &mut self.outer else { return Ok(()) };
        for Parameter { name, shape, parts } in parameters(model) {
            let mut momentum = saved(&format!("{OUTER}.{name}"), &shape)?;
            momentum.resize(elements(&parts), 0.0);
            outer.momentum.append(&mut momentum);
        }
        Ok(())
    }
}

fn elements(parts: &[Tensor<1>]) -> usize {
    parts.iter().map(|part| part.dims()[0]).sum()
}

/// Reads weights, which are f32, piece by piece: staging a whole embedding would take as much again.
async fn read(weights: Vec<Parameter>, watchdog: &Watchdog) -> Vec<f32> {
    let mut all = Vec::with_capacity(weights.iter().map(|weight| elements(&weight.parts)).sum());
    for part in weights.into_iter().flat_map(|weight| weight.parts) {
        for piece in pieces(part.dims()[0]) {
            let data = values(part.clone().narrow(0, piece.start, piece.len())).await;
            all.extend(data.iter::<f32>());
            watchdog.restart();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SumDtype;
    use crate::ranks::on_threads;

    const LEN: usize = 1000;

    /// A number between -1 and 1 that depends on both.
    fn number(index: usize, salt: usize) -> f32 {
        ((index * 7919 + salt * 104_729) % 2003) as f32 / 1001.0 - 1.0
    }

    /// The gradient of a rank at these weights: that of a quadratic of its own data.
    fn gradient(weights: &[f32], rank: usize) -> Vec<f32> {
        let of = |(index, weight): (usize, &f32)| weight - number(index, rank + 1);
        weights.iter().enumerate().map(of).collect()
    }

    fn initial() -> Vec<f32> {
        (0..LEN).map(|index| number(index, 0)).collect()
    }

    #[test]
    fn averages_after_each_sgd_update_are_data_parallel_training() {
        const RATE: f32 = 0.1;
        let shares = [0.5, 0.3, 0.2];
        let mut expected = initial();
        for _ in 0..20 {
            let gradients: Vec<_> = (0..3).map(|rank| gradient(&expected, rank)).collect();
            for (index, weight) in expected.iter_mut().enumerate() {
                let of_rank = |(rank, share): (usize, &f32)| share * gradients[rank][index];
                *weight -= RATE * shares.iter().enumerate().map(of_rank).sum::<f32>();
            }
        }
        let all = on_threads(3, |mut group| {
            let mut outer = Outer { weights: initial(), learning_rate: 1.0, ..Outer::default() };
            for _ in 0..20 {
                let mut own = outer.weights.clone();
                let gradient = gradient(&own, group.rank());
                own.iter_mut().zip(gradient).for_each(|(own, slope)| *own -= RATE * slope);
                outer.change(&mut own, shares[group.rank()]);
                group.sum(&mut own, SumDtype::Float32).unwrap();
                outer.step(&own);
            }
            outer.weights
        });
        for weights in &all {
            assert_eq!(weights, &all[0], "every rank makes the same step");
            for (found, expected) in weights.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
            }
        }
    }

    #[test]
    fn the_momentum_is_nesterovs() {
        let mut outer =
            Outer { weights: vec![1.0], momentum: Vec::new(), learning_rate: 0.5, beta: 0.8 };
        // As torch.optim.SGD(lr=0.5, momentum=0.8, nesterov=True) with these gradients.
        outer.step(&[0.25]);
        // The buffer is 0.25, the step 0.5 * (0.25 + 0.8 * 0.25).
        assert!((outer.weights[0] - 0.775).abs() < 1e-6, "{outer:?}");
        outer.step(&[-0.5]);
        // The buffer is -0.3, the step 0.5 * (-0.5 - 0.8 * 0.3).
        assert!((outer.momentum[0] + 0.3).abs() < 1e-6, "{outer:?}");
        assert!((outer.weights[0] - 1.145).abs() < 1e-6, "{outer:?}");
    }
}
