use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{Dropout, DropoutInputs};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, math, memory, values, vectorised,
};

pub(super) fn forward(inputs: DropoutInputs<Flex>) -> CpuTensor {
    let DropoutInputs { x, residual, time, dropout } = inputs;
    let shape = x.shape();
    let [n, c] = shape.dims();
    let x = contiguous(x);
    let residual = residual.map(contiguous);
    let mut y = memory::take(n * c);
    // Tasks are rows, not sequences: a micro-batch may have one sequence.
    y.par_chunks_mut(c).enumerate().with_min_len(16).for_each(|(row, y)| {
        let key = dropout.sequence_key(row / time);
        let first = (row % time * c) as u32;
        let of_row = |x| &values(x)[row * c..(row + 1) * c];
        drop_out(y, of_row(&x), residual.as_ref().map(of_row), dropout, (key, first));
    });
    memory::recycle([x].into_iter().chain(residual));
    from_values(y, shape)
}

vectorised! {
    /// `place` is the sequence's key and the index of the first element.
    fn drop_out<S>(_simd;
        y: &mut [f32],
        x: &[f32],
        residual: Option<&[f32]>,
        dropout: Dropout,
        place: (u32, u32),
    ) {
        let (key, first) = place;
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            let kept = dropout.keeps(key, first + i as u32);
            *y = if kept { x * dropout.scale() } else { 0.0 };
        }
        if let Some(residual) = residual {
            math::axpy(y, 1.0, residual);
        }
    }
}
