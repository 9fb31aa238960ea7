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

/// Replaces each weight of `model`, in its order, by the result of `change`.
fn map_weights(model: &mut Gpt, change: impl FnMut(FlatWeight) -> FlatWeight) {
    // A mapper takes a model. A clone shares the weights.
    *model = model.clone().map(&mut EachWeight(change));
}

/// Takes the weights out of a model, in its order, which has placeholders until [`put_weights`]. It no longer
/// holds a weight then, so that each can be written in place.
pub(crate) fn take_weights(model: &mut Gpt) -> Vec<FlatWeight> {
    let mut taken = Vec::new();
    let mut placeholder = None;
    map_weights(model, |weight| {
        let empty = || Tensor::empty([1], &weight.value.device());
        let value = placeholder.get_or_insert_with(empty).clone();
        let shape = Shape::from(vec![1; weight.shape.num_dims()]);
        let placeholder = FlatWeight { id: weight.id, value, shape };
        taken.push(weight);
        placeholder
    });
    taken
}

/// Puts all weights into a model, in its order.
pub(crate) fn put_weights(model: &mut Gpt, weights: Vec<FlatWeight>) {
    let mut weights = weights.into_iter();
    map_weights(model, |placeholder| weights.next().unwrap_or(placeholder));
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
