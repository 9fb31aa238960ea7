//! Half-precision copies of the matrices: float16 for cooperative matrices, bfloat16 for tensor cores.
//!
//! A model has them only while it trains. The optimizer writes both the weights and the copies, in
//! place. They are not parameters: nothing counts or saves them.

use burn::tensor::FloatDType;

use super::{Block, Gpt};
use crate::config::Precision;
use crate::gpu;

impl Gpt {
    /// Copies each matrix that products multiply (the blocks' and the output head), if runs in
    /// `precision` have copies. Each update writes the copies too. The base of an adapter is in half precision
    /// itself.
    pub fn keep_half_weights(&mut self, precision: Precision) {
        if !precision.keeps_half_weights() || self.lora.is_some() {
            return;
        }
        let dtype = FloatDType::from(gpu::stored(precision.dtype()));
        let head = self.lm_head.as_mut().unwrap_or(&mut self.wte).iter_mut();
        let layers = self.h.iter_mut().flat_map(Block::linear);
        for matrix in head.chain(layers.filter_map(|layer| layer.matrix.weights())) {
            matrix.half = Some(matrix.weight.clone().cast(dtype));
        }
    }
}
