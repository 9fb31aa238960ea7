use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{
    CpuTensor, contiguous, from_values, math, rows_per_task, sum_rows, values, values_mut,
    vectorised,
};
use crate::config::Gelu;
use crate::ops::linear::Activation;

/// What follows the product: bias, activation and residual in one pass. Also gives the
/// pre-activation where there is an activation.
pub(in crate::ops) fn epilogue(
    mut product: CpuTensor,
    bias: Option<CpuTensor>,
    residual: Option<CpuTensor>,
    activation: Activation,
) -> (CpuTensor, Option<CpuTensor>) {
    let shape = product.shape();
    let [n, c] = shape.dims();
    let bias = bias.map(contiguous);
    let residual = residual.map(contiguous);
    let bias = bias.as_ref().map(values);
    let residual = residual.as_ref().map(values);
    let rows = rows_per_task(n, c);

    let add_bias = |pre: &mut [f32]| {
        if let Some(bias) = bias {
            pre.chunks_mut(c).for_each(|row| math::axpy(row, 1.0, bias));
        }
    };
    let add_residual = |task: usize, y: &mut [f32]| {
        if let Some(residual) = residual {
            math::axpy(y, 1.0, &residual[task * rows * c..]);
        }
    };
    let Activation::Gelu(form) = activation else {
        if bias.is_some() || residual.is_some() {
            let tasks = values_mut(&mut product).par_chunks_mut(rows * c).enumerate();
            tasks.for_each(|(task, y)| {
                vectorised(|| {
                    add_bias(y);
                    add_residual(task, y);
                });
            });
        }
        return (product, None);
    };
    let mut y = vec![0.0f32; n * c];
    values_mut(&mut product)
        .par_chunks_mut(rows * c)
        .zip(y.par_chunks_mut(rows * c))
        .enumerate()
        .for_each(|(task, (pre, y))| {
            vectorised(|| {
                add_bias(pre);
                match form {
                    Gelu::Tanh => map(y, pre, math::gelu_tanh),
                    Gelu::Erf => map(y, pre, math::gelu_erf),
                }
                add_residual(task, y);
            });
        });
    (from_values(y, shape), Some(product))
}

#[inline(always)]
fn map(y: &mut [f32], x: &[f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

/// `dy * gelu'(pre)`.
pub(in crate::ops) fn gelu_backward(dy: CpuTensor, pre: CpuTensor, form: Gelu) -> CpuTensor {
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
pub(in crate::ops) fn column_sums(d: &CpuTensor) -> CpuTensor {
    let [n, c] = d.shape().dims();
    let d = contiguous(d.clone());
    let d = values(&d);
    let sums = sum_rows(n, c, |row, sums| math::axpy(sums, 1.0, &d[row * c..(row + 1) * c]));
    from_values(sums, [c].into())
}
