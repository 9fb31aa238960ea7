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
    let size = shape.size(width);
    let c = shape.heads * size;
    let qkv = contiguous(qkv);
    let qkv = values(&qkv);
    let mut out = memory::take(n * c);
    let mut log_sum_exp = memory::take(n * shape.heads);
    let log_sums: Vec<_> = log_sum_exp.chunks_mut(shape.time).collect();
    let outs = by_task(&mut out, shape, [shape.heads; 2], |head| head);
    outs.into_par_iter().zip(log_sums).enumerate().for_each(|(index, (out, log_sum_exp))| {
        forward::forward(AttentionHead::new(index, size, shape), qkv, out, log_sum_exp);
    });
    (
        from_values(out, [n, c].into()),
        from_values(log_sum_exp, [shape.batch, shape.heads, shape.time].into()),
    )
}

pub(super) fn backward(inputs: AttentionBackwardInputs<Flex>) -> CpuTensor {
    let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, ref shape } = inputs;
    let [n, width] = qkv.shape().dims();
    let size = shape.size(width);
    let group = shape.group();
    let saved = [dout, qkv, out, log_sum_exp].map(contiguous);
    let [dout, qkv, out, log_sum_exp] = saved.each_ref().map(values);
    let mut dqkv = memory::take(n * width);
    let AttentionShape { heads, kv_heads, .. } = *shape;
    let shared = |head| if head < heads { head / group } else { (head - heads) % kv_heads };
    let tasks = by_task(&mut dqkv, shape, [heads + 2 * kv_heads, kv_heads], shared);
    tasks.into_par_iter().enumerate().for_each(|(index, dqkv)| {
        let head = AttentionHead::new(index * group, size, shape);
        let log_sum_exp = &log_sum_exp[index * group * shape.time..];
        backward::backward(HeadInputs { head, qkv, out, dout, log_sum_exp }, dqkv);
    });
    memory::recycle(saved);
    from_values(dqkv, [n, width].into())
}

/// Splits rows of `heads` heads among `tasks` tasks for each sequence: `task_of` says which one has a head.
/// Returns each task's heads, position by position.
fn by_task<'a>(
    rows: &'a mut [f32],
    shape: &AttentionShape,
    [heads, tasks]: [usize; 2],
    task_of: impl Fn(usize) -> usize,
) -> Vec<Vec<&'a mut [f32]>> {
    let AttentionShape { batch, time, .. } = *shape;
    let count = batch * tasks;
    let mut by_task: Vec<Vec<_>> =
        (0..count).map(|_| Vec::with_capacity(time * heads / tasks)).collect();
    let size = rows.len() / (batch * time * heads);
    for (row, values) in rows.chunks_mut(heads * size).enumerate() {
        for (head, values) in values.chunks_mut(size).enumerate() {
            by_task[row / time * tasks + task_of(head)].push(values);
        }
    }
    by_task
}
