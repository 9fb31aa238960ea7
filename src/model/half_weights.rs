//! Half-precision copies of the matrices: float16 for cooperative matrices, bfloat16 for tensor cores.
//!
//! A model has them only while it trains. The optimizer writes both the weights and the copies. For an
//! update it takes the copies out of the model, so that nothing else holds them and it can write them
//! in place. They are not parameters: nothing counts, visits or saves them.

use std::collections::HashMap;

use burn::module::{Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

use super::Gpt;
use super::block::{Block, Conv1d};
use crate::config::Precision;
use crate::gpu;
use crate::ops::OpsMode;

/// The copies of a model's matrices, by the ids of the original parameters.
pub type HalfWeights = HashMap<ParamId, Tensor<2>>;

impl Gpt {
    /// Copies each matrix that products multiply (the blocks' and the output head), if runs in
    /// `precision` have copies. Each update writes the copies too.
    pub fn keep_half_weights(&mut self, precision: Precision) {
        if !precision.keeps_half_weights() {
            return;
        }
        let dtype = FloatDType::from(gpu::stored(precision.dtype()));
        for (weight, half) in self.matrices() {
            *half = Some(weight.val().cast(dtype));
        }
    }

    /// Takes the copies out of the model, for an update.
    pub(crate) fn take_half_weights(&mut self) -> HalfWeights {
        let taken = self.matrices().filter_map(|(weight, half)| Some((weight.id, half.take()?)));
        taken.collect()
    }

    /// Puts copies back after an update.
    pub(crate) fn put_half_weights(&mut self, mut halves: HalfWeights) {
        for (weight, half) in self.matrices() {
            *half = halves.remove(&weight.id);
        }
    }

    /// Returns the matrices that products multiply, each with the place for its copy.
    fn matrices(&mut self) -> impl Iterator<Item = (&Param<Tensor<2>>, &mut Option<Tensor<2>>)> {
        let head = self.lm_head.as_mut().unwrap_or(&mut self.wte);
        let shards = head.weight.iter().zip(&mut head.half);
        let layers = self.h.iter_mut().flat_map(Block::linear_layers);
        shards.chain(layers.map(|Conv1d { weight, half, .. }| (&*weight, half)))
    }
}

/// Returns the tensor that products multiply: the copy in half precision if runs in the precision of
/// `mode` have one, else the weight. The weight can be in half precision too.
pub(super) fn factor(
    weight: &Param<Tensor<2>>,
    half: &Option<Tensor<2>>,
    mode: OpsMode,
) -> Tensor<2> {
    match half {
        Some(half) if mode.precision.keeps_half_weights() => half.clone(),
        _ => weight.val(),
    }
}
