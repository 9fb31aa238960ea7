use burn::tensor::Tensor;

use super::{ActivationBackwardInputs, ActivationInputs};
use crate::ops::linear::reference::{activate, input_gradient};
use crate::ops::shared::dispatch::Reference;

pub(super) fn forward(inputs: ActivationInputs<Reference>) -> Tensor<2> {
    activate(inputs.x, Some(inputs.activation))
}

pub(super) fn backward(inputs: ActivationBackwardInputs<Reference>) -> Tensor<2> {
    let ActivationBackwardInputs { dy, x, activation } = inputs;
    input_gradient(dy, x, Some(activation))
}
