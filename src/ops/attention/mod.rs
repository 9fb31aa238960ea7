//! Causal multi-head self-attention without a `time x time` matrix:
//! `softmax(q k^T / sqrt(size)) v`, each position attending to itself and to earlier ones. Several
//! heads of queries may share a head of keys and values (Ainslie et al. 2023, arXiv:2305.13245).
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

/// The largest head of the kernels of GPUs: larger ones fit neither the registers nor the workgroup memory
/// that WebGPU guarantees.
pub(super) const MAX_HEAD: usize = 128;

/// The dimensions of packed `qkv` `[batch * time, (heads + 2 * kv_heads) * size]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    pub batch: usize,
    pub time: usize,
    /// Heads of queries, and of the output.
    pub heads: usize,
    /// Heads of keys and of values; divides `heads`. Head `h` of the queries attends to head
    /// `h / (heads / kv_heads)` of the keys.
    pub kv_heads: usize,
    /// Dropout of the probabilities, element `(head, query, key)` of each sequence.
    pub dropout: Option<Dropout>,
}

impl AttentionShape {
    /// Returns true if the kernels of GPUs support the heads of `qkv`.
    fn has_kernels(&self, qkv: &Tensor<2>) -> bool {
        self.size(qkv.dims()[1]) <= MAX_HEAD
    }

    /// Returns the size of a head in rows of `width` elements of packed qkv.
    fn size(&self, width: usize) -> usize {
        width / (self.heads + 2 * self.kv_heads)
    }

    /// Returns how many heads of queries share a head of keys and values.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the first pair of a sequence and one of `heads` heads, and the number of pairs of each
    /// dispatch, which has up to `limit` multiplications and additions.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    fn dispatches(
        &self,
        size: usize,
        heads: usize,
        limit: u64,
    ) -> impl Iterator<Item = (usize, usize)> {
        // At most four products of time * time / 2 * size in a pass, for each head of queries.
        let sharing = (self.heads / heads) as u64;
        let operations = 4 * (self.time as u64).pow(2) * size as u64 * sharing;
        // In browsers a usize has 32 bits.
        let most = (limit / operations.max(1)).clamp(1, 65_535) as usize;
        let pairs = self.batch * heads;
        (0..pairs).step_by(most).map(move |first| (first, most.min(pairs - first)))
    }
}

/// Returns the factor of the scores of heads of `size` elements.
fn scale(size: usize) -> f32 {
    1.0 / (size as f32).sqrt()
}

op! {
    /// Causal self-attention over `qkv` `[n, (heads + 2 kv_heads) size]`, which holds q, k and v side by
    /// side. Returns the output `[n, heads size]` and the log-sum-exp of the scores `[batch, heads, time]`.
    pub fn attention(
        qkv: Tensor<2>;
        shape: AttentionShape,
    ) -> (Tensor<2>, Tensor<3>) = forward(AttentionInputs) if shape.has_kernels(&qkv);
}

op! {
    /// Returns the gradient of `qkv`, in its shape, from `dout` `[n, heads size]`, with `qkv`, `out` and
    /// `log_sum_exp` of [`attention`].
    pub fn attention_backward(
        dout: Tensor<2>,
        qkv: Tensor<2>,
        out: Tensor<2>,
        log_sum_exp: Tensor<3>;
        shape: AttentionShape,
    ) -> Tensor<2> = backward(AttentionBackwardInputs) if shape.has_kernels(&qkv);
}
