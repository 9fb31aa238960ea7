//! The linear layer: a product whose last step on each row adds the bias and the residual, or
//! multiplies by the derivative of the activation.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::Activation;
use crate::config::Gelu;
use crate::ops::shared::cpu::product::{Factor, Output, Segment, product};
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, math, memory, rows_per_task, sum_rows, values, values_mut,
    vectorised,
};

pub(super) fn forward(
    x: CpuTensor,
    w: CpuTensor,
    b: Option<CpuTensor>,
    residual: Option<CpuTensor>,
    activation: Activation,
) -> CpuTensor {
    let ([n, inner], [_, out]) = (x.shape().dims(), w.shape().dims());
    let (x, w) = (activate(contiguous(x), activation), contiguous(w));
    let (b, residual) = (b.map(contiguous), residual.map(contiguous));
    let mut y = memory::take(n * out);
    let (bias, added) = (b.as_ref().map(values), residual.as_ref().map(values));
    let (left, right) =
        (Factor::new(values(&x), [n, inner]), Factor::new(values(&w), [inner, out]));
    let output = Output { values: &mut y, add: false, beside: None };
    product(left, right, output, |Segment { row, columns, values, .. }| {
        if let Some(bias) = bias {
            math::axpy(values, 1.0, &bias[columns.clone()]);
        }
        if let Some(added) = added {
            math::axpy(values, 1.0, &added[row * out..][columns]);
        }
    });
    memory::recycle([x].into_iter().chain(residual));
    from_values(y, [n, out].into())
}

pub(super) fn backward(
    dy: CpuTensor,
    x: CpuTensor,
    w: CpuTensor,
    activation: Activation,
    bias: bool,
) -> (CpuTensor, CpuTensor, Option<CpuTensor>) {
    let ([n, out], [_, inner]) = (dy.shape().dims(), x.shape().dims());
    let [dy, mut x, w] = [dy, x, w].map(contiguous);
    let mut dx = memory::take(n * inner);
    let dy_factor = Factor::new(values(&dy), [n, out]);
    let w_factor = Factor::new(values(&w), [inner, out]).transpose();
    // The input, which nothing needs after this layer, becomes its activation in place: the
    // gradient of the activation has computed most of that.
    let beside = match activation {
        Activation::Identity => None,
        Activation::Gelu(_) => Some(values_mut(&mut x)),
    };
    let output = Output { values: &mut dx, add: false, beside };
    product(dy_factor, w_factor, output, |segment| match activation {
        Activation::Identity => {}
        Activation::Gelu(Gelu::Tanh) => through(segment, math::gelu_tanh_and_derivative),
        Activation::Gelu(Gelu::Erf) => through(segment, math::gelu_erf_and_derivative),
    });
    let mut dw = memory::take(inner * out);
    let h = Factor::new(values(&x), [n, inner]).transpose();
    let output = Output { values: &mut dw, add: false, beside: None };
    product(h, dy_factor, output, |_| {});
    let db = bias.then(|| {
        let dy = values(&dy);
        let sums = sum_rows(n, out, |row, sums| math::axpy(sums, 1.0, &dy[row * out..][..out]));
        from_values(sums, [out].into())
    });
    memory::recycle([dy, x]);
    (from_values(dx, [n, inner].into()), from_values(dw, [inner, out].into()), db)
}

/// The activation of `x`.
fn activate(x: CpuTensor, activation: Activation) -> CpuTensor {
    let Activation::Gelu(form) = activation else { return x };
    let shape = x.shape();
    let x = values(&x);
    let mut y = memory::take(x.len());
    let chunk = rows_per_task(x.len(), 1);
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| {
        vectorised(|| match form {
            Gelu::Tanh => map(y, x, math::gelu_tanh),
            Gelu::Erf => map(y, x, math::gelu_erf),
        });
    });
    from_values(y, shape)
}

#[inline(always)]
fn map(y: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

/// Multiplies the gradients by the derivative of the activation, and puts the activation in the place
/// of its input.
#[inline(always)]
fn through(segment: Segment, both: impl Fn(f32) -> (f32, f32)) {
    for (d, x) in segment.values.iter_mut().zip(segment.beside) {
        let (y, derivative) = both(*x);
        *d *= derivative;
        *x = y;
    }
}
