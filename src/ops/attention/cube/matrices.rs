//! Attention on tensor cores, by cubecl's cooperative matrices: factors in the activations' dtype or
//! tf32, sums in f32. The algorithm is the one of `shaders/attention_cooperative*.wgsl`, except that planes
//! wait for each other only where the workgroup stages rows.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::Packed;
use super::layout::{COLUMNS, StripLayout};
use super::strip::Strip;
use crate::ops::shared::cube::math::{LEAST, exp, ln};

/// Scores are relative to a reference of their row, which need not be its maximum: as long as none
/// exceeds it by more than this, the sums, which are in matrices that cannot be multiplied row by
/// row, stay as they are. A reference is a score of its row, so that the largest probability is
/// between 1 and e^8, within the range of f16.
const GROWTH: f32 = 8.0;

/// The output and the log-sum-exp of the scores, `[batch, heads, time]`, by an online softmax. A
/// workgroup owns queries and goes through the keys up to its last one.
#[cube(launch_unchecked)]
pub(super) fn attend<T: Float, F: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &mut [Vector<T, N>],
    log_sum_exp: &mut [f32],
    p: Packed,
    #[comptime] layout: StripLayout,
    #[define(T)] _elem: ElemType,
    #[define(F)] _factor: ElemType,
) {
    let size = comptime!(layout.size / layout.vector);
    let rows = comptime!(layout.rows());
    let elements = comptime!(layout.elements());
    let pair = p.pair();
    // The last queries see the most keys: they come first.
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * rows;
    let mask_key = p.mask_key(pair);
    let keys = p.third(pair, 1usize, size);
    let values = p.third(pair, 2usize, size);

    let mut strip = Strip::<F, N>::new(layout);
    let query = first + strip.own_row();
    let queries = strip.load_rows(qkv, &p.third(pair, 0usize, size), first);
    let mut sums = strip.no_sums();
    let mut reference = LEAST.runtime();
    // Of the lane's columns alone.
    let mut sum = 0.0f32;

    let end = min(first + rows, p.time);
    let strip_end = first + strip.first + comptime!(layout.side);
    let mut begin = 0usize.runtime();
    while begin < end {
        sync_cube();
        strip.stage(qkv, &keys, begin, 0usize, COLUMNS);
        strip.stage(qkv, &values, begin, COLUMNS, COLUMNS);
        sync_cube();
        if begin < strip_end {
            strip.multiply(&queries, 0usize);
            let mut probs = strip.scores();
            let mut largest = LEAST.runtime();
            #[unroll]
            for j in 0..elements {
                let visible = begin + strip.column(j) <= query;
                probs[j] = select(visible, probs[j] * p.scale, LEAST);
                largest = max(largest, probs[j]);
            }
            if plane_any(largest > reference + GROWTH) {
                let grown = max(reference, strip.row_max(largest));
                let by = exp(reference - grown);
                reference = grown;
                sum *= by;
                if begin > 0 {
                    strip.rescale(&mut sums, by);
                }
            }
            #[unroll]
            for j in 0..elements {
                probs[j] = exp(probs[j] - reference);
                sum += probs[j];
                if comptime!(layout.dropout) {
                    let kept = p.keep(mask_key, pair, query, begin + strip.column(j));
                    // The scale of what is kept is left to the end.
                    probs[j] = select(kept > 0.0, probs[j], 0.0f32);
                }
            }
            strip.set_factors(&probs);
            strip.accumulate(&mut sums, COLUMNS);
        }
        begin += COLUMNS;
    }

    let total = strip.row_sum(sum);
    let mut by = 1.0f32 / total;
    if comptime!(layout.dropout) {
        by *= p.mask.scale;
    }
    strip.store(&sums, out, &p.merged(pair, size), first, by);
    if strip.nth == 0 && query < p.time {
        log_sum_exp[pair * p.time + query] = reference + ln(total);
    }
}

/// The gradient of the queries, and `delta = rowsum(d_out * out)` for `backward_keys`. With p the
/// probabilities, recomputed from the log-sum-exp: `ds = p * (d_out v^T - delta) * scale`,
/// `dq = ds k`. As in `attend`, a workgroup owns queries.
#[cube(launch_unchecked)]
pub(super) fn backward_queries<T: Float, F: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &mut [f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    #[comptime] layout: StripLayout,
    #[define(T)] _elem: ElemType,
    #[define(F)] _factor: ElemType,
) {
    let size = comptime!(layout.size / layout.vector);
    let rows = comptime!(layout.rows());
    let elements = comptime!(layout.elements());
    let pair = p.pair();
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * rows;
    let mask_key = p.mask_key(pair);
    let queries = p.third(pair, 0usize, size);
    let keys = p.third(pair, 1usize, size);
    let values = p.third(pair, 2usize, size);
    let outputs = p.merged(pair, size);

    let mut strip = Strip::<F, N>::new(layout);
    let query = first + strip.own_row();
    let own = strip.load_rows(qkv, &queries, first);
    sync_cube();
    let own_d_out = strip.load_rows(d_out, &outputs, first);
    let mut sums = strip.no_sums();

    let own_delta = strip.row_product(d_out, out, outputs.at(query));
    let statistic = p.statistic(pair, query);
    let offset = log_sum_exp[statistic];
    if strip.nth == 0 && query < p.time {
        delta[statistic] = own_delta;
    }

    let end = min(first + rows, p.time);
    let strip_end = first + strip.first + comptime!(layout.side);
    let mut begin = 0usize.runtime();
    while begin < end {
        sync_cube();
        strip.stage(qkv, &keys, begin, 0usize, COLUMNS);
        strip.stage(qkv, &values, begin, COLUMNS, COLUMNS);
        sync_cube();
        if begin < strip_end {
            strip.multiply(&own, 0usize);
            let probs = strip.scores();
            strip.multiply(&own_d_out, COLUMNS);
            let mut d_scores = strip.scores();
            #[unroll]
            for j in 0..elements {
                let key = begin + strip.column(j);
                // Above the diagonal the score may exceed the log-sum-exp: masked before `exp`.
                let score = select(key <= query, probs[j] * p.scale - offset, LEAST);
                let mut d_prob = d_scores[j];
                if comptime!(layout.dropout) {
                    d_prob *= p.keep(mask_key, pair, query, key);
                }
                // Scaled before it is rounded: the factor is below 1.
                d_scores[j] = exp(score) * (d_prob - own_delta) * p.scale;
            }
            strip.set_factors(&d_scores);
            strip.accumulate(&mut sums, 0usize);
        }
        begin += COLUMNS;
    }
    strip.store(&sums, d_qkv, &queries, first, 1.0f32);
}

/// The gradients of keys and values: `dv = p^T d_out` and `dk = ds^T q`, with p and ds as in
/// `backward_queries`. A workgroup owns keys and goes through the queries from its first key on, of each
/// head that shares them.
#[cube(launch_unchecked)]
pub(super) fn backward_keys<T: Float, F: Float, N: Size>(
    qkv: &[Vector<T, N>],
    d_out: &[Vector<T, N>],
    log_sum_exp: &[f32],
    delta: &[f32],
    d_qkv: &mut [Vector<T, N>],
    p: Packed,
    #[comptime] layout: StripLayout,
    #[define(T)] _elem: ElemType,
    #[define(F)] _factor: ElemType,
) {
    let size = comptime!(layout.size / layout.vector);
    let rows = comptime!(layout.rows());
    let elements = comptime!(layout.elements());
    let pair = p.sharing_pair(0usize);
    // Early keys are seen by the most queries: they come first as they are.
    let first = CUBE_POS_X as usize * rows;
    let mask_key = p.mask_key(pair);
    let keys = p.third(pair, 1usize, size);
    let values = p.third(pair, 2usize, size);

    let mut strip = Strip::<F, N>::new(layout);
    let mut offsets = Shared::<[Vector<f32, N>]>::new_slice(COLUMNS / layout.vector);
    let mut deltas = Shared::<[Vector<f32, N>]>::new_slice(COLUMNS / layout.vector);
    let key = first + strip.own_row();
    let own_keys = strip.load_rows(qkv, &keys, first);
    sync_cube();
    let own_values = strip.load_rows(qkv, &values, first);
    let mut key_sums = strip.no_sums();
    let mut value_sums = strip.no_sums();

    for nth in 0..p.sharing() {
        let pair = p.sharing_pair(nth);
        let queries = p.third(pair, 0usize, size);
        let outputs = p.merged(pair, size);
        let mut begin = first / COLUMNS * COLUMNS;
        while begin < p.time {
            sync_cube();
            strip.stage(qkv, &queries, begin, 0usize, COLUMNS);
            strip.stage(d_out, &outputs, begin, COLUMNS, COLUMNS);
            let unit = UNIT_POS as usize;
            if unit < comptime!(COLUMNS / layout.vector) {
                let query = begin + unit * layout.vector;
                offsets[unit] = statistics(log_sum_exp, &p, pair, query, layout.vector);
                deltas[unit] = statistics(delta, &p, pair, query, layout.vector);
            }
            sync_cube();
            if begin + COLUMNS > first + strip.first {
                strip.multiply(&own_keys, 0usize);
                let mut probs = strip.scores();
                strip.multiply(&own_values, COLUMNS);
                let mut d_scores = strip.scores();
                let offset = strip.own(&offsets, 0usize);
                let own_delta = strip.own(&deltas, 0usize);
                #[unroll]
                for j in 0..elements {
                    let query = begin + strip.column(j);
                    let visible = key <= query && query < p.time;
                    let score = select(visible, probs[j] * p.scale - offset[j], LEAST);
                    let prob = exp(score);
                    let mut factor = 1.0f32;
                    if comptime!(layout.dropout) {
                        factor = p.keep(mask_key, pair, query, key);
                    }
                    probs[j] = prob * factor;
                    // Scaled before it is rounded: the factor is below 1.
                    d_scores[j] = prob * (d_scores[j] * factor - own_delta[j]) * p.scale;
                }
                strip.set_factors(&probs);
                strip.accumulate(&mut value_sums, COLUMNS);
                strip.set_factors(&d_scores);
                strip.accumulate(&mut key_sums, 0usize);
            }
            begin += COLUMNS;
        }
    }
    strip.store(&key_sums, d_qkv, &keys, first, 1.0f32);
    strip.store(&value_sums, d_qkv, &values, first, 1.0f32);
}

/// Returns a value of each of `count` queries.
#[cube]
fn statistics<N: Size>(
    of: &[f32],
    p: &Packed,
    pair: usize,
    query: usize,
    #[comptime] count: usize,
) -> Vector<f32, N> {
    let mut values = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..count {
        values.insert(i, of[p.statistic(pair, query + i)]);
    }
    values
}
