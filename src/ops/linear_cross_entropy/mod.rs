//! The output head and its loss in one op, chunk by chunk:
//! `scale * sum_i(log_sum_exp(x_i wte^T) - x_i . wte[target_i])`.
//!
//! Stock cross-entropy keeps about three `[n, vocab]` buffers: 9 GiB for 16 x 1024 tokens of
//! GPT-2. Here the logits exist for one chunk of `chunk` rows, whose gradient is added to `dx` and
//! `dwte` before the next, so that nothing of size `[n, vocab]` is kept for a backward pass.

use std::sync::Arc;

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::OpsMode;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use super::shared::{Optional, Tensors, implement};

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The target of a row that has none: the row adds nothing to the loss and to gradients, like PyTorch's
/// `ignore_index`.
pub const IGNORED: u32 = u32::MAX;

/// The parameters of the loss.
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

/// The gradients of the loss.
pub struct HeadGradients {
    /// The gradient of the input, `[n, c]`.
    pub x: Tensor<2>,
    /// The gradient of the token embedding, in the same shards.
    pub wte: Vec<Tensor<2>>,
}

/// Returns the scaled sum of the cross-entropies of `x wte^T` `[n, vocab]` against `n` targets,
/// `[1]`. `wte` `[padded vocab, c]` is in one or more shards. Targets
/// are [`IGNORED`] or below `vocab`: the reader of the data checks that.
pub fn linear_cross_entropy(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    mode: OpsMode,
) -> Tensor<1> {
    let wte = Tensors(wte.into_iter().map(Tensor::into_dispatch).collect());
    let value = Dispatch::linear_cross_entropy(x.into_dispatch(), wte, targets, loss, mode);
    Tensor::from_dispatch(value)
}

/// Returns the loss as [`linear_cross_entropy`] does, and its gradients, computed while the logits
/// of each chunk exist.
///
/// With `loss_scale`, whose first element is a scale, the gradients are those of the sum of the
/// rows' losses times that scale, in place of `loss.scale`: divided by the tokens of a batch, most
/// probabilities underflow in float16.
pub fn linear_cross_entropy_gradients(
    x: Tensor<2>,
    wte: Vec<Tensor<2>>,
    targets: Arc<[u32]>,
    loss: CrossEntropy,
    loss_scale: Option<Tensor<1>>,
    mode: OpsMode,
) -> (Tensor<1>, HeadGradients) {
    let wte = Tensors(wte.into_iter().map(Tensor::into_dispatch).collect());
    let (x, loss_scale) = (x.into_dispatch(), loss_scale.map(Tensor::into_dispatch).into());
    let (value, dx, dwte) =
        Dispatch::linear_cross_entropy_gradients(x, wte, targets, loss, loss_scale, mode);
    let wte = dwte.into_iter().map(Tensor::from_dispatch).collect();
    (Tensor::from_dispatch(value), HeadGradients { x: Tensor::from_dispatch(dx), wte })
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait LinearCrossEntropy: Backend {
    /// Returns the loss, `[1]`.
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        #[extension_type] wte: Tensors<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self>;

    /// Returns the loss `[1]`, `dx` `[n, c]` and `dwte` in the shards of `wte`.
    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        #[extension_type] wte: Tensors<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        #[extension_type] loss_scale: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Vec<FloatTensor<Self>>);
}

implement! {
    LinearCrossEntropy:
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        wte: Tensors<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        Kernels::of(&x, mode), mode => forward(x, wte, targets, loss)
    }

    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        wte: Tensors<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        loss_scale: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Vec<FloatTensor<Self>>) {
        Kernels::of(&x, mode), mode => gradients(x, wte, targets, loss, loss_scale.into_option())
    }
}
