//! A change of every weight of a model.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Shape, Tensor};

use super::Gpt;

/// A weight on its way out of a model or into it.
pub(crate) struct FlatWeight {
    pub id: ParamId,
    /// `[elements]`.
    pub value: Tensor<1>,
    /// Its shape in the model.
    pub shape: Shape,
}

impl FlatWeight {
    /// Returns a weight of one element that takes the place of this one.
    pub fn placeholder(id: ParamId, value: Tensor<1>, dimensions: usize) -> Self {
        Self { id, value, shape: Shape::from(vec![1; dimensions]) }
    }
}

/// Replaces each weight of `model`, in its order, by what `change` makes of it. The model no longer
/// holds a weight that `change` gets, so that it can be written in place.
pub(crate) fn map_weights(model: Gpt, change: impl FnMut(FlatWeight) -> FlatWeight) -> Gpt {
    model.map(&mut EachWeight(change))
}

struct EachWeight<F>(F);

impl<F: FnMut(FlatWeight) -> FlatWeight> ModuleMapper for EachWeight<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let shape = value.shape();
        let value = value.reshape([shape.num_elements()]);
        let changed = (self.0)(FlatWeight { id, value, shape });
        Param::from_mapped_value(changed.id, changed.value.reshape(changed.shape), mapper)
    }
}
