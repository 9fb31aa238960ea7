//! The cases of attention, and of the rotation of its queries and keys.

use burn::tensor::{Bool, Device, Tensor, TensorData, activation};

use super::kernels::{Bench, Cost, OpSizes};
use super::{OpRow, best_seconds};
use crate::config::RopeScaling;
use crate::gpu::DeviceError;
use crate::ops::{self, AttentionShape, RotaryShape};

/// Returns attention in which four heads of queries share a head of keys, as in Llama.
pub(super) fn shared(s: &OpSizes) -> AttentionShape {
    AttentionShape { kv_heads: s.attention.heads / 4, ..s.attention }
}

/// Returns the shape of packed qkv.
fn packed(s: &OpSizes, shape: AttentionShape) -> [usize; 2] {
    let AttentionShape { batch, time, heads, kv_heads, .. } = shape;
    [batch * time, s.c / heads * (heads + 2 * kv_heads)]
}

/// Computes attention with a matrix of scores `[time, time]` for each head of queries, and a copy of its
/// keys.
fn stock_attention(
    qkv: Tensor<2>,
    causal_mask: Tensor<4, Bool>,
    shape: AttentionShape,
) -> Tensor<2> {
    let AttentionShape { batch, time, heads, kv_heads, .. } = shape;
    let size = qkv.dims()[1] / (heads + 2 * kv_heads);
    let qkv = qkv.reshape([batch, time, heads + 2 * kv_heads, size]);
    let part = |first, count| -> Tensor<4> {
        let part = qkv.clone().narrow(2, first, count).swap_dims(1, 2);
        if count == heads {
            return part;
        }
        let copies = part.unsqueeze_dim::<5>(2).repeat_dim(2, heads / count);
        copies.reshape([batch, heads, time, size])
    };
    let keys = part(heads, kv_heads);
    let values = part(heads + kv_heads, kv_heads);
    let scores = part(0, heads).matmul(keys.transpose()).mul_scalar(1.0 / (size as f32).sqrt());
    let mask = causal_mask.expand([batch, heads, time, time]);
    let scores = scores.mask_fill(mask, f32::NEG_INFINITY);
    let out = activation::softmax(scores, 3).matmul(values);
    out.swap_dims(1, 2).reshape([batch * time, heads * size])
}

/// Returns the causal mask, true above the diagonal.
fn causal_mask(s: &OpSizes, device: &Device) -> Tensor<4, Bool> {
    let time = s.attention.time;
    Tensor::<2>::ones([time, time], device).tril(0).equal_elem(0.0).reshape([1, 1, time, time])
}

/// Returns the cost of attention with `products` matrix products of `batch * time^2 / 2 * c`
/// multiply-adds each, and with `elements` elements of qkv, outputs and gradients.
fn attention(bench: &Bench, s: &OpSizes, products: usize, elements: usize) -> Cost {
    let AttentionShape { batch, time, heads, .. } = s.attention;
    Cost {
        size: format!("{batch} x {time}, {heads} heads of {}", s.c / heads),
        bytes: bench.bytes(elements),
        operations: products * batch * time * time * s.c,
    }
}

pub(super) fn attention_forward(
    bench: &Bench,
    name: &'static str,
    s: &OpSizes,
    shape: AttentionShape,
) -> Result<OpRow, DeviceError> {
    let [rows, width] = packed(s, shape);
    let qkv = bench.activations([rows, width]);
    let causal_mask = causal_mask(s, bench.device);
    bench.forward(
        name,
        attention(bench, s, 2, rows * (width + s.c)),
        || ops::attention(qkv.clone(), shape, bench.mode).0,
        || stock_attention(qkv.clone(), causal_mask.clone(), shape),
    )
}

pub(super) fn attention_backward(
    bench: &Bench,
    name: &'static str,
    s: &OpSizes,
    shape: AttentionShape,
) -> Result<OpRow, DeviceError> {
    let [rows, width] = packed(s, shape);
    let mode = bench.mode;
    let qkv = bench.activations([rows, width]);
    let dout = bench.activations([rows, s.c]);
    let (out, log_sum_exp) = ops::attention(qkv.clone(), shape, mode);
    let leaf = bench.leaf([rows, width]);
    let causal_mask = causal_mask(s, &bench.device.clone().autodiff());
    bench.backward(
        name,
        attention(bench, s, 5, 2 * rows * (width + s.c)),
        || {
            let [dout, qkv, out] = [&dout, &qkv, &out].map(Tensor::clone);
            ops::attention_backward(dout, qkv, out, log_sum_exp.clone(), shape, mode)
        },
        || stock_attention(leaf.clone(), causal_mask.clone(), shape),
    )
}

fn rotation(s: &OpSizes) -> RotaryShape {
    let AttentionShape { time, heads, kv_heads, .. } = shared(s);
    RotaryShape { time, heads, kv_heads, theta: 1e4, scaling: RopeScaling::None, eps: 1e-5 }
}

/// Returns the cost of a pass over q and k in place.
fn rotary(bench: &Bench, s: &OpSizes) -> Cost {
    let [rows, width] = packed(s, shared(s));
    let rotated = (width + s.c) / 2;
    Cost {
        size: format!("{rows} x {rotated} of {width}"),
        bytes: 2 * bench.bytes(rows * rotated),
        operations: 3 * rows * rotated,
    }
}

/// Returns the cosines and the sines of each element of a head at each position, `[n, 1, size]`.
fn angles(s: &OpSizes, device: &Device) -> [Tensor<3>; 2] {
    let AttentionShape { batch, time, heads, .. } = s.attention;
    let rows = batch * time;
    let size = s.c / heads;
    let angle = |at: usize| {
        let exponent = -2.0 * (at % (size / 2)) as f32 / size as f32;
        (at / size % time) as f32 * 1e4f32.powf(exponent)
    };
    [f32::cos, f32::sin].map(|function| {
        let table: Vec<f32> = (0..rows * size).map(|at| function(angle(at))).collect();
        Tensor::from_data(TensorData::new(table, [rows, 1, size]), device)
    })
}

fn stock_rotary(qkv: Tensor<2>, [cosines, sines]: [Tensor<3>; 2], shape: RotaryShape) -> Tensor<2> {
    let [rows, width] = qkv.dims();
    let RotaryShape { heads, kv_heads, .. } = shape;
    let size = width / (heads + 2 * kv_heads);
    let all = qkv.reshape([rows, heads + 2 * kv_heads, size]);
    let x = all.clone().narrow(1, 0, heads + kv_heads);
    let [low, high] = [0, size / 2].map(|first| x.clone().narrow(2, first, size / 2));
    let turned = Tensor::cat(vec![high.neg(), low], 2);
    let values = all.narrow(1, heads + kv_heads, kv_heads);
    Tensor::cat(vec![x * cosines + turned * sines, values], 1).reshape([rows, width])
}

pub(super) fn rotary_forward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let shape = rotation(s);
    let mode = bench.mode;
    let qkv = || bench.activations(packed(s, shared(s)));
    let angles = angles(s, bench.device).map(|table| table.cast(qkv().dtype()));
    bench.row(
        "rotary",
        rotary(bench, s),
        || best_seconds(bench.device, qkv, |x| drop(ops::rotary(x, None, shape, mode))),
        || best_seconds(bench.device, qkv, |x| drop(stock_rotary(x, angles.clone(), shape))),
    )
}

pub(super) fn rotary_backward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let shape = rotation(s);
    let mode = bench.mode;
    let dqkv = || bench.activations(packed(s, shared(s)));
    let leaf = bench.leaf(packed(s, shared(s)));
    let angles = angles(s, &bench.device.clone().autodiff());
    let rotated = || stock_rotary(leaf.clone(), angles.clone(), shape);
    bench.row(
        "rotary backward",
        rotary(bench, s),
        || {
            let ours = |d| drop(ops::rotary_backward(d, None, None, shape, mode));
            best_seconds(bench.device, dqkv, ours)
        },
        || best_seconds(bench.device, rotated, |y: Tensor<2>| drop(y.backward())),
    )
}
