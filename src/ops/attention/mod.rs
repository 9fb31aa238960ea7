//! Causal multi-head self-attention without a `time x time` matrix:
//! `softmax(q k^T / sqrt(size)) v`, each position attending to itself and to earlier ones.
//!
//! The forward pass saves its output and the log-sum-exp of each row of scores; the backward pass
//! recomputes the probabilities from them (Dao et al. 2022, arXiv:2205.14135): 4 bytes a row and
//! head instead of three matrices a layer.

use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::shared::implement;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
use super::shared::kernels::Kernels;
use super::{Dropout, OpsMode};

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
    /// Sequences.
    pub batch: usize,
    /// Positions per sequence.
    pub time: usize,
    /// Heads; divides the model's width.
    pub heads: usize,
    /// Dropout of the probabilities, element `(head, query, key)` of each sequence.
    pub dropout: Option<Dropout>,
}

impl AttentionShape {
    /// The factor of the scores, `1 / sqrt(size)`.
    fn scale(&self, width: usize) -> f32 {
        1.0 / ((width / self.heads) as f32).sqrt()
    }
}

/// Causal self-attention over `qkv` `[n, 3c]`, which holds q, k and v side by side.
/// Returns the output `[n, c]` and the log-sum-exp of the scores `[batch, heads, time]`.
pub fn attention(qkv: Tensor<2>, shape: AttentionShape, mode: OpsMode) -> (Tensor<2>, Tensor<3>) {
    let (out, log_sum_exp) = Dispatch::attention(qkv.into_dispatch(), shape, mode);
    (Tensor::from_dispatch(out), Tensor::from_dispatch(log_sum_exp))
}

/// Returns the gradient of `qkv` `[n, 3c]` from `dout` `[n, c]`, with `qkv`, `out` and
/// `log_sum_exp` as [`attention`] took and returned them.
pub fn attention_backward(
    dout: Tensor<2>,
    qkv: Tensor<2>,
    out: Tensor<2>,
    log_sum_exp: Tensor<3>,
    shape: AttentionShape,
    mode: OpsMode,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::attention_backward(
        dout.into_dispatch(),
        qkv.into_dispatch(),
        out.into_dispatch(),
        log_sum_exp.into_dispatch(),
        shape,
        mode,
    ))
}

/// The op on each backend.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Attention: Backend {
    /// Returns the output `[n, c]` and the log-sum-exp `[batch, heads, time]`.
    fn attention(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Returns `dqkv` `[n, 3c]`.
    fn attention_backward(
        dout: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self>;
}

implement! {
    Attention:
    fn attention(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernels(&qkv, &shape, mode), mode => forward(qkv, shape)
    }

    fn attention_backward(
        dout: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        kernels(&qkv, &shape, mode), mode => backward(dout, qkv, out, log_sum_exp, shape)
    }
}

/// The kernels for `qkv`: the reference where a head is larger than they take.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn kernels(
    qkv: &burn_cubecl::tensor::CubeTensor,
    shape: &AttentionShape,
    mode: OpsMode,
) -> Kernels {
    use burn::backend::TensorMetadata;
    let [_, three_c] = qkv.shape().dims();
    let fits = three_c / (3 * shape.heads) <= MAX_HEAD;
    if fits { Kernels::of(qkv, mode) } else { Kernels::Reference }
}

/// The largest head that the kernels take. Larger ones fit neither the registers nor the workgroup
/// memory that WebGPU guarantees: the reference computes those.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
const MAX_HEAD: usize = 128;

/// The number of pairs of a sequence and a head that one dispatch takes: drivers reset a device
/// after seconds in one dispatch.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn pairs_at_a_time(time: usize, size: usize) -> usize {
    /// The most multiplications and additions of one dispatch, as in gemm.
    const DISPATCH_OPERATIONS: u64 = 1 << 35;
    // At most four products of time * time / 2 * size in a pass. In browsers a usize has 32 bits.
    let operations = 4 * (time as u64).pow(2) * size as u64;
    (DISPATCH_OPERATIONS / operations.max(1)).clamp(1, 65_535) as usize
}
