//! The gradient norm by tensor operations.

use burn::backend::{Backend, tensor::FloatTensor};
use burn::tensor::{FloatDType, Slice};

use super::{NORM_EPS, NORM_SPAN};
use crate::ops::shared::{device, shape};

pub(super) fn sum_squares<B: Backend>(
    x: FloatTensor<B>,
    sums: FloatTensor<B>,
    first: usize,
) -> FloatTensor<B> {
    let squares = B::float_mul(x.clone(), x);
    let elements = shape::<B>(&squares).num_elements();
    let whole = elements / NORM_SPAN;
    let part = |from: usize, to: usize| B::float_slice(squares.clone(), &[Slice::from(from..to)]);
    let place = |from: usize, to: usize| [Slice::from(first + from..first + to)];
    let mut sums = sums;
    if whole > 0 {
        let rows = B::float_reshape(part(0, whole * NORM_SPAN), [whole, NORM_SPAN].into());
        let rows = B::float_reshape(B::float_sum_dim(rows, 1), [whole].into());
        sums = B::float_slice_assign(sums, &place(0, whole), rows);
    }
    if whole * NORM_SPAN < elements {
        let rest = B::float_sum(part(whole * NORM_SPAN, elements));
        sums = B::float_slice_assign(sums, &place(whole, whole + 1), rest);
    }
    sums
}

pub(super) fn clip_factor<B: Backend>(
    sums: FloatTensor<B>,
    limit: f32,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let norm = B::float_sqrt(B::float_sum(sums));
    if limit == 0.0 {
        let device = device::<B>(&norm);
        let one = B::float_ones([1].into(), &device, FloatDType::F32);
        return (norm, one);
    }
    let factor = B::float_recip(B::float_add_scalar(norm.clone(), NORM_EPS.into()));
    let factor = B::float_mul_scalar(factor, limit.into());
    (norm, B::float_clamp_max(factor, 1f32.into()))
}
