//! The linear layer: flex's matrix product, with loops for the activation, the bias and the
//! residual.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use rayon::prelude::*;

use super::{Activation, reference};
use crate::config::Gelu;
use crate::ops::shared::cpu::{
    CpuTensor, contiguous, from_values, math, rows_per_task, sum_rows, values, values_mut,
    vectorised,
};

pub(super) fn forward(
    x: CpuTensor,
    w: CpuTensor,
    b: Option<CpuTensor>,
    residual: Option<CpuTensor>,
    activation: Activation,
) -> CpuTensor {
    add(Flex::float_matmul(activate(x, activation), w), b, residual)
}

pub(super) fn backward(
    dy: CpuTensor,
    x: CpuTensor,
    w: CpuTensor,
    activation: Activation,
    bias: bool,
) -> (CpuTensor, CpuTensor, Option<CpuTensor>) {
    let db = bias.then(|| column_sums(&dy));
    let h = activate(x.clone(), activation);
    let (dh, dw) = reference::products::<Flex>(dy, h, w);
    let dx = match activation {
        Activation::Identity => dh,
        Activation::Gelu(form) => gelu_backward(dh, x, form),
    };
    (dx, dw, db)
}

/// The activation of `x`.
fn activate(x: CpuTensor, activation: Activation) -> CpuTensor {
    let Activation::Gelu(form) = activation else { return x };
    let shape = x.shape();
    let x = contiguous(x);
    let x = values(&x);
    let mut y = vec![0.0f32; x.len()];
    let chunk = rows_per_task(x.len(), 1);
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| {
        vectorised(|| match form {
            Gelu::Tanh => map(y, x, math::gelu_tanh),
            Gelu::Erf => map(y, x, math::gelu_erf),
        });
    });
    from_values(y, shape)
}

/// `product + bias + residual` in one pass.
fn add(mut product: CpuTensor, bias: Option<CpuTensor>, residual: Option<CpuTensor>) -> CpuTensor {
    if bias.is_none() && residual.is_none() {
        return product;
    }
    let [n, c] = product.shape().dims();
    let (bias, residual) = (bias.map(contiguous), residual.map(contiguous));
    let (bias, residual) = (bias.as_ref().map(values), residual.as_ref().map(values));
    let rows = rows_per_task(n, c);
    values_mut(&mut product).par_chunks_mut(rows * c).enumerate().for_each(|(task, y)| {
        vectorised(|| {
            if let Some(bias) = bias {
                y.chunks_mut(c).for_each(|row| math::axpy(row, 1.0, bias));
            }
            if let Some(residual) = residual {
                math::axpy(y, 1.0, &residual[task * rows * c..]);
            }
        });
    });
    product
}

#[inline(always)]
fn map(y: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

/// `dy * gelu'(pre)`.
fn gelu_backward(dy: CpuTensor, pre: CpuTensor, form: Gelu) -> CpuTensor {
    let mut d = contiguous(dy);
    let pre = contiguous(pre);
    let pre = values(&pre);
    let chunk = rows_per_task(pre.len(), 1);
    values_mut(&mut d).par_chunks_mut(chunk).zip(pre.par_chunks(chunk)).for_each(|(d, pre)| {
        vectorised(|| match form {
            Gelu::Tanh => scale(d, pre, math::gelu_tanh_derivative),
            Gelu::Erf => scale(d, pre, math::gelu_erf_derivative),
        });
    });
    d
}

#[inline(always)]
fn scale(d: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (d, &x) in d.iter_mut().zip(x) {
        *d *= f(x);
    }
}

/// The column sums of `d` `[n, out]`, as `[out]`.
fn column_sums(d: &CpuTensor) -> CpuTensor {
    let [n, c] = d.shape().dims();
    let d = contiguous(d.clone());
    let d = values(&d);
    let sums = sum_rows(n, c, |row, sums| math::axpy(sums, 1.0, &d[row * c..(row + 1) * c]));
    from_values(sums, [c].into())
}
