//! Attention head by head, in products of tiles of queries and keys.
//!
//! A head's keys and values are packed once; the scores of eight queries at a time are a product in
//! registers, whose rows pass through softmax in the first cache. Keys after the last query are skipped.

use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{AttentionBackwardInputs, AttentionInputs, AttentionShape};
use crate::ops::shared::cpu::{CpuTensor, Flex, contiguous, from_values, memory, values};

mod backward;
mod forward;
mod head;
mod panels;
mod tile;

use backward::HeadInputs;
use head::AttentionHead;

pub(super) fn forward(inputs: AttentionInputs<Flex>) -> (CpuTensor, CpuTensor) {
    let AttentionInputs { qkv, ref shape } = inputs;
    let [n, width] = qkv.shape().dims();
    let c = width / 3;
    let qkv = contiguous(qkv);
    let qkv = values(&qkv);
    let mut out = memory::take(n * c);
    let mut log_sum_exp = memory::take(n * shape.heads);
    let log_sums: Vec<_> = log_sum_exp.chunks_mut(shape.time).collect();
    by_head(&mut out, 1, c, shape).into_par_iter().zip(log_sums).enumerate().for_each(
        |(index, (out, log_sum_exp))| {
            let head = AttentionHead::new(index, c, shape);
            forward::forward(head, qkv, out, log_sum_exp);
        },
    );
    (
        from_values(out, [n, c].into()),
        from_values(log_sum_exp, [shape.batch, shape.heads, shape.time].into()),
    )
}

pub(super) fn backward(inputs: AttentionBackwardInputs<Flex>) -> CpuTensor {
    let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, ref shape } = inputs;
    let [n, width] = qkv.shape().dims();
    let c = width / 3;
    let saved = [dout, qkv, out, log_sum_exp].map(contiguous);
    let [dout, qkv, out, log_sum_exp] = saved.each_ref().map(values);
    let mut dqkv = memory::take(n * width);
    by_head(&mut dqkv, 3, c, shape).into_par_iter().enumerate().for_each(|(index, dqkv)| {
        let head = AttentionHead::new(index, c, shape);
        let log_sum_exp = &log_sum_exp[index * shape.time..][..shape.time];
        backward::backward(HeadInputs { head, qkv, out, dout, log_sum_exp }, dqkv);
    });
    memory::recycle(saved);
    from_values(dqkv, [n, width].into())
}

/// Splits rows of `parts * c` elements by head: returns each head's parts, position by position.
fn by_head<'a>(
    rows: &'a mut [f32],
    parts: usize,
    c: usize,
    shape: &AttentionShape,
) -> Vec<Vec<&'a mut [f32]>> {
    let AttentionShape { batch, time, heads, .. } = *shape;
    let mut by_head: Vec<Vec<_>> =
        (0..batch * heads).map(|_| Vec::with_capacity(time * parts)).collect();
    for (row, values) in rows.chunks_mut(parts * c).enumerate() {
        let first = row / time * heads;
        for (part, values) in values.chunks_mut(c / heads).enumerate() {
            by_head[first + part % heads].push(values);
        }
    }
    by_head
}
