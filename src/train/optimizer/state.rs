//! The optimizer state of each parameter, under its names in checkpoints.

use std::collections::HashMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};

use super::muon::{MatrixShares, matrices_of};
use crate::config::{Config, OptimizerKind, Precision};
use crate::model::{Architecture, Gpt, STAGED_ELEMENTS, WeightError, WeightSource};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101).
    AdamW,
    /// Muon (Jordan et al. 2024).
    Muon {
        /// The matrices side by side in the weight. Each is orthogonalized separately.
        matrices: MatrixShares,
    },
}

impl Rule {
    /// Returns the rule of the parameter `name` in a run of `config`.
    pub fn of(config: &Config, name: &str) -> Self {
        let matrices = match config.optimizer {
            OptimizerKind::AdamW => None,
            OptimizerKind::Muon => matrices_of(config, name),
        };
        matrices.map_or(Rule::AdamW, |matrices| Rule::Muon { matrices })
    }

    /// Returns the names of the states' tensors in checkpoints.
    pub fn kinds(self) -> &'static [&'static str] {
        match self {
            Rule::AdamW => &["m", "v"],
            Rule::Muon { .. } => &["m"],
        }
    }

    /// Returns true if the host keeps master weights of a parameter that the device stores in half
    /// or, without `is_half`, in f32. Muon computes on the device, which then has them.
    pub fn keeps_masters(self, is_half: bool) -> bool {
        is_half || self == Rule::AdamW
    }
}

/// The optimizer state of one part of a parameter, and its master weights. Each is one tensor `[elements]`
/// on the device, or one in host memory for each of the [`pieces`].
pub(super) struct PartState {
    pub rule: Rule,
    /// The master weights, where they are in host memory; else none.
    pub masters: Vec<Tensor<1>>,
    /// AdamW's first moment or Muon's momentum; none if another rank has it.
    pub m: Vec<Tensor<1>>,
    /// AdamW's second moment.
    pub v: Vec<Tensor<1>>,
}

impl PartState {
    pub fn states(&self, kind: &str) -> &[Tensor<1>] {
        if kind == "m" { &self.m } else { &self.v }
    }
}

/// Returns the memory of the host; `None` in a browser, where only the device holds tensors.
pub(super) fn host() -> Option<Device> {
    #[cfg(not(target_arch = "wasm32"))]
    return Some(Device::flex());
    #[cfg(target_arch = "wasm32")]
    None
}

/// The pieces of `elements` elements in host memory. Each crosses to or from the device at
/// once.
pub(super) fn pieces(elements: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..elements).step_by(STAGED_ELEMENTS);
    starts.map(move |first| first..(first + STAGED_ELEMENTS).min(elements))
}

/// Returns saved values in tensors of these lengths on `device`; without any, zeros.
pub(super) fn tensors(
    saved: Option<Vec<f32>>,
    lengths: &[usize],
    device: &Device,
) -> Vec<Tensor<1>> {
    match saved {
        Some(values) => cut(&values, lengths, device),
        // The system gives these pages of host memory when they are first written.
        None => lengths.iter().map(|&length| Tensor::zeros([length], device)).collect(),
    }
}

/// Returns the lengths of the [`pieces`] of `elements` elements.
pub(super) fn lengths(elements: usize) -> Vec<usize> {
    pieces(elements).map(|piece| piece.len()).collect()
}

/// Cuts values into tensors of these lengths. What is missing at their end is zero.
pub(super) fn cut(values: &[f32], lengths: &[usize], device: &Device) -> Vec<Tensor<1>> {
    let mut rest = values;
    let piece = |&length: &usize| {
        let (piece, others) = rest.split_at(length.min(rest.len()));
        rest = others;
        let mut piece = piece.to_vec();
        piece.resize(length, 0.0);
        Tensor::from_data(TensorData::new(piece, [length]), device)
    };
    lengths.iter().map(piece).collect()
}

/// The master weights of an offloaded optimizer, kept while a model is built: in f32 and in host
/// memory, whatever the model stores on its device.
pub struct Masters {
    pub(super) host: Device,
    config: Config,
    /// The weights that the host updates, by the name of their parameter and without padding. A missing one
    /// is zero.
    values: HashMap<String, Vec<f32>>,
}

impl Masters {
    /// Keeps no weight of a run of `config` yet: all are zero. `None` in a browser, where no CPU
    /// backend would update them.
    pub fn new(config: &Config) -> Option<Self> {
        let host = host()?;
        Some(Self { host, config: config.clone(), values: HashMap::new() })
    }

    /// Builds a model with the weights of `source`, matrices and embeddings in the dtype of
    /// activations in `precision`, and keeps the weights that the host updates.
    pub fn model(
        &mut self,
        precision: Precision,
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
    ) -> Result<Gpt, WeightError> {
        let mut kept = KeepingSource { masters: self, is_half: precision.is_half(), source };
        Gpt::stored_in(precision, architecture, &mut kept, device)
    }

    /// Takes the weights of the parameter `name`, in tensors of these lengths.
    pub(super) fn take(&mut self, name: &str, lengths: &[usize]) -> Vec<Tensor<1>> {
        tensors(self.values.remove(name), lengths, &self.host)
    }
}

/// A source of weights that keeps the masters of what it returns.
struct KeepingSource<'a> {
    masters: &'a mut Masters,
    /// True if the model stores matrices in half.
    is_half: bool,
    source: &'a mut dyn WeightSource,
}

impl WeightSource for KeepingSource<'_> {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let values = self.source.weight(name, shape)?;
        if Rule::of(&self.masters.config, name).keeps_masters(self.is_half) {
            self.masters.values.insert(name.to_string(), values.clone());
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cut_in_order_and_padded_with_zeros() {
        let device = Device::flex();
        let cut = cut(&[1.0, 2.0, 3.0], &[2, 2, 1], &device);
        let values: Vec<Vec<f32>> =
            cut.into_iter().map(|piece| piece.into_data().iter().collect()).collect();
        assert_eq!(values, [vec![1.0, 2.0], vec![3.0, 0.0], vec![0.0]]);
        assert_eq!(lengths(5), [5]);
        assert_eq!(lengths(2 * STAGED_ELEMENTS + 1), [STAGED_ELEMENTS, STAGED_ELEMENTS, 1]);
    }

    struct Ones;

    impl WeightSource for Ones {
        fn weight(&mut self, _: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            Ok(vec![1.0; shape.iter().product()])
        }
    }

    #[test]
    fn the_host_holds_no_second_copy_of_weights_that_the_device_updates() {
        for (optimizer, is_half, expected) in [
            (OptimizerKind::AdamW, false, 2),
            (OptimizerKind::AdamW, true, 2),
            (OptimizerKind::Muon, false, 1),
            (OptimizerKind::Muon, true, 2),
        ] {
            let config = Config { optimizer, ..Config::default() };
            let mut masters = Masters::new(&config).unwrap();
            let mut kept = KeepingSource { masters: &mut masters, is_half, source: &mut Ones };
            for name in ["wte.weight", "h.0.mlp.c_fc.weight"] {
                assert_eq!(kept.weight(name, &[2, 2]).unwrap(), [1.0; 4]);
            }
            assert_eq!(masters.values.len(), expected, "{optimizer}, half: {is_half}");
        }
    }
}
