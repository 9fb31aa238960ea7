//! The weights of a model that are trained as flat tensors, in its order.

use std::iter::zip;
use std::mem::replace;

use burn::tensor::{Shape, Tensor};

use super::layers::{Norm, WeightMatrix, WeightMut};
use super::{Block, Gpt, Parameter};
use crate::plan::HEAD;

/// A weight on its way out of a model or into it.
pub(crate) struct FlatWeight {
    /// `[elements]`.
    pub value: Tensor<1>,
    /// The copy in half precision `[elements]`, if the model keeps one.
    pub half: Option<Tensor<1>>,
    /// The shape in the model.
    pub shape: Shape,
}

impl Gpt {
    /// Lists the weights that are trained: the adapter's or, without one, all. Each shard of an embedding counts as a
    /// weight.
    fn trained(&mut self) -> Box<dyn Iterator<Item = WeightMut<'_>> + '_> {
        if self.lora.is_some() {
            return Box::new(self.h.iter_mut().flat_map(Block::adapters));
        }
        let embeddings = self.wte.iter_mut().chain(&mut self.wpe).map(WeightMut::Matrix);
        let blocks = self.h.iter_mut().flat_map(Block::weights);
        let head = self.lm_head.iter_mut().flatten().map(WeightMut::Matrix);
        Box::new(embeddings.chain(blocks).chain(Norm::weights(&mut self.ln_f)).chain(head))
    }
}

impl WeightMut<'_> {
    /// Returns the weight `[elements]`, and leaves the scalar `empty` `[1]` in its place.
    fn take(self, empty: Tensor<1>) -> FlatWeight {
        match self {
            Self::Vector(weight) => {
                FlatWeight { shape: weight.shape(), value: replace(weight, empty), half: None }
            }
            Self::Matrix(WeightMatrix { weight, half }) => FlatWeight {
                shape: weight.shape(),
                value: replace(weight, empty.reshape([1, 1])).flatten(0, 1),
                half: half.take().map(|half| half.flatten(0, 1)),
            },
        }
    }

    fn put(self, FlatWeight { value, half, shape }: FlatWeight) {
        match self {
            Self::Vector(weight) => *weight = value,
            Self::Matrix(matrix) => {
                let shape: [usize; 2] = shape.dims();
                let half = half.map(|half| half.reshape(shape));
                *matrix = WeightMatrix { weight: value.reshape(shape), half };
            }
        }
    }
}

/// Takes the trained weights out of a model, which has placeholders until [`put_weights`]. It no longer holds a
/// weight then, so that each can be written in place.
pub(crate) fn take_weights(model: &mut Gpt) -> Vec<FlatWeight> {
    let empty = Tensor::empty([1], &model.ln_f.weight.device());
    model.trained().map(|weight| weight.take(empty.clone())).collect()
}

/// Puts the trained weights into a model.
pub(crate) fn put_weights(model: &mut Gpt, weights: Vec<FlatWeight>) {
    zip(model.trained(), weights).for_each(|(place, weight)| place.put(weight));
}

/// Returns the weights of a model that are trained, the embedding's padding included.
pub fn parameters(model: &Gpt) -> Vec<Parameter> {
    // A clone shares the weights.
    let mut model = model.clone();
    let shards = model.wte.len();
    let shapes = match &model.lora {
        Some(lora) => lora.shapes(&model.architecture),
        None => model.architecture.shapes(),
    };
    let mut parts = model.trained().map(|weight| match weight {
        WeightMut::Vector(weight) => weight.clone(),
        WeightMut::Matrix(matrix) => matrix.weight.clone().flatten(0, 1),
    });
    let parameter = |(name, shape): (String, Vec<usize>)| {
        let count = if ["wte.weight", HEAD].contains(&name.as_str()) { shards } else { 1 };
        Parameter { parts: parts.by_ref().take(count).collect(), name, shape }
    };
    shapes.into_iter().map(parameter).collect()
}
