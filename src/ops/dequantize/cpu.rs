use burn::backend::TensorMetadata;
use rayon::prelude::*;

use super::{DequantizeInputs, WORDS};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, memory, values, vectorised,
};

pub(super) fn forward(inputs: DequantizeInputs<Flex>) -> CpuTensor {
    let DequantizeInputs { codes, scales, dtype: _ } = inputs;
    let [words, out] = codes.shape().dims();
    let codes = codes.to_contiguous();
    let codes = codes.as_slice::<i32>().expect("words in row-major order");
    let scales = contiguous(scales);
    let mut weights = memory::take(4 * words * out);
    let blocks = codes.par_chunks(WORDS * out).zip(values(&scales).par_chunks(out));
    weights
        .par_chunks_mut(4 * WORDS * out)
        .zip(blocks)
        .for_each(|(weights, (codes, scales))| decode(weights, codes, scales));
    from_values(weights, [4 * words, out].into())
}

vectorised! {
    /// Decodes a block of each column.
    fn decode<S>(_simd; weights: &mut [f32], codes: &[i32], scales: &[f32]) {
        let out = scales.len();
        for (weights, codes) in weights.chunks_mut(4 * out).zip(codes.chunks(out)) {
            for (byte, row) in (0..).zip(weights.chunks_mut(out)) {
                for ((weight, code), scale) in row.iter_mut().zip(codes).zip(scales) {
                    *weight = ((code << (24 - 8 * byte)) >> 24) as f32 * scale;
                }
            }
        }
    }
}
