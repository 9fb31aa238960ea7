use burn::backend::TensorMetadata;

use super::{ActivationBackwardInputs, ActivationInputs};
use crate::ops::linear::cpu::{activate, activation_and_gradient};
use crate::ops::shared::cpu::{CpuTensor, Flex, contiguous, memory, values};

pub(super) fn forward(inputs: ActivationInputs<Flex>) -> CpuTensor {
    activate(contiguous(inputs.x), Some(inputs.activation))
}

pub(super) fn backward(inputs: ActivationBackwardInputs<Flex>) -> CpuTensor {
    let ActivationBackwardInputs { dy, x, activation } = inputs;
    let [_, inner] = dy.shape().dims();
    let dy = contiguous(dy);
    let mut dh = memory::take(values(&dy).len());
    dh.copy_from_slice(values(&dy));
    let (h, dx) = activation_and_gradient(dh, contiguous(x), inner, Some(activation));
    memory::recycle([dy, h]);
    dx
}
