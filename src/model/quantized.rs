//! Matrices of a base in 8 bits a weight.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use half::f16;

use crate::config::QUANTIZED_BLOCK as BLOCK;
use crate::gpu;
use crate::ops::{self, OpsMode};

/// A matrix `[in, out]` as [`ops::dequantize`] reads it.
#[derive(Clone, Debug)]
pub(super) struct QuantizedMatrix {
    codes: Tensor<2, Int>,
    scales: Tensor<2>,
}

impl QuantizedMatrix {
    /// Rounds `values` `[in, out]`, with `in` a multiple of 32, as llama.cpp does. `scales` is the dtype of the scales,
    /// float32 or float16, which hold the same values.
    pub fn new(values: &[f32], [input, out]: [usize; 2], device: &Device, scales: DType) -> Self {
        let blocks = values.chunks(BLOCK * out).map(|block| quantize(block, out));
        let (codes, of_blocks): (Vec<_>, Vec<_>) = blocks.unzip();
        // Flat, because an upload with rows pads them on CUDA.
        let codes = TensorData::new(codes.concat(), [input / 4 * out]);
        let codes = Tensor::<1, Int>::from_data(codes, (device, DType::I32));
        let of_blocks = TensorData::new(of_blocks.concat(), [input / BLOCK * out]);
        let of_blocks = Tensor::<1>::from_data(of_blocks.convert_dtype(scales), (device, scales));
        Self {
            codes: codes.reshape([input / 4, out]),
            scales: of_blocks.reshape([input / BLOCK, out]),
        }
    }

    /// Returns the matrix in the dtype of the activations of `mode`.
    pub fn decode(&self, mode: OpsMode) -> Tensor<2> {
        let dtype = gpu::stored(mode.precision.dtype());
        ops::dequantize(self.codes.clone(), self.scales.clone(), dtype, mode)
    }
}

/// Returns the words and the scales of a block of each of `out` columns.
fn quantize(block: &[f32], out: usize) -> (Vec<i32>, Vec<f32>) {
    let mut largest = vec![0.0f32; out];
    for row in block.chunks_exact(out) {
        largest.iter_mut().zip(row).for_each(|(largest, x)| *largest = largest.max(x.abs()));
    }
    let scales: Vec<f32> = largest.iter().map(|largest| largest / 127.0).collect();
    let mut words = vec![0i32; BLOCK / 4 * out];
    for (words, rows) in words.chunks_exact_mut(out).zip(block.chunks_exact(4 * out)) {
        for (byte, row) in rows.chunks_exact(out).enumerate() {
            for ((word, x), scale) in words.iter_mut().zip(row).zip(&scales) {
                *word |= i32::from(code(*x, *scale).to_le_bytes()[0]) << (8 * byte);
            }
        }
    }
    let rounded = scales.into_iter().map(|scale| f16::from_f32(scale).to_f32()).collect();
    (words, rounded)
}

/// Returns `x` as a multiple of `scale`, before the scale is rounded to f16.
pub(super) fn code(x: f32, scale: f32) -> i8 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    (x * inverse).round() as i8
}
