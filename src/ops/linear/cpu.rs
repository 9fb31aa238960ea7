//! The linear layer: a product, a pass for what is added to it and one for what multiplies it.

use burn::backend::TensorMetadata;
use pulp::Simd;
use rayon::prelude::*;

use super::{Activation, FrozenBackwardInputs, LinearBackwardInputs, LinearInputs};
use crate::config::Gelu;
use crate::ops::shared::cpu::product::{Factor, multiply};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, math, memory, rows_per_task, sum_rows, values,
    values_mut, vectorised,
};

pub(super) fn forward(inputs: LinearInputs<Flex>) -> CpuTensor {
    let LinearInputs { x, w, b, residual, activation } = inputs;
    let ([n, _], [inner, out]) = (x.shape().dims(), w.shape().dims());
    let x = activate(contiguous(x), activation);
    let w = contiguous(w);
    let [b, residual] = [b, residual].map(|addend| addend.map(contiguous));
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
    let ([n, out], [inner, _]) = (dy.shape().dims(), w.shape().dims());
    let [dy, x, w] = [dy, x, w].map(contiguous);
    let mut dh = memory::take(n * inner);
    let dy_factor = Factor::new(values(&dy), [n, out]);
    let w_factor = Factor::new(values(&w), [inner, out]).transpose();
    multiply(dy_factor, w_factor, &mut dh, false);
    let (h, dx) = activation_and_gradient(dh, x, inner, activation);
    let mut dw = memory::take(inner * out);
    let h_factor = Factor::new(values(&h), [n, inner]);
    multiply(h_factor.transpose(), dy_factor, &mut dw, false);
    let db = bias.then(|| {
        let dy = values(&dy);
        let sums = sum_rows(n, out, |rows, sums| {
            add_rows(&dy[rows.start * out..rows.end * out], sums);
        });
        from_values(sums, [out].into())
    });
    memory::recycle([dy, h]);
    (dx, from_values(dw, [inner, out].into()), db)
}

pub(super) fn frozen_backward(
    inputs: FrozenBackwardInputs<Flex>,
) -> (CpuTensor, Option<CpuTensor>) {
    let FrozenBackwardInputs { dy, x, w, adapter, activation } = inputs;
    let ([n, out], [inner, _]) = (dy.shape().dims(), w.shape().dims());
    let [dy, x, w] = [dy, x, w].map(contiguous);
    let mut dh = memory::take(n * inner);
    let w_factor = Factor::new(values(&w), [inner, out]).transpose();
    multiply(Factor::new(values(&dy), [n, out]), w_factor, &mut dh, false);
    memory::recycle([dy]);
    let adapter = adapter.map(|(du, a)| [du, a].map(contiguous));
    if let Some([du, a]) = &adapter {
        let [_, rank] = a.shape().dims();
        let a_factor = Factor::new(values(a), [inner, rank]).transpose();
        multiply(Factor::new(values(du), [n, rank]), a_factor, &mut dh, true);
    }
    let (h, dx) = activation_and_gradient(dh, x, inner, activation);
    let da = adapter.map(|[du, a]| {
        let [_, rank] = a.shape().dims();
        let mut da = memory::take(inner * rank);
        let h_factor = Factor::new(values(&h), [n, inner]).transpose();
        multiply(h_factor, Factor::new(values(&du), [n, rank]), &mut da, false);
        from_values(da, [inner, rank].into())
    });
    memory::recycle([h]);
    (dx, da)
}

/// Returns the activation `[n, inner]` of the input `x` and the gradient of `x`, from `dh`, that of the
/// activation. The derivative has computed most of the activation, which takes memory that nothing needs after
/// this layer.
pub(in crate::ops) fn activation_and_gradient(
    mut dh: Vec<f32>,
    mut x: CpuTensor,
    inner: usize,
    activation: Option<Activation>,
) -> (CpuTensor, CpuTensor) {
    let n = dh.len() / inner.max(1);
    match activation {
        None => (x, from_values(dh, [n, inner].into())),
        Some(Activation::Gelu(form)) => {
            let chunk = rows_per_task(dh.len(), 1);
            let x_values = values_mut(&mut x).par_chunks_mut(chunk);
            dh.par_chunks_mut(chunk).zip(x_values).for_each(|(dx, x)| gelu_backward(dx, x, form));
            (x, from_values(dh, [n, inner].into()))
        }
        Some(Activation::SwiGlu) => {
            let rows = rows_per_task(n, inner) * inner;
            let x_values = values_mut(&mut x).par_chunks_mut(2 * rows);
            dh.par_chunks_mut(rows).zip(x_values).for_each(|(h, x)| swiglu_backward(h, x, inner));
            (from_values(dh, [n, inner].into()), x)
        }
    }
}

pub(in crate::ops) fn activate(x: CpuTensor, activation: Option<Activation>) -> CpuTensor {
    let Some(activation) = activation else { return x };
    let [n, width] = x.shape().dims();
    let x = values(&x);
    match activation {
        Activation::Gelu(form) => {
            let mut y = memory::take(x.len());
            let chunk = rows_per_task(x.len(), 1);
            y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| gelu(y, x, form));
            from_values(y, [n, width].into())
        }
        Activation::SwiGlu => {
            let inner = width / 2;
            let mut y = memory::take(n * inner);
            let rows = rows_per_task(n, inner) * inner;
            let x = x.par_chunks(2 * rows);
            y.par_chunks_mut(rows).zip(x).for_each(|(y, x)| swiglu(y, x, inner));
            from_values(y, [n, inner].into())
        }
    }
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
    /// `y = silu(gate) * up`, with rows of gate and up, `inner` elements each.
    fn swiglu<S>(simd; y: &mut [f32], x: &[f32], inner: usize) {
        for (y, x) in y.chunks_mut(inner).zip(x.chunks(2 * inner)) {
            let (gate, up) = x.split_at(inner);
            let ((y, y_rest), (gates, gate_rest)) = (S::as_mut_simd_f32s(y), S::as_simd_f32s(gate));
            let (ups, up_rest) = S::as_simd_f32s(up);
            for ((y, gate), up) in y.iter_mut().zip(gates).zip(ups) {
                *y = simd.mul_f32s(math::silu(simd, *gate).0, *up);
            }
            let last = math::silu(simd, simd.partial_load_f32s(gate_rest)).0;
            let last = simd.mul_f32s(last, simd.partial_load_f32s(up_rest));
            simd.partial_store_f32s(y_rest, last);
        }
    }
}

vectorised! {
    /// Replaces gate and up by their gradients, and `h`, the gradient of their product, by the product.
    fn swiglu_backward<S>(simd; h: &mut [f32], x: &mut [f32], inner: usize) {
        for (h, x) in h.chunks_mut(inner).zip(x.chunks_mut(2 * inner)) {
            let (gate, up) = x.split_at_mut(inner);
            let ((h, h_rest), (gate, gate_rest)) =
                (S::as_mut_simd_f32s(h), S::as_mut_simd_f32s(gate));
            let (up, up_rest) = S::as_mut_simd_f32s(up);
            for ((h, gate), up) in h.iter_mut().zip(gate).zip(up) {
                [*h, *gate, *up] = swiglu_and_gradients(simd, [*h, *gate, *up]);
            }
            let rest = [&*h_rest, gate_rest, up_rest].map(|rest| simd.partial_load_f32s(rest));
            let [y, d_gate, d_up] = swiglu_and_gradients(simd, rest);
            simd.partial_store_f32s(h_rest, y);
            simd.partial_store_f32s(gate_rest, d_gate);
            simd.partial_store_f32s(up_rest, d_up);
        }
    }
}

/// Returns `silu(gate) * up` and the gradients of gate and up, from the gradient of the product.
#[inline(always)]
fn swiglu_and_gradients<S: Simd>(simd: S, [dh, gate, up]: [S::f32s; 3]) -> [S::f32s; 3] {
    let (y, slope) = math::silu(simd, gate);
    let d_gate = simd.mul_f32s(simd.mul_f32s(dh, up), slope);
    [simd.mul_f32s(y, up), d_gate, simd.mul_f32s(dh, y)]
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
