//! The embedding: the forward pass by tensor operations, which copy rows, and the backward pass as a
//! loop.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::{Flex, TensorMetadata};

use super::reference;
use crate::ops::shared::cpu::{CpuTensor, contiguous, from_values, math, values, values_mut};

pub(super) fn forward(
    shard: CpuTensor,
    base: CpuTensor,
    tokens: Arc<[u32]>,
    first: usize,
    period: usize,
) -> CpuTensor {
    reference::forward::<Flex>(shard, base, tokens, first, period)
}

/// Adds each row of `dy` to its token's row of `into`, which holds the tokens `shard`, and to its
/// row of the base, in order.
pub(super) fn backward(
    dy: CpuTensor,
    into: CpuTensor,
    tokens: Arc<[u32]>,
    shard: Range<usize>,
    period: usize,
    base_rows: usize,
) -> (CpuTensor, CpuTensor) {
    let [_, c] = dy.shape().dims();
    let dy = contiguous(dy);
    let mut dshard = contiguous(into);
    let sums = values_mut(&mut dshard);
    let mut dbase = vec![0.0f32; base_rows * c];
    for (row, (dy, &token)) in values(&dy).chunks(c).zip(tokens.iter()).enumerate() {
        if shard.contains(&(token as usize)) {
            let at = token as usize - shard.start;
            math::axpy(&mut sums[at * c..(at + 1) * c], 1.0, dy);
        }
        let position = row % period;
        math::axpy(&mut dbase[position * c..(position + 1) * c], 1.0, dy);
    }
    (dshard, from_values(dbase, [base_rows, c].into()))
}
