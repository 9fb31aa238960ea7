use burn::backend::TensorMetadata;

use super::{CpuTensor, contiguous, from_values, math, values, values_mut};

/// Sums the rows of `dy` into their token's row of `into` and their position's row, in order.
pub(in crate::ops) fn backward(
    dy: &CpuTensor,
    into: Option<CpuTensor>,
    tokens: &[u32],
    time: usize,
    vocab: usize,
    block: usize,
) -> (CpuTensor, CpuTensor) {
    let [_, c] = dy.shape().dims();
    let dy = contiguous(dy.clone());
    let mut dwte =
        into.map_or_else(|| from_values(vec![0.0; vocab * c], [vocab, c].into()), contiguous);
    let sums = values_mut(&mut dwte);
    let mut dwpe = vec![0.0f32; block * c];
    for (row, (dy, &token)) in values(&dy).chunks(c).zip(tokens).enumerate() {
        let (token, position) = (token as usize, row % time);
        math::axpy(&mut sums[token * c..(token + 1) * c], 1.0, dy);
        math::axpy(&mut dwpe[position * c..(position + 1) * c], 1.0, dy);
    }
    (dwte, from_values(dwpe, [block, c].into()))
}
