//! Matrices in 8 bits a weight: llama.cpp's `q8_0`.
//!
//! The 32 weights of a block, below each other in a column of `[in, out]`, are multiples of a scale from -127 to
//! 127. Products multiply a matrix that is decoded right before them and gone after them, as in QLoRA (Dettmers et
//! al. 2023, arXiv:2305.14314).

use burn::tensor::{DType, Int, Tensor};

use super::shared::dispatch::op;
use crate::config::QUANTIZED_BLOCK;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The rows of `codes` that share a row of scales.
const WORDS: usize = QUANTIZED_BLOCK / 4;

op! {
    /// Returns a matrix `[in, out]` of `dtype`. `codes` `[in / 4, out]` are words of four signed bytes, those of rows
    /// `4 i` to `4 i + 3` in the order of their bits; `scales` are `[in / 32, out]`.
    pub fn dequantize(
        codes: Tensor<2, Int>,
        scales: Tensor<2>;
        dtype: DType,
    ) -> Tensor<2> = forward(DequantizeInputs);
}
