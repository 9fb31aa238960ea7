//! The backward pass: one kernel for the gradient of the queries, one for keys and values.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Form, Launches, Packed, UNITS, mask_at, packed_at, row_at};
use crate::ops::AttentionShape;
use crate::ops::dropout::cube::{Mask, keep, sequence_key};
use crate::ops::shared::cube::math::exp;
use crate::ops::shared::cube::{CubeKernels, argument, elem, launch};
use crate::ops::shared::kernels::contiguous;

/// The gradient of the queries, and `delta = rowsum(d_out * out)` for `backward_keys`. With p the
/// probabilities, recomputed from the log-sum-exp: `ds = p * (d_out v^T - delta)`,
/// `dq = ds k * scale`. As in `attend`, an invocation owns a query.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer")]
fn backward_queries<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &mut [f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    mask: Mask,
    #[comptime] form: Form,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(form.size);
    let tile = comptime!(form.tile);
    let lane = UNIT_POS as usize;
    let units = UNITS as usize;
    let pair = p.first_pair + CUBE_POS_Y as usize;
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * units;
    let own = first + lane;
    let mask_key = sequence_key(&mask, pair / p.heads);

    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut q = Array::<Vector<f32, N>>::new(size);
    let mut d_o = Array::<Vector<f32, N>>::new(size);
    let mut acc = Array::<Vector<f32, N>>::new(size);
    let at = packed_at(&p, pair, own, 0usize, size);
    let row = row_at(&p, pair, own, size);
    let mut products = Vector::<f32, N>::new(0.0f32);
    for d in 0..size {
        q[d] = Vector::<f32, N>::cast_from(qkv[at + d]) * Vector::new(p.scale);
        d_o[d] = Vector::cast_from(d_out[row + d]);
        products += d_o[d] * Vector::<f32, N>::cast_from(out[row + d]);
        acc[d] = Vector::new(0.0f32);
    }
    let own_delta = products.vector_sum();
    let offset = log_sum_exp[pair * p.time + min(own, p.time - 1)];

    let end = min(first + units, p.time);
    let mut begin = 0usize.runtime();
    while begin < end {
        let mut i = lane;
        while i < tile * size {
            let position = begin + i / size;
            keys[i] =
                Vector::cast_from(qkv[packed_at(&p, pair, position, 1usize, size) + i % size]);
            values[i] =
                Vector::cast_from(qkv[packed_at(&p, pair, position, 2usize, size) + i % size]);
            i += units;
        }
        sync_cube();
        let seen = min(min(begin + tile, end), own + 1);
        for key in begin..seen {
            let place = (key - begin) * size;
            let mut scores = Vector::<f32, N>::new(0.0f32);
            let mut d_probs = Vector::<f32, N>::new(0.0f32);
            for d in 0..size {
                scores += q[d] * keys[place + d];
                d_probs += d_o[d] * values[place + d];
            }
            let prob = exp(scores.vector_sum() - offset);
            let mut d_prob = d_probs.vector_sum();
            if comptime!(form.dropout) {
                d_prob *= keep(&mask, mask_key, mask_at(&p, pair, own, key));
            }
            let d_score = prob * (d_prob - own_delta);
            for d in 0..size {
                acc[d] += keys[place + d] * Vector::new(d_score);
            }
        }
        sync_cube();
        begin += tile;
    }

    if own < p.time {
        for d in 0..size {
            d_qkv[at + d] = Vector::cast_from(acc[d] * Vector::new(p.scale));
        }
        delta[pair * p.time + own] = own_delta;
    }
}

/// The gradients of keys and values: `dv = p^T d_out` and `dk = ds^T q * scale`, with p and ds as
/// in `backward_queries`. An invocation owns a key; the workgroup walks over the queries from its
/// first key on.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer")]
fn backward_keys<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &[f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    mask: Mask,
    #[comptime] form: Form,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(form.size);
    let tile = comptime!(form.tile);
    let lane = UNIT_POS as usize;
    let units = UNITS as usize;
    let pair = p.first_pair + CUBE_POS_Y as usize;
    // Early keys are seen by the most queries: they come first as they are.
    let first = CUBE_POS_X as usize * units;
    let own = first + lane;
    let mask_key = sequence_key(&mask, pair / p.heads);

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut d_outs = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut k = Array::<Vector<f32, N>>::new(size);
    let mut v = Array::<Vector<f32, N>>::new(size);
    let mut d_k = Array::<Vector<f32, N>>::new(size);
    let mut d_v = Array::<Vector<f32, N>>::new(size);
    let key_at = packed_at(&p, pair, own, 1usize, size);
    let value_at = packed_at(&p, pair, own, 2usize, size);
    for d in 0..size {
        k[d] = Vector::<f32, N>::cast_from(qkv[key_at + d]) * Vector::new(p.scale);
        v[d] = Vector::cast_from(qkv[value_at + d]);
        d_k[d] = Vector::new(0.0f32);
        d_v[d] = Vector::new(0.0f32);
    }

    let mut begin = first / tile * tile;
    while begin < p.time {
        let mut i = lane;
        while i < tile * size {
            let position = begin + i / size;
            queries[i] =
                Vector::cast_from(qkv[packed_at(&p, pair, position, 0usize, size) + i % size]);
            d_outs[i] = Vector::cast_from(d_out[row_at(&p, pair, position, size) + i % size]);
            i += units;
        }
        sync_cube();
        let last = min(begin + tile, p.time);
        for query in max(begin, own)..last {
            let place = (query - begin) * size;
            let mut scores = Vector::<f32, N>::new(0.0f32);
            let mut d_probs = Vector::<f32, N>::new(0.0f32);
            for d in 0..size {
                scores += queries[place + d] * k[d];
                d_probs += d_outs[place + d] * v[d];
            }
            let prob = exp(scores.vector_sum() - log_sum_exp[pair * p.time + query]);
            let mut factor = 1.0f32;
            if comptime!(form.dropout) {
                factor = keep(&mask, mask_key, mask_at(&p, pair, query, own));
            }
            let d_prob = d_probs.vector_sum() * factor;
            let d_score = prob * (d_prob - delta[pair * p.time + query]);
            for d in 0..size {
                d_k[d] += queries[place + d] * Vector::new(d_score);
                d_v[d] += d_outs[place + d] * Vector::new(prob * factor);
            }
        }
        sync_cube();
        begin += tile;
    }

    if own < p.time {
        for d in 0..size {
            d_qkv[key_at + d] = Vector::cast_from(d_k[d] * Vector::new(p.scale));
            d_qkv[value_at + d] = Vector::cast_from(d_v[d]);
        }
    }
}

pub(in crate::ops::attention) fn backward(
    kernels: &CubeKernels,
    dout: CubeTensor,
    qkv: CubeTensor,
    out: CubeTensor,
    log_sum_exp: CubeTensor,
    shape: AttentionShape,
) -> CubeTensor {
    let [n, three_c] = qkv.shape().dims();
    let [dout, qkv, out, log_sum_exp] = [dout, qkv, out, log_sum_exp].map(contiguous);
    let delta = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    let dqkv = kernels.queue.empty_of([n, three_c], qkv.dtype);
    let launches = Launches::new(kernels, shape, three_c / 3);
    for (count, packed, mask) in launches.each() {
        launch!(backward_queries(
            kernels.client(),
            count,
            CubeDim::new_1d(UNITS),
            launches.vector,
            argument(&qkv),
            argument(&out),
            argument(&dout),
            argument(&log_sum_exp),
            argument(&delta),
            argument(&dqkv),
            packed,
            mask,
            launches.form,
            elem(&qkv),
        ));
    }
    for (count, packed, mask) in launches.each() {
        launch!(backward_keys(
            kernels.client(),
            count,
            CubeDim::new_1d(UNITS),
            launches.vector,
            argument(&qkv),
            argument(&dout),
            argument(&log_sum_exp),
            argument(&delta),
            argument(&dqkv),
            packed,
            mask,
            launches.form,
            elem(&qkv),
        ));
    }
    dqkv
}
