//! The cases of Llama-shaped models: rotation, shared keys and SwiGLU, at the sizes of GPT-2.

use burn::tensor::{Device, FloatDType, Tensor, TensorData, activation};

use super::cases::{attention, causal_mask, product};
use super::kernels::{Bench, Case, Cost, Sizes};
use super::{KernelRow, best_seconds};
use crate::gpu::DeviceError;
use crate::ops::{self, Activation, AttentionShape, RotaryShape};

pub(super) const CASES: &[Case] = &[
    rotary_forward,
    rotary_backward,
    attention_forward,
    attention_backward,
    swiglu_forward,
    swiglu_backward,
];

/// Heads of queries that share a head of keys.
const SHARING: usize = 4;

const EPS: f32 = 1e-5;

fn shared(s: &Sizes) -> AttentionShape {
    AttentionShape { kv_heads: s.attention.heads / SHARING, ..s.attention }
}

/// Returns the shape of packed qkv.
fn packed(s: &Sizes) -> [usize; 2] {
    [s.attention.batch * s.attention.time, s.c + 2 * s.c / SHARING]
}

fn rotation(s: &Sizes) -> RotaryShape {
    let AttentionShape { time, heads, kv_heads, .. } = shared(s);
    RotaryShape { time, heads, kv_heads, theta: 1e4, eps: EPS }
}

/// Returns the cost of a pass over q and k in place.
fn rotary_cost(bench: &Bench, s: &Sizes) -> Cost {
    let [rows, _] = packed(s);
    let elements = rows * (s.c + s.c / SHARING);
    Cost {
        size: format!("{rows} x {} of {}", s.c + s.c / SHARING, packed(s)[1]),
        bytes: 2 * bench.bytes(elements),
        operations: 3 * elements,
    }
}

/// Returns the cosines and the sines of each element of a head at each position, `[n, 1, size]`.
fn angles(s: &Sizes, device: &Device) -> [Tensor<3>; 2] {
    let ([rows, _], size) = (packed(s), s.c / s.attention.heads);
    let half = size / 2;
    let angle = |at: usize| {
        let exponent = -((at % half) as f32) / half as f32;
        (at / size % s.attention.time) as f32 * 1e4f32.powf(exponent)
    };
    [f32::cos, f32::sin].map(|function| {
        let table: Vec<f32> = (0..rows * size).map(|at| function(angle(at))).collect();
        Tensor::from_data(TensorData::new(table, [rows, 1, size]), device)
    })
}

fn stock_rotary(qkv: Tensor<2>, [cosines, sines]: [Tensor<3>; 2], s: &Sizes) -> Tensor<2> {
    let [rows, width] = qkv.dims();
    let size = s.c / s.attention.heads;
    let heads = qkv.reshape([rows, width / size, size]);
    let rotated = rotation(s).heads + rotation(s).kv_heads;
    let x = heads.clone().narrow(1, 0, rotated);
    let [low, high] = [0, size / 2].map(|first| x.clone().narrow(2, first, size / 2));
    let turned = Tensor::cat(vec![high.neg(), low], 2);
    let values = heads.narrow(1, rotated, width / size - rotated);
    Tensor::cat(vec![x * cosines + turned * sines, values], 1).reshape([rows, width])
}

fn rotary_forward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let qkv = || bench.activations(packed(s));
    let angles = angles(s, bench.device).map(|table| table.cast(qkv().dtype()));
    bench.row(
        "rotary",
        rotary_cost(bench, s),
        || best_seconds(bench.device, qkv, |x| drop(ops::rotary(x, None, rotation(s), bench.mode))),
        || best_seconds(bench.device, qkv, |x| drop(stock_rotary(x, angles.clone(), s))),
    )
}

fn rotary_backward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let dqkv = || bench.activations(packed(s));
    let ours = |d| drop(ops::rotary_backward(d, None, None, rotation(s), bench.mode));
    let leaf = bench.leaf(packed(s));
    let angles = angles(s, &bench.device.clone().autodiff());
    let rotated = || stock_rotary(leaf.clone(), angles.clone(), s);
    bench.row(
        "rotary backward",
        rotary_cost(bench, s),
        || best_seconds(bench.device, dqkv, ours),
        || best_seconds(bench.device, rotated, |y: Tensor<2>| drop(y.backward())),
    )
}

/// Computes attention with a matrix of scores for each head, and a copy of the keys for each of its heads.
fn stock_attention(
    qkv: Tensor<2>,
    causal_mask: Tensor<4, burn::tensor::Bool>,
    s: &Sizes,
) -> Tensor<2> {
    let AttentionShape { batch, time, heads, kv_heads, .. } = shared(s);
    let size = s.c / heads;
    let qkv = qkv.reshape([batch, time, heads + 2 * kv_heads, size]);
    let part = |first, count: usize| {
        let part = qkv.clone().narrow(2, first, count).swap_dims(1, 2);
        let part = part.unsqueeze_dim::<5>(2).repeat_dim(2, heads / count);
        part.reshape([batch, heads, time, size])
    };
    let (keys, values) = (part(heads, kv_heads), part(heads + kv_heads, kv_heads));
    let scores = part(0, heads).matmul(keys.transpose()).mul_scalar(1.0 / (size as f32).sqrt());
    let mask = causal_mask.expand([batch, heads, time, time]);
    let out = activation::softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 3).matmul(values);
    out.swap_dims(1, 2).reshape([batch * time, s.c])
}

fn attention_forward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let qkv = bench.activations(packed(s));
    let causal_mask = causal_mask(s, bench.device);
    let once = attention(bench, s, 2, 1);
    bench.forward(
        "attention, 4 heads share keys",
        Cost { bytes: once.bytes + bench.bytes(packed(s)[0] * packed(s)[1]), ..once },
        || ops::attention(qkv.clone(), shared(s), bench.mode).0,
        || stock_attention(qkv.clone(), causal_mask.clone(), s),
    )
}

fn attention_backward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let ([rows, width], mode) = (packed(s), bench.mode);
    let qkv = bench.activations([rows, width]);
    let dout = bench.activations([rows, s.c]);
    let (out, log_sum_exp) = ops::attention(qkv.clone(), shared(s), mode);
    let leaf = bench.leaf([rows, width]);
    let causal_mask = causal_mask(s, &bench.device.clone().autodiff());
    let once = attention(bench, s, 5, 2);
    bench.backward(
        "attention backward, 4 heads share keys",
        Cost { bytes: once.bytes + 2 * bench.bytes(rows * width), ..once },
        || {
            let [dout, qkv, out] = [&dout, &qkv, &out].map(Tensor::clone);
            ops::attention_backward(dout, qkv, out, log_sum_exp.clone(), shared(s), mode)
        },
        || stock_attention(leaf.clone(), causal_mask.clone(), s),
    )
}

/// Returns rows, inputs and outputs of the second layer of the MLP, whose width is about 8/3 c.
fn mlp_out(s: &Sizes) -> [usize; 3] {
    [s.rows, (8 * s.c / 3).next_multiple_of(64), s.c]
}

fn stock_swiglu(x: Tensor<2>, w: Tensor<2>, residual: Tensor<2>) -> Tensor<2> {
    let inner = w.dims()[0];
    let [gate, up] = [0, inner].map(|first| x.clone().narrow(1, first, inner));
    (activation::silu(gate) * up).matmul(w) + residual
}

fn swiglu_forward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let [m, k, n] = mlp_out(s);
    let (x, w) = (bench.activations([m, 2 * k]), bench.weight([k, n]));
    let residual = bench.activations([m, n]);
    let swiglu = Some(Activation::SwiGlu);
    bench.forward(
        "swiglu + gemm + residual",
        product(bench, [m, k, n], m * k + m * n),
        || {
            let residual = Some(residual.clone());
            ops::linear(x.clone(), w.clone(), None, residual, swiglu, bench.mode)
        },
        || stock_swiglu(x.clone(), w.clone().cast(FloatDType::from(x.dtype())), residual.clone()),
    )
}

/// Measures the gradients of [`swiglu_forward`]. The weight's is f32.
fn swiglu_backward(bench: &Bench, s: &Sizes) -> Result<KernelRow, DeviceError> {
    let [m, k, n] = mlp_out(s);
    let (x, w) = (bench.activations([m, 2 * k]), bench.weight([k, n]));
    let dy = bench.activations([m, n]);
    let leaves = (bench.leaf([m, 2 * k]), bench.leaf([k, n]), bench.leaf([m, n]));
    let swiglu = Some(Activation::SwiGlu);
    // Gate and up are read for both gradients, and theirs are written.
    let once = product(bench, [m, k, n], 5 * m * k + m * n);
    bench.backward(
        "swiglu + gemm + residual backward",
        Cost { bytes: once.bytes + 4 * k * n, operations: 2 * once.operations, ..once },
        || ops::linear_backward(dy.clone(), x.clone(), w.clone(), swiglu, false, bench.mode),
        || stock_swiglu(leaves.0.clone(), leaves.1.clone(), leaves.2.clone()),
    )
}
