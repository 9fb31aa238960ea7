//! Attention without tensor cores, in f32: an invocation owns a row, and the workgroup walks over
//! the other side in shared tiles.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::Packed;
use super::layout::HeadRows;
use crate::ops::shared::cube::math::{LEAST, exp, ln};

pub(super) const UNITS: u32 = 64;

/// The compile-time parameters of all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TileLayout {
    /// A head's size in vectors.
    size: usize,
    tile: usize,
    dropout: bool,
}

impl TileLayout {
    /// For heads of `size` vectors of `vector` elements. In a tile are rows of two matrices, and two
    /// values for each row, within `memory` bytes.
    pub fn new(memory: usize, size: usize, vector: usize, dropout: bool) -> Self {
        let fits = |tile: &usize| tile * (2 * size * vector + 2) * 4 <= memory;
        Self { size, tile: [32, 16].into_iter().find(fits).unwrap_or(8), dropout }
    }
}

#[cube]
fn tile_of_rows<N: Size>(#[comptime] layout: TileLayout) -> Shared<[Vector<f32, N>]> {
    Shared::<[Vector<f32, N>]>::new_slice(comptime!(layout.tile * layout.size))
}

/// Stages a tile of rows from position `begin` on, by the whole workgroup.
#[cube]
fn stage<T: Float, N: Size>(
    staged: &mut Shared<[Vector<f32, N>]>,
    source: &[Vector<T, N>],
    rows: &HeadRows,
    begin: usize,
    #[comptime] layout: TileLayout,
) {
    let size = comptime!(layout.size);
    let mut i = UNIT_POS as usize;
    while i < comptime!(layout.tile * layout.size) {
        staged[i] = Vector::cast_from(source[rows.at(begin + i / size) + i % size]);
        i += UNITS as usize;
    }
}

/// The output and the log-sum-exp of the scores, `[batch, heads, time]`, by a running maximum. An
/// invocation owns a query; the workgroup goes through the keys up to its last query.
#[cube(launch_unchecked)]
pub(super) fn attend<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &mut [Vector<T, N>],
    log_sum_exp: &mut [f32],
    p: Packed,
    #[comptime] layout: TileLayout,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(layout.size);
    let tile = comptime!(layout.tile);
    let units = UNITS as usize;
    let pair = p.pair();
    // The last queries see the most keys: they come first.
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * units;
    let own = first + UNIT_POS as usize;
    let mask_key = p.mask_key(pair);

    let mut keys = tile_of_rows::<N>(layout);
    let mut values = tile_of_rows::<N>(layout);
    let mut q = Array::<Vector<f32, N>>::new(size);
    let mut acc = Array::<Vector<f32, N>>::new(size);
    let at = p.third(pair, 0usize, size).at(own);
    for d in 0..size {
        // Scaled before the product: the large scores of a long row stay in range.
        q[d] = Vector::<f32, N>::cast_from(qkv[at + d]) * Vector::new(p.scale);
        acc[d] = Vector::new(0.0f32);
    }
    let mut largest = LEAST.runtime();
    let mut sum = 0.0f32;

    let end = min(first + units, p.time);
    let mut begin = 0usize.runtime();
    while begin < end {
        stage(&mut keys, qkv, &p.third(pair, 1usize, size), begin, layout);
        stage(&mut values, qkv, &p.third(pair, 2usize, size), begin, layout);
        sync_cube();
        let seen = min(min(begin + tile, end), own + 1);
        for key in begin..seen {
            let place = (key - begin) * size;
            let mut products = Vector::<f32, N>::new(0.0f32);
            for d in 0..size {
                products += q[d] * keys[place + d];
            }
            let score = products.vector_sum();
            if score > largest {
                let factor = exp(largest - score);
                sum *= factor;
                for d in 0..size {
                    acc[d] *= Vector::new(factor);
                }
                largest = score;
            }
            let mut prob = exp(score - largest);
            sum += prob;
            if comptime!(layout.dropout) {
                prob *= p.keep(mask_key, pair, own, key);
            }
            for d in 0..size {
                acc[d] += values[place + d] * Vector::new(prob);
            }
        }
        sync_cube();
        begin += tile;
    }

    if own < p.time {
        let at = p.merged(pair, size).at(own);
        for d in 0..size {
            out[at + d] = Vector::cast_from(acc[d] * Vector::new(1.0f32 / sum));
        }
        log_sum_exp[pair * p.time + own] = largest + ln(sum);
    }
}

/// The gradient of the queries, and `delta = rowsum(d_out * out)` for `backward_keys`. With p the
/// probabilities, recomputed from the log-sum-exp: `ds = p * (d_out v^T - delta)`,
/// `dq = ds k * scale`. As in `attend`, an invocation owns a query.
#[cube(launch_unchecked)]
pub(super) fn backward_queries<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &mut [f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    #[comptime] layout: TileLayout,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(layout.size);
    let tile = comptime!(layout.tile);
    let units = UNITS as usize;
    let pair = p.pair();
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * units;
    let own = first + UNIT_POS as usize;
    let mask_key = p.mask_key(pair);

    let mut keys = tile_of_rows::<N>(layout);
    let mut values = tile_of_rows::<N>(layout);
    let mut q = Array::<Vector<f32, N>>::new(size);
    let mut d_o = Array::<Vector<f32, N>>::new(size);
    let mut acc = Array::<Vector<f32, N>>::new(size);
    let at = p.third(pair, 0usize, size).at(own);
    let row = p.merged(pair, size).at(own);
    let mut products = Vector::<f32, N>::new(0.0f32);
    for d in 0..size {
        q[d] = Vector::<f32, N>::cast_from(qkv[at + d]) * Vector::new(p.scale);
        d_o[d] = Vector::cast_from(d_out[row + d]);
        products += d_o[d] * Vector::<f32, N>::cast_from(out[row + d]);
        acc[d] = Vector::new(0.0f32);
    }
    let own_delta = products.vector_sum();
    let offset = log_sum_exp[p.statistic(pair, own)];

    let end = min(first + units, p.time);
    let mut begin = 0usize.runtime();
    while begin < end {
        stage(&mut keys, qkv, &p.third(pair, 1usize, size), begin, layout);
        stage(&mut values, qkv, &p.third(pair, 2usize, size), begin, layout);
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
            if comptime!(layout.dropout) {
                d_prob *= p.keep(mask_key, pair, own, key);
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

/// The gradients of keys and values: `dv = p^T d_out` and `dk = ds^T q * scale`, with p and ds as in
/// `backward_queries`. An invocation owns a key; the workgroup takes the queries from its first key on, of
/// each head that shares the keys.
#[cube(launch_unchecked)]
pub(super) fn backward_keys<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &[f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    #[comptime] layout: TileLayout,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(layout.size);
    let tile = comptime!(layout.tile);
    let lane = UNIT_POS as usize;
    let units = UNITS as usize;
    let pair = p.sharing_pair(0usize);
    // Early keys are seen by the most queries: they come first as they are.
    let first = CUBE_POS_X as usize * units;
    let own = first + lane;
    let mask_key = p.mask_key(pair);

    let mut queries = tile_of_rows::<N>(layout);
    let mut d_outs = tile_of_rows::<N>(layout);
    let mut offsets = Shared::<[f32]>::new_slice(tile);
    let mut deltas = Shared::<[f32]>::new_slice(tile);
    let mut k = Array::<Vector<f32, N>>::new(size);
    let mut v = Array::<Vector<f32, N>>::new(size);
    let mut d_k = Array::<Vector<f32, N>>::new(size);
    let mut d_v = Array::<Vector<f32, N>>::new(size);
    let key_at = p.third(pair, 1usize, size).at(own);
    let value_at = p.third(pair, 2usize, size).at(own);
    for d in 0..size {
        k[d] = Vector::<f32, N>::cast_from(qkv[key_at + d]) * Vector::new(p.scale);
        v[d] = Vector::cast_from(qkv[value_at + d]);
        d_k[d] = Vector::new(0.0f32);
        d_v[d] = Vector::new(0.0f32);
    }

    for nth in 0..p.sharing() {
        let pair = p.sharing_pair(nth);
        let mut begin = first / tile * tile;
        while begin < p.time {
            stage(&mut queries, qkv, &p.third(pair, 0usize, size), begin, layout);
            stage(&mut d_outs, d_out, &p.merged(pair, size), begin, layout);
            if lane < tile {
                let statistic = p.statistic(pair, begin + lane);
                offsets[lane] = log_sum_exp[statistic];
                deltas[lane] = delta[statistic];
            }
            sync_cube();
            let last = min(begin + tile, p.time);
            for query in max(begin, own)..last {
                let staged = query - begin;
                let place = staged * size;
                let mut scores = Vector::<f32, N>::new(0.0f32);
                let mut d_probs = Vector::<f32, N>::new(0.0f32);
                for d in 0..size {
                    scores += queries[place + d] * k[d];
                    d_probs += d_outs[place + d] * v[d];
                }
                let prob = exp(scores.vector_sum() - offsets[staged]);
                let mut factor = 1.0f32;
                if comptime!(layout.dropout) {
                    factor = p.keep(mask_key, pair, query, own);
                }
                let d_prob = d_probs.vector_sum() * factor;
                let d_score = prob * (d_prob - deltas[staged]);
                for d in 0..size {
                    d_k[d] += queries[place + d] * Vector::new(d_score);
                    d_v[d] += d_outs[place + d] * Vector::new(prob * factor);
                }
            }
            sync_cube();
            begin += tile;
        }
    }

    if own < p.time {
        for d in 0..size {
            d_qkv[key_at + d] = Vector::cast_from(d_k[d] * Vector::new(p.scale));
            d_qkv[value_at + d] = Vector::cast_from(d_v[d]);
        }
    }
}
