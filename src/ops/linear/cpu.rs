//! The linear layer: a product whose last step on each row adds the bias and the residual, or
//! multiplies by the derivative of the activation.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::Activation;
use crate::config::Gelu;
use crate::ops::shared::cpu::product::{Epilogue, Factor, Output, Segment, product};
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
    product(left, right, output, Add { out, bias, residual: added });
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
    match activation {
        Activation::Identity => product(dy_factor, w_factor, output, ()),
        Activation::Gelu(form) => product(dy_factor, w_factor, output, ThroughGelu(form)),
    }
    let mut dw = memory::take(inner * out);
    let h = Factor::new(values(&x), [n, inner]).transpose();
    let output = Output { values: &mut dw, add: false, beside: None };
    product(h, dy_factor, output, ());
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

/// The activation of `x`.
fn activate(x: CpuTensor, activation: Activation) -> CpuTensor {
    let Activation::Gelu(form) = activation else { return x };
    let shape = x.shape();
    let x = values(&x);
    let mut y = memory::take(x.len());
    let chunk = rows_per_task(x.len(), 1);
    y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| gelu(y, x, form));
    from_values(y, shape)
}

vectorised! {
    fn gelu<S>(_simd; y: &mut [f32], x: &[f32], form: Gelu) {
        match form {
            Gelu::Tanh => y.iter_mut().zip(x).for_each(|(y, &x)| *y = math::gelu_tanh(x)),
            Gelu::Erf => y.iter_mut().zip(x).for_each(|(y, &x)| *y = math::gelu_erf(x)),
        }
    }
}

vectorised! {
    /// Adds rows to `sums`.
    fn add_rows<S>(_simd; rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks(sums.len()) {
            math::axpy(sums, 1.0, row);
        }
    }
}

/// Adds the bias and the residual.
struct Add<'a> {
    out: usize,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
}

impl Epilogue for Add<'_> {
    #[inline(always)]
    fn finish(&self, segment: Segment) {
        let Segment { row, columns, values, .. } = segment;
        if let Some(bias) = self.bias {
            math::axpy(values, 1.0, &bias[columns.clone()]);
        }
        if let Some(residual) = self.residual {
            math::axpy(values, 1.0, &residual[row * self.out..][columns]);
        }
    }
}

/// Multiplies the gradients by the derivative of the activation, and puts the activation in the place
/// of its input.
struct ThroughGelu(Gelu);

impl Epilogue for ThroughGelu {
    #[inline(always)]
    fn finish(&self, segment: Segment) {
        let elements = segment.values.iter_mut().zip(segment.beside);
        match self.0 {
            Gelu::Tanh => elements.for_each(|(d, x)| {
                let (y, derivative) = math::gelu_tanh_and_derivative(*x);
                (*d, *x) = (*d * derivative, y);
            }),
            Gelu::Erf => elements.for_each(|(d, x)| {
                let (y, derivative) = math::gelu_erf_and_derivative(*x);
                (*d, *x) = (*d * derivative, y);
            }),
        }
    }
}
