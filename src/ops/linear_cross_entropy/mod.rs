//! The output head and its loss in one op, chunk by chunk:
//! `scale * sum_i(log_sum_exp(x_i wte^T) - x_i . wte[target_i])`.
//!
//! Stock cross-entropy keeps about three `[n, vocab]` buffers: 9 GiB for 16 x 1024 tokens of
//! GPT-2. Here the logits exist for one chunk of `chunk` rows, whose gradient is added to `dx` and
//! `dwte` before the next, so that nothing of size `[n, vocab]` is kept for a backward pass.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::OpsMode;
use super::shared::dispatch::{op, tensors};

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The target of a row that adds nothing to the loss and to gradients, like PyTorch's `ignore_index`.
pub const IGNORED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Tokens in the vocabulary; rows of `wte` from here on are padding and are never predicted.
    pub vocab: usize,
    /// Rows in a chunk of logits, at least 1.
    pub chunk: usize,
    /// The factor of the sum of the rows' losses: with one over the targets of the global batch that
    /// are not [`IGNORED`], micro-batches add up to the mean.
    pub scale: f32,
}

tensors! {
    pub struct HeadGradients {
        /// `[n, c]`.
        pub x: Tensor<2>,
        /// In the same shards as the embedding; none if it is not trained.
        pub wte: Vec<Tensor<2>>,
    }
}

/// Returns the scaled sum of the cross-entropies of `x wte^T` `[n, vocab]` against `n` targets, `[1]`.
/// `wte` `[padded vocab, c]` is in one or more shards. Targets are [`IGNORED`] or below `vocab`: the
/// reader of the data checks that.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    mode: OpsMode,
) -> Tensor<1> {
    cross_entropy(x, wte, None, targets, loss, false, false, mode).0
}

/// Returns the loss of [`linear_cross_entropy`] and its gradients, computed chunk by chunk of logits: that of
/// `x`, and if it is `trained` that of `wte`.
///
/// With `loss_scale`, whose first element is a scale, this scales the gradients in place of
/// `loss.scale`: divided by the tokens of a batch, most probabilities underflow in float16.
pub fn linear_cross_entropy_gradients(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    loss_scale: Option<Tensor<1>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    trained: bool,
    mode: OpsMode,
) -> (Tensor<1>, HeadGradients) {
    let (value, gradients) = cross_entropy(x, wte, loss_scale, targets, loss, true, trained, mode);
    (value, gradients.expect("they are requested"))
}

op! {
    fn cross_entropy(
        x: Tensor<2>,
        wte: Vec<Tensor<2>>,
        loss_scale: Option<Tensor<1>>;
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        with_gradients: bool,
        trained: bool,
    ) -> (Tensor<1>, Option<HeadGradients>) = compute(CrossEntropyInputs);
}
