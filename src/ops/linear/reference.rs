//! The linear layer by tensor operations.

use burn::backend::{Backend, tensor::FloatTensor};

use super::Activation;
use crate::config::Gelu;
use crate::ops::shared::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE, shape};

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    b: Option<FloatTensor<B>>,
    residual: Option<FloatTensor<B>>,
    activation: Activation,
) -> FloatTensor<B> {
    let mut y = B::float_matmul(activate::<B>(x, activation), w);
    if let Some(b) = b {
        let out = shape::<B>(&b).num_elements();
        y = B::float_add(y, B::float_reshape(b, [1, out].into()));
    }
    match residual {
        Some(residual) => B::float_add(y, residual),
        None => y,
    }
}

pub(super) fn backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    w: FloatTensor<B>,
    activation: Activation,
    bias: bool,
) -> (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>) {
    let db = bias.then(|| column_sums::<B>(dy.clone()));
    let h = activate::<B>(x.clone(), activation);
    let (dh, dw) = products::<B>(dy, h, w);
    let dx = match activation {
        Activation::Identity => dh,
        Activation::Gelu(form) => B::float_mul(dh, gelu_derivative::<B>(x, form)),
    };
    (dx, dw, db)
}

fn activate<B: Backend>(x: FloatTensor<B>, activation: Activation) -> FloatTensor<B> {
    match activation {
        Activation::Identity => x,
        Activation::Gelu(form) => gelu::<B>(x, form),
    }
}

/// `dx = d w^T` and `dw = x^T d`.
pub(super) fn products<B: Backend>(
    d: FloatTensor<B>,
    x: FloatTensor<B>,
    w: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dw = B::float_matmul(B::float_transpose(x), d.clone());
    let dx = B::float_matmul(d, B::float_transpose(w));
    (dx, dw)
}

fn column_sums<B: Backend>(d: FloatTensor<B>) -> FloatTensor<B> {
    let [_, out] = shape::<B>(&d).dims();
    B::float_reshape(B::float_sum_dim(d, 0), [out].into())
}

fn gelu<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let gate = match form {
        Gelu::Tanh => tanh_term::<B>(x.clone()),
        Gelu::Erf => {
            B::float_erf(B::float_mul_scalar(x.clone(), std::f32::consts::FRAC_1_SQRT_2.into()))
        }
    };
    let half = B::float_mul_scalar(x, 0.5f32.into());
    B::float_mul(half, B::float_add_scalar(gate, 1f32.into()))
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_term<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let square = B::float_mul(x.clone(), x.clone());
    let factor = B::float_add_scalar(
        B::float_mul_scalar(square, (TANH_SCALE * TANH_CUBIC).into()),
        TANH_SCALE.into(),
    );
    let u = B::float_mul(x, factor);
    // Some drivers compute tanh from exponentials that overflow. It is 1 in f32 from 9.01 on.
    B::float_tanh(B::float_clamp(u, (-10f32).into(), 10f32.into()))
}

fn gelu_derivative<B: Backend>(x: FloatTensor<B>, form: Gelu) -> FloatTensor<B> {
    let half = 0.5f32.into();
    let square = B::float_mul(x.clone(), x.clone());
    match form {
        Gelu::Tanh => {
            // 0.5 (1 + t) + 0.5 x (1 - t^2) u', with t = tanh(u).
            let t = tanh_term::<B>(x.clone());
            let slope = B::float_add_scalar(
                B::float_mul_scalar(square, (3.0 * TANH_SCALE * TANH_CUBIC).into()),
                TANH_SCALE.into(),
            );
            let sech2 =
                B::float_add_scalar(B::float_neg(B::float_mul(t.clone(), t.clone())), 1f32.into());
            let tail = B::float_mul(B::float_mul(x, slope), sech2);
            let sum = B::float_add(B::float_add_scalar(t, 1f32.into()), tail);
            B::float_mul_scalar(sum, half)
        }
        Gelu::Erf => {
            // Phi(x) + x phi(x).
            let erf = B::float_erf(B::float_mul_scalar(
                x.clone(),
                std::f32::consts::FRAC_1_SQRT_2.into(),
            ));
            let cdf = B::float_mul_scalar(B::float_add_scalar(erf, 1f32.into()), half);
            let density = B::float_exp(B::float_mul_scalar(square, (-0.5f32).into()));
            let pdf = B::float_mul_scalar(density, NORMAL_PEAK.into());
            B::float_add(cdf, B::float_mul(x, pdf))
        }
    }
}
