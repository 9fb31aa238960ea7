//! The rotation by tensor operations, in f32 whatever the dtype of `qkv`.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::{HeadNorms, RotaryBackwardInputs, RotaryInputs, RotaryShape};
use crate::ops::shared::dispatch::Reference;

/// The heads of q, of k and of v, `[n, heads, size]` each.
type QkvHeads = [Tensor<3>; 3];

/// `[n, 1, size / 2]`.
struct AngleTables {
    cosines: Tensor<3>,
    sines: Tensor<3>,
}

impl AngleTables {
    fn new(shape: &RotaryShape, [n, size]: [usize; 2], device: &Device) -> Self {
        let pairs = (0..n).flat_map(|row| (0..size / 2).map(move |i| (row % shape.time, i)));
        let angles: Vec<f64> =
            pairs.map(|(position, i)| position as f64 * shape.angle(i, size)).collect();
        let table = |function: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|&angle| function(angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, [n, 1, size / 2]), (device, DType::F32))
        };
        Self { cosines: table(libm::cos), sines: table(libm::sin) }
    }

    fn inverse(self) -> Self {
        Self { sines: self.sines.neg(), ..self }
    }

    fn rotate(&self, x: Tensor<3>) -> Tensor<3> {
        let half = x.dims()[2] / 2;
        let [low, high] = [0, half].map(|first| x.clone().narrow(2, first, half));
        let cosines = self.cosines.clone();
        let sines = self.sines.clone();
        let first = low.clone() * cosines.clone() - high.clone() * sines.clone();
        Tensor::cat(vec![first, high * cosines + low * sines], 2)
    }
}

fn split(qkv: Tensor<2>, shape: &RotaryShape) -> QkvHeads {
    let [n, width] = qkv.dims();
    let slots = shape.heads + 2 * shape.kv_heads;
    let qkv = qkv.cast(FloatDType::F32).reshape([n, slots, width / slots]);
    let of = |first, count| qkv.clone().narrow(1, first, count);
    [(0, shape.heads), (shape.heads, shape.kv_heads), (shape.rotated(), shape.kv_heads)]
        .map(|(first, count)| of(first, count))
}

fn join(heads: QkvHeads, dtype: FloatDType) -> Tensor<2> {
    let qkv = Tensor::cat(heads.to_vec(), 1);
    let [n, slots, size] = qkv.dims();
    qkv.reshape([n, slots * size]).cast(dtype)
}

fn rstd(x: &Tensor<3>, eps: f32) -> Tensor<3> {
    ((x.clone() * x.clone()).mean_dim(2) + eps).sqrt().recip()
}

pub(super) fn forward(inputs: RotaryInputs<Reference>) -> Tensor<2> {
    let RotaryInputs { qkv, norms, shape } = inputs;
    let [n, width] = qkv.dims();
    let dtype = FloatDType::from(qkv.dtype());
    let rotation = AngleTables::new(&shape, [n, shape.size(width)], &qkv.device());
    let [mut q, mut k, v] = split(qkv, &shape);
    if let Some(HeadNorms { q: q_norm, k: k_norm }) = norms {
        q = rstd(&q, shape.eps) * q * q_norm.unsqueeze();
        k = rstd(&k, shape.eps) * k * k_norm.unsqueeze();
    }
    join([rotation.rotate(q), rotation.rotate(k), v], dtype)
}

pub(super) fn backward(inputs: RotaryBackwardInputs<Reference>) -> (Tensor<2>, Option<Tensor<3>>) {
    let RotaryBackwardInputs { dqkv, qkv, norms, shape } = inputs;
    let [n, width] = dqkv.dims();
    let dtype = FloatDType::from(dqkv.dtype());
    let rotation = AngleTables::new(&shape, [n, shape.size(width)], &dqkv.device()).inverse();
    let [dq, dk, dv] = split(dqkv, &shape);
    let [dq, dk] = [dq, dk].map(|d| rotation.rotate(d));
    let Some(HeadNorms { q: q_norm, k: k_norm }) = norms else {
        return (join([dq, dk, dv], dtype), None);
    };
    let [q, k, _] = split(qkv.expect("qkv as the op took it"), &shape);
    let (dq, q_sums) = norm_backward(dq, q, q_norm, shape.eps);
    let (dk, k_sums) = norm_backward(dk, k, k_norm, shape.eps);
    (join([dq, dk, dv], dtype), Some(Tensor::cat(vec![q_sums, k_sums], 1)))
}

/// `dx = rstd * (g - x_hat * mean(g * x_hat))` with `g = d * weight`, and the sum for the weight,
/// `[1, 1, size]`.
fn norm_backward(
    d: Tensor<3>,
    x: Tensor<3>,
    weight: Tensor<1>,
    eps: f32,
) -> (Tensor<3>, Tensor<3>) {
    let rstd = rstd(&x, eps);
    let x_hat = x * rstd.clone();
    let sums = (d.clone() * x_hat.clone()).sum_dim(0).sum_dim(1);
    let g = d * weight.unsqueeze();
    let mean_gx = (g.clone() * x_hat.clone()).mean_dim(2);
    ((g - x_hat * mean_gx) * rstd, sums)
}
