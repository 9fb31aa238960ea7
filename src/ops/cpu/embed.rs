use burn::backend::TensorMetadata;

use super::{CpuTensor, contiguous, from_values, math, values};

/// Sums the rows of `dy` into their token's and their position's row, in order.
pub(in crate::ops) fn backward(
    dy: &CpuTensor,
    tokens: &[u32],
    time: usize,
    vocab: usize,
    block: usize,
) -> (CpuTensor, CpuTensor) {
    let [_, c] = dy.shape().dims();
    let dy = contiguous(dy.clone());
    let mut dwte = vec![0.0f32; vocab * c];
    let mut dwpe = vec![0.0f32; block * c];
    for (row, (dy, &token)) in values(&dy).chunks(c).zip(tokens).enumerate() {
        let (token, position) = (token as usize, row % time);
        math::axpy(&mut dwte[token * c..(token + 1) * c], 1.0, dy);
        math::axpy(&mut dwpe[position * c..(position + 1) * c], 1.0, dy);
    }
    (from_values(dwte, [vocab, c].into()), from_values(dwpe, [block, c].into()))
}
