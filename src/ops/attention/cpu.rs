//! Attention as loops over the rows of each head.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::AttentionShape;
use crate::ops::shared::cpu::{CpuTensor, contiguous, from_values, math, values, vectorised};

/// One head of one sequence, copied out of the packed rows so that the inner loops run over
/// neighbouring elements.
struct Head {
    q: Vec<f32>,
    /// Transposed, `[size, time]`.
    k: Vec<f32>,
    v: Vec<f32>,
}

/// The location of head `index % heads` of sequence `index / heads` in rows of `width` elements.
#[derive(Clone, Copy)]
struct HeadLayout {
    first_row: usize,
    column: usize,
    width: usize,
    time: usize,
    size: usize,
}

impl HeadLayout {
    fn new(index: usize, width: usize, size: usize, shape: &AttentionShape) -> Self {
        Self {
            first_row: index / shape.heads * shape.time,
            column: index % shape.heads * size,
            width,
            time: shape.time,
            size,
        }
    }

    /// The head's elements, shifted by `offset` columns, as `[time, size]`.
    #[inline(always)]
    fn read(&self, rows: &[f32], offset: usize) -> Vec<f32> {
        let mut head = vec![0.0f32; self.time * self.size];
        for (t, row) in head.chunks_mut(self.size).enumerate() {
            let from = (self.first_row + t) * self.width + self.column + offset;
            row.copy_from_slice(&rows[from..from + self.size]);
        }
        head
    }
}

#[inline(always)]
fn transposed(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut t = vec![0.0f32; x.len()];
    for (r, row) in x.chunks(columns).enumerate() {
        for (c, &value) in row.iter().enumerate() {
            t[c * rows + r] = value;
        }
    }
    t
}

pub(super) fn forward(qkv: CpuTensor, shape: AttentionShape) -> (CpuTensor, CpuTensor) {
    let shape = &shape;
    let [n, width] = qkv.shape().dims();
    let c = width / 3;
    let (time, size) = (shape.time, c / shape.heads);
    let qkv = contiguous(qkv);
    let qkv = values(&qkv);
    let mut heads = vec![0.0f32; n * c];
    let mut log_sum_exp = vec![0.0f32; n * shape.heads];
    heads.par_chunks_mut(time * size).zip(log_sum_exp.par_chunks_mut(time)).enumerate().for_each(
        |(index, (out, log_sum_exp))| {
            vectorised(|| {
                let layout = HeadLayout::new(index, width, size, shape);
                let head = Head {
                    q: layout.read(qkv, 0),
                    k: transposed(&layout.read(qkv, c), time, size),
                    v: layout.read(qkv, 2 * c),
                };
                forward_head(&head, out, log_sum_exp, index, shape, c);
            });
        },
    );
    let mut out = vec![0.0f32; n * c];
    scatter(&heads, &mut out, c, 0, size, shape);
    (
        from_values(out, [n, c].into()),
        from_values(log_sum_exp, [shape.batch, shape.heads, time].into()),
    )
}

#[inline(always)]
fn forward_head(
    head: &Head,
    out: &mut [f32],
    log_sum_exp: &mut [f32],
    index: usize,
    shape: &AttentionShape,
    c: usize,
) {
    let (time, size) = (shape.time, c / shape.heads);
    let mut scores = vec![0.0f32; time];
    for query in 0..time {
        let scores = &mut scores[..=query];
        let q = &head.q[query * size..(query + 1) * size];
        score_row(scores, q, &head.k, time, shape.scale(c));
        let max = math::max(scores);
        for score in scores.iter_mut() {
            *score = math::exp(*score - max);
        }
        let sum = math::sum_by(scores.len(), |i| scores[i]);
        log_sum_exp[query] = max + sum.ln();
        for p in scores.iter_mut() {
            *p /= sum;
        }
        mask_row(scores, index, query, shape);
        let out = &mut out[query * size..(query + 1) * size];
        for (p, v) in scores.iter().zip(head.v.chunks(size)) {
            math::axpy(out, *p, v);
        }
    }
}

/// `scores = scale * q k^T` over the keys up to the query, for `k` transposed.
#[inline(always)]
fn score_row(scores: &mut [f32], q: &[f32], k: &[f32], time: usize, scale: f32) {
    scores.fill(0.0);
    for (q, k) in q.iter().zip(k.chunks(time)) {
        math::axpy(scores, q * scale, k);
    }
}

/// Drops out the probabilities of one query's row.
#[inline(always)]
fn mask_row(p: &mut [f32], index: usize, query: usize, shape: &AttentionShape) {
    let Some(dropout) = shape.dropout else { return };
    let key = dropout.sequence_key(index / shape.heads);
    let first = ((index % shape.heads * shape.time + query) * shape.time) as u32;
    for (i, p) in p.iter_mut().enumerate() {
        let kept = dropout.keeps(key, first + i as u32);
        *p = if kept { *p * dropout.scale() } else { 0.0 };
    }
}

pub(super) fn backward(
    dout: CpuTensor,
    qkv: CpuTensor,
    out: CpuTensor,
    log_sum_exp: CpuTensor,
    shape: AttentionShape,
) -> CpuTensor {
    let shape = &shape;
    let [n, width] = qkv.shape().dims();
    let c = width / 3;
    let (time, size) = (shape.time, c / shape.heads);
    let [dout, qkv, out, log_sum_exp] = [dout, qkv, out, log_sum_exp].map(contiguous);
    let [dout, qkv, out, log_sum_exp] = [&dout, &qkv, &out, &log_sum_exp].map(values);
    let mut dq = vec![0.0f32; n * c];
    let mut dk = vec![0.0f32; n * c];
    let mut dv = vec![0.0f32; n * c];
    let per_head = time * size;
    dq.par_chunks_mut(per_head)
        .zip(dk.par_chunks_mut(per_head))
        .zip(dv.par_chunks_mut(per_head))
        .enumerate()
        .for_each(|(index, ((dq, dk), dv))| {
            vectorised(|| {
                let packed = HeadLayout::new(index, width, size, shape);
                let plain = HeadLayout::new(index, c, size, shape);
                let k = packed.read(qkv, c);
                let v = packed.read(qkv, 2 * c);
                let saved = BackwardHead {
                    q: packed.read(qkv, 0),
                    k_transposed: transposed(&k, time, size),
                    v_transposed: transposed(&v, time, size),
                    k,
                    out: plain.read(out, 0),
                    dout: plain.read(dout, 0),
                    log_sum_exp: &log_sum_exp[index * time..(index + 1) * time],
                };
                backward_head(&saved, dq, dk, dv, index, shape, c);
            });
        });
    let mut dqkv = vec![0.0f32; n * width];
    for (part, heads) in [dq, dk, dv].iter().enumerate() {
        scatter(heads, &mut dqkv, width, part * c, size, shape);
    }
    from_values(dqkv, [n, width].into())
}

struct BackwardHead<'a> {
    q: Vec<f32>,
    k: Vec<f32>,
    k_transposed: Vec<f32>,
    v_transposed: Vec<f32>,
    out: Vec<f32>,
    dout: Vec<f32>,
    log_sum_exp: &'a [f32],
}

#[inline(always)]
fn backward_head(
    head: &BackwardHead,
    dq: &mut [f32],
    dk: &mut [f32],
    dv: &mut [f32],
    index: usize,
    shape: &AttentionShape,
    c: usize,
) {
    let (time, size, scale) = (shape.time, c / shape.heads, shape.scale(c));
    let mut p = vec![0.0f32; time];
    let mut dropped = vec![0.0f32; time];
    let mut ds = vec![0.0f32; time];
    for query in 0..time {
        let row = query * size..(query + 1) * size;
        let (q, out, dout) =
            (&head.q[row.clone()], &head.out[row.clone()], &head.dout[row.clone()]);
        let (p, dropped, ds) = (&mut p[..=query], &mut dropped[..=query], &mut ds[..=query]);
        score_row(p, q, &head.k_transposed, time, scale);
        for p in p.iter_mut() {
            *p = math::exp(*p - head.log_sum_exp[query]);
        }
        dropped.copy_from_slice(p);
        mask_row(dropped, index, query, shape);
        score_row(ds, dout, &head.v_transposed, time, 1.0);
        mask_row(ds, index, query, shape);
        let delta = math::dot(dout, out);
        for (ds, p) in ds.iter_mut().zip(p.iter()) {
            *ds = p * (*ds - delta) * scale;
        }
        let dq = &mut dq[row];
        for (ds, k) in ds.iter().zip(head.k.chunks(size)) {
            math::axpy(dq, *ds, k);
        }
        let gradients = dk.chunks_mut(size).zip(dv.chunks_mut(size));
        for ((ds, p), (dk, dv)) in ds.iter().zip(dropped.iter()).zip(gradients) {
            math::axpy(dk, *ds, q);
            math::axpy(dv, *p, dout);
        }
    }
}

/// Writes heads `[batch, heads, time, size]` into rows of `width` elements, from column `offset`.
fn scatter(
    heads: &[f32],
    rows: &mut [f32],
    width: usize,
    offset: usize,
    size: usize,
    shape: &AttentionShape,
) {
    let AttentionShape { time, heads: count, .. } = *shape;
    rows.par_chunks_mut(width).enumerate().with_min_len(16).for_each(|(row, out)| {
        let (sequence, t) = (row / time, row % time);
        let out = &mut out[offset..offset + count * size];
        for (head, out) in out.chunks_mut(size).enumerate() {
            let from = ((sequence * count + head) * time + t) * size;
            out.copy_from_slice(&heads[from..from + size]);
        }
    });
}
