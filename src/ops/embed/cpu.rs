use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{EmbedInputs, PositionGradientInputs, TokenGradientInputs};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, math, memory, rows_per_task, values, values_mut,
};

pub(super) fn forward(inputs: EmbedInputs<Flex>) -> CpuTensor {
    let EmbedInputs { shard, base, tokens, first, period } = inputs;
    let [_, c] = shard.shape().dims();
    let [shard, base] = [shard, base].map(contiguous);
    let [table, below] = [&shard, &base].map(values);
    let mut y = memory::take(tokens.len() * c);
    let rows = rows_per_task(tokens.len(), c);
    y.par_chunks_mut(rows * c).zip(tokens.par_chunks(rows)).enumerate().for_each(
        |(task, (y, tokens))| {
            for (i, (y, &token)) in y.chunks_mut(c).zip(tokens).enumerate() {
                y.copy_from_slice(&below[(task * rows + i) % period * c..][..c]);
                let place = (token as usize).checked_sub(first);
                if let Some(row) = place.and_then(|place| table.get(place * c..(place + 1) * c)) {
                    math::axpy(y, 1.0, row);
                }
            }
        },
    );
    memory::recycle([base]);
    from_values(y, [tokens.len(), c].into())
}

pub(super) fn by_token(inputs: TokenGradientInputs<Flex>) -> CpuTensor {
    let TokenGradientInputs { dy, into, tokens, shard } = inputs;
    let [_, c] = dy.shape().dims();
    let dy = contiguous(dy);
    let mut dshard = contiguous(into);
    let sums = values_mut(&mut dshard);
    for (dy, &token) in values(&dy).chunks(c).zip(tokens.iter()) {
        if shard.contains(&(token as usize)) {
            math::axpy(&mut sums[(token as usize - shard.start) * c..][..c], 1.0, dy);
        }
    }
    dshard
}

pub(super) fn by_position(inputs: PositionGradientInputs<Flex>) -> CpuTensor {
    let PositionGradientInputs { dy, time, positions } = inputs;
    let [_, c] = dy.shape().dims();
    let mut sums = vec![0.0f32; positions * c];
    for sequence in values(&contiguous(dy)).chunks(time * c) {
        math::axpy(&mut sums, 1.0, sequence);
    }
    from_values(sums, [positions, c].into())
}
