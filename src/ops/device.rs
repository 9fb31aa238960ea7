//! Which kernels a device's tensors go to, decided in one place for all ops.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

#[cfg(feature = "wgpu")]
use super::wgsl;
use super::{
    Activation, AdamW, AttentionShape, CrossEntropy, Dropout, Implementation, OpsMode, Optional,
    Tables, adamw, attention, cube, dropout, embed, layer_norm, linear, linear_cross_entropy,
    softmax,
};
use crate::gpu::queue::Queue;

/// What computes an op.
enum Kernels {
    /// Tensor ops.
    Reference,
    /// The kernels of `shaders/`.
    #[cfg(feature = "wgpu")]
    Wgsl(wgsl::Kernels),
    /// The kernels of `cube/`.
    Cube(cube::Kernels),
}

impl Kernels {
    fn of(tensor: &CubeTensor, mode: OpsMode) -> Self {
        let queue = Queue::of(tensor);
        if mode.implementation == Implementation::Reference {
            return Kernels::Reference;
        }
        #[cfg(feature = "wgpu")]
        if mode.implementation != Implementation::Cube && queue.runs_wgsl() {
            return Kernels::Wgsl(wgsl::Kernels::new(queue, mode));
        }
        Kernels::Cube(cube::Kernels::new(queue, mode.dtype))
    }

    /// As `of`, but for heads that are too large for the kernels.
    fn of_heads(qkv: &CubeTensor, shape: &AttentionShape, mode: OpsMode) -> Self {
        let [_, three_c] = qkv.shape().dims();
        let fits = three_c / (3 * shape.heads) <= attention::LARGEST_HEAD;
        if fits { Self::of(qkv, mode) } else { Kernels::Reference }
    }
}

pub(super) fn contiguous(tensor: CubeTensor) -> CubeTensor {
    into_contiguous(tensor)
}

/// The tensor where nobody else holds its memory, else a copy: what may be written in place.
pub(super) fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = into_contiguous(tensor);
    // CUDA pads the rows of what it copies.
    if tensor.can_mut() { tensor } else { into_contiguous(tensor.copy()) }
}

pub(super) fn elements(tensor: &CubeTensor) -> usize {
    tensor.meta.shape().num_elements()
}

/// An activation in the numbers that the reference computes in.
fn widened(tensor: CubeTensor) -> CubeTensor {
    CubeBackend::float_cast(tensor, FloatDType::F32)
}

/// A new tensor of zeros, without the padding that CUDA gives rows.
pub(super) fn zeros(queue: &Queue, shape: [usize; 2]) -> CubeTensor {
    into_contiguous(CubeBackend::float_zeros(shape.into(), &queue.device(), FloatDType::F32))
}

/// Computes an op one of the three ways: by the method of this name of either kind of kernels, or by
/// the reference.
macro_rules! choose {
    ($kernels:expr, $method:ident($($argument:expr),*), $reference:expr) => {
        match $kernels {
            Kernels::Reference => $reference,
            #[cfg(feature = "wgpu")]
            Kernels::Wgsl(kernels) => kernels.$method($($argument),*),
            Kernels::Cube(kernels) => kernels.$method($($argument),*),
        }
    };
}

impl layer_norm::LayerNorm for CubeBackend {
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let beta = beta.into_option();
        choose!(
            Kernels::of(&x, mode),
            layer_norm_forward(x, gamma, beta),
            layer_norm::reference_forward::<Self>(x, gamma, beta)
        )
    }

    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        choose!(
            Kernels::of(&x, mode),
            layer_norm_backward(dy, x, gamma, mean, rstd),
            layer_norm::reference_backward::<Self>(dy, x, gamma, mean, rstd)
        )
    }
}

impl adamw::Optimize for CubeBackend {
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        choose!(
            Kernels::of(&x, mode),
            sum_squares(x, sums, first),
            adamw::reference_sum_squares::<Self>(x, sums, first)
        )
    }

    fn clip(
        sums: FloatTensor<Self>,
        limit: f32,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        choose!(
            Kernels::of(&sums, mode),
            clip(sums, limit),
            adamw::reference_clip::<Self>(sums, limit)
        )
    }

    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        choose!(
            Kernels::of(&w, mode),
            adamw(w, grad, m, v, clip, scalars),
            adamw::reference_adamw::<Self>(w, grad, m, v, clip, &scalars)
        )
    }
}

impl embed::Embed for CubeBackend {
    fn embed(
        table: FloatTensor<Self>,
        base: FloatTensor<Self>,
        tokens: Arc<[u32]>,
        first: usize,
        period: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        choose!(
            Kernels::of(&table, mode),
            embed(table, base, tokens, first, period),
            embed::reference_forward::<Self>(table, base, &tokens, first, period)
        )
    }

    fn embed_backward(
        dy: FloatTensor<Self>,
        into: Optional<Self>,
        tokens: Arc<[u32]>,
        table: Range<usize>,
        period: usize,
        base_rows: usize,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let into = into.into_option();
        choose!(
            Kernels::of(&dy, mode),
            embed_backward(dy, into, tokens, table, period, base_rows),
            embed::reference_backward::<Self>(dy, into, &tokens, table, period, base_rows)
        )
    }
}

impl linear::Linear for CubeBackend {
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (b, residual) = (b.into_option(), residual.into_option());
        choose!(
            Kernels::of(&x, mode),
            linear(x, w, b, residual, activation),
            linear::reference_forward::<Self>(x, w, b, residual, activation)
        )
    }

    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        choose!(
            Kernels::of(&x, mode),
            linear_backward(dy, x, w, activation, bias),
            linear::reference_backward::<Self>(dy, x, w, activation, bias)
        )
    }
}

impl attention::Attention for CubeBackend {
    fn attention_forward(
        qkv: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        choose!(Kernels::of_heads(&qkv, &shape, mode), attention_forward(qkv, shape), {
            let dtype = qkv.dtype.into();
            let (out, log_sum_exp) = attention::reference_forward::<Self>(widened(qkv), &shape);
            (Self::float_cast(out, dtype), log_sum_exp)
        })
    }

    fn attention_backward(
        dout: FloatTensor<Self>,
        qkv: FloatTensor<Self>,
        out: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        shape: AttentionShape,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        choose!(
            Kernels::of_heads(&qkv, &shape, mode),
            attention_backward(dout, qkv, out, log_sum_exp, shape),
            {
                let dtype = qkv.dtype.into();
                let [dout, qkv, out] = [dout, qkv, out].map(widened);
                let d = attention::reference_backward::<Self>(dout, qkv, out, log_sum_exp, &shape);
                Self::float_cast(d, dtype)
            }
        )
    }
}

impl linear_cross_entropy::LinearCrossEntropy for CubeBackend {
    fn linear_cross_entropy(
        x: FloatTensor<Self>,
        wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        choose!(
            Kernels::of(&x, mode),
            linear_cross_entropy(x, wte, targets, loss),
            linear_cross_entropy::reference_loss::<Self>(x, wte, &targets, &loss)
        )
    }

    fn linear_cross_entropy_gradients(
        x: FloatTensor<Self>,
        wte: Tables<Self>,
        targets: Arc<[u32]>,
        loss: CrossEntropy,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Vec<FloatTensor<Self>>) {
        choose!(
            Kernels::of(&x, mode),
            linear_cross_entropy_gradients(x, wte, targets, loss),
            linear_cross_entropy::reference_gradients::<Self>(x, wte, &targets, &loss)
        )
    }
}

impl softmax::Softmax for CubeBackend {
    /// There is no WGSL kernel of it: sampling is bound by launches, and stock ops do.
    fn softmax_rows(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self> {
        match Kernels::of(&x, mode) {
            Kernels::Cube(kernels) => kernels.softmax_rows(x),
            _ => softmax::reference::<Self>(x),
        }
    }
}

impl dropout::DropoutAdd for CubeBackend {
    fn dropout(
        x: FloatTensor<Self>,
        residual: Optional<Self>,
        time: usize,
        dropout: Dropout,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        choose!(
            Kernels::of(&x, mode),
            dropout(x, residual, time, dropout),
            dropout::reference::<Self>(x, residual, time, &dropout)
        )
    }
}
