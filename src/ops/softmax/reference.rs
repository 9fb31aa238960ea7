//! The softmax by tensor operations.

use burn::backend::{Backend, tensor::FloatTensor};

pub(super) fn forward<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let max = B::float_max_dim(x.clone(), 1);
    let exp = B::float_exp(B::float_sub(x, max));
    let sum = B::float_sum_dim(exp.clone(), 1);
    B::float_div(exp, sum)
}
