//! The linear layer: a product, a pass for what is added to it and one for what multiplies it.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{LinearBackwardInputs, LinearInputs};
use crate::config::Gelu;
use crate::ops::shared::cpu::product::{Factor, multiply};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, math, memory, rows_per_task, sum_rows, values,
    values_mut, vectorised,
};

pub(super) fn forward(inputs: LinearInputs<Flex>) -> CpuTensor {
    let LinearInputs { x, w, b, residual, activation } = inputs;
    let ([n, inner], [_, out]) = (x.shape().dims(), w.shape().dims());
    let (x, w) = (activate(contiguous(x), activation), contiguous(w));
    let (b, residual) = (b.map(contiguous), residual.map(contiguous));
    let mut y = memory::take(n * out);
    let (left, right) =
        (Factor::new(values(&x), [n, inner]), Factor::new(values(&w), [inner, out]));
    let rows = rows_per_task(n, out);
    let parts = y.par_chunks_mut(rows * out);
    // Added before the product, these take one pass that only writes.
    let residuals = residual.as_ref().map(|residual| values(residual).par_chunks(rows * out));
    match (b.as_ref().map(values), residuals) {
        (None, None) => {}
        (Some(bias), None) => {
            parts.for_each(|y| y.chunks_mut(out).for_each(|y| y.copy_from_slice(bias)));
        }
        (None, Some(residuals)) => parts.zip(residuals).for_each(|(y, x)| y.copy_from_slice(x)),
        (Some(bias), Some(residuals)) => {
            parts.zip(residuals).for_each(|(y, x)| add_bias(y, x, bias));
        }
    }
    multiply(left, right, &mut y, b.is_some() || residual.is_some());
    memory::recycle([x].into_iter().chain(residual));
    from_values(y, [n, out].into())
}

pub(super) fn backward(
    inputs: LinearBackwardInputs<Flex>,
) -> (CpuTensor, CpuTensor, Option<CpuTensor>) {
    let LinearBackwardInputs { dy, x, w, activation, bias } = inputs;
    let ([n, out], [_, inner]) = (dy.shape().dims(), x.shape().dims());
    let [dy, mut x, w] = [dy, x, w].map(contiguous);
    let mut dx = memory::take(n * inner);
    let dy_factor = Factor::new(values(&dy), [n, out]);
    let w_factor = Factor::new(values(&w), [inner, out]).transpose();
    multiply(dy_factor, w_factor, &mut dx, false);
    if let Some(form) = activation {
        // The input, which nothing needs after this layer, becomes its activation in place: the
        // derivative has computed most of that.
        let chunk = rows_per_task(dx.len(), 1);
        let x = values_mut(&mut x).par_chunks_mut(chunk);
        dx.par_chunks_mut(chunk).zip(x).for_each(|(dx, x)| gelu_backward(dx, x, form));
    }
    let mut dw = memory::take(inner * out);
    let x_factor = Factor::new(values(&x), [n, inner]);
    multiply(x_factor.transpose(), dy_factor, &mut dw, false);
    let db = bias.then(|| {
        let dy = values(&dy);
        let sums = sum_rows(n, out, |rows, sums| {
            add_rows(&dy[rows.start * out..rows.end * out], sums);
        });
        from_values(sums, [out].into())
    });
    memory::recycle([dy, x]);
    (from_values(dx, [n, inner].into()), from_values(dw, [inner, out].into()), db)
}

fn activate(x: CpuTensor, activation: Option<Gelu>) -> CpuTensor {
    let Some(form) = activation else { return x };
    let shape = x.shape();
    let x = values(&x);
    let mut y = memory::take(x.len());
    let chunk = rows_per_task(x.len(), 1);
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| gelu(y, x, form));
    from_values(y, shape)
}

// Loops by hand: closures as long as GELU would be compiled for the oldest instruction set.
vectorised! {
    fn gelu<S>(simd; y: &mut [f32], x: &[f32], form: Gelu) {
        let ((y, y_rest), (x, x_rest)) = (S::as_mut_simd_f32s(y), S::as_simd_f32s(x));
        for (y, x) in y.iter_mut().zip(x) {
            *y = math::gelu(simd, *x, form).0;
        }
        let last = math::gelu(simd, simd.partial_load_f32s(x_rest), form).0;
        simd.partial_store_f32s(y_rest, last);
    }
}

vectorised! {
    /// Multiplies the gradients by the derivative of the activation, which replaces its input.
    fn gelu_backward<S>(simd; dx: &mut [f32], x: &mut [f32], form: Gelu) {
        let ((dx, dx_rest), (x, x_rest)) = (S::as_mut_simd_f32s(dx), S::as_mut_simd_f32s(x));
        for (d, x) in dx.iter_mut().zip(x) {
            let (y, slope) = math::gelu(simd, *x, form);
            (*d, *x) = (simd.mul_f32s(*d, slope), y);
        }
        let (y, slope) = math::gelu(simd, simd.partial_load_f32s(x_rest), form);
        let last = simd.mul_f32s(simd.partial_load_f32s(dx_rest), slope);
        simd.partial_store_f32s(dx_rest, last);
        simd.partial_store_f32s(x_rest, y);
    }
}

vectorised! {
    fn add_bias<S>(_simd; y: &mut [f32], x: &[f32], bias: &[f32]) {
        for (y, x) in y.chunks_mut(bias.len()).zip(x.chunks(bias.len())) {
            for ((y, x), b) in y.iter_mut().zip(x).zip(bias) {
                *y = x + b;
            }
        }
    }
}

vectorised! {
    fn add_rows<S>(_simd; rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks(sums.len()) {
            math::axpy(sums, 1.0, row);
        }
    }
}
