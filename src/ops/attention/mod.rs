//! Causal multi-head self-attention without a `time x time` matrix:
//! `softmax(q k^T / sqrt(size)) v`, each position attending to itself and to earlier ones.
//!
//! The forward pass saves its output and the log-sum-exp of each row of scores; the backward pass
//! recomputes the probabilities from them (Dao et al. 2022, arXiv:2205.14135): 4 bytes a row and
//! head instead of three matrices a layer.

use burn::tensor::Tensor;

use super::Dropout;
use super::shared::dispatch::op;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The dimensions of packed `qkv` `[batch * time, 3 * heads * size]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub time: usize,
    /// Heads; divides the model's width.
    pub heads: usize,
    /// Dropout of the probabilities, element `(head, query, key)` of each sequence.
    pub dropout: Option<Dropout>,
}

impl AttentionShape {
    /// Returns true if the kernels of GPUs support the heads of `qkv`: larger ones fit neither the
    /// registers nor the workgroup memory that WebGPU guarantees.
    fn has_kernels(&self, qkv: &Tensor<2>) -> bool {
        const MAX_HEAD: usize = 128;
        qkv.dims()[1] / (3 * self.heads) <= MAX_HEAD
    }

    /// Returns the first pair of a sequence and a head and the number of pairs of each dispatch, which has
    /// up to `limit` multiplications and additions.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    fn dispatches(&self, size: usize, limit: u64) -> impl Iterator<Item = (usize, usize)> {
        // At most four products of time * time / 2 * size in a pass.
        let operations = 4 * (self.time as u64).pow(2) * size as u64;
        // In browsers a usize has 32 bits.
        let most = (limit / operations.max(1)).clamp(1, 65_535) as usize;
        let pairs = self.batch * self.heads;
        (0..pairs).step_by(most).map(move |first| (first, most.min(pairs - first)))
    }
}

/// Returns the factor of the scores of heads of `size` elements.
fn scale(size: usize) -> f32 {
    1.0 / (size as f32).sqrt()
}

op! {
    /// Causal self-attention over `qkv` `[n, 3c]`, which holds q, k and v side by side.
    /// Returns the output `[n, c]` and the log-sum-exp of the scores `[batch, heads, time]`.
    pub fn attention(
        qkv: Tensor<2>;
        shape: AttentionShape,
    ) -> (Tensor<2>, Tensor<3>) = forward(AttentionInputs) if shape.has_kernels(&qkv);
}

op! {
    /// Returns the gradient of `qkv` `[n, 3c]` from `dout` `[n, c]`, with `qkv`, `out` and
    /// `log_sum_exp` as [`attention`] took and returned them.
    pub fn attention_backward(
        dout: Tensor<2>,
        qkv: Tensor<2>,
        out: Tensor<2>,
        log_sum_exp: Tensor<3>;
        shape: AttentionShape,
    ) -> Tensor<2> = backward(AttentionBackwardInputs) if shape.has_kernels(&qkv);
}
