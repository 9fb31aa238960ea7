//! The optimizer's two passes over the parameters: the gradient norm and AdamW.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{FloatDType, Slice, Tensor};

use super::OpsMode;

/// AdamW's scalars for one update of one tensor (Loshchilov and Hutter 2017, arXiv:1711.05101, in
/// PyTorch's form).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// `1 - learning_rate * weight_decay`.
    pub decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// `learning_rate / (1 - beta1^step)`.
    pub step_size: f32,
    /// `1 / sqrt(1 - beta2^step)`.
    pub second_correction: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
}

impl AdamW {
    /// The scalars of update number `step`, counted from 1, in f64 until the end: `1 - beta^step`
    /// loses digits in f32.
    pub fn new(
        step: u64,
        learning_rate: f64,
        weight_decay: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
    ) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            decay: (1.0 - learning_rate * weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            step_size: (learning_rate / correction(beta1)) as f32,
            second_correction: (1.0 / correction(beta2).sqrt()) as f32,
            eps: eps as f32,
        }
    }
}

/// Elements whose squares are summed in one go: few enough that f32 keeps its digits and that one
/// invocation of a software device can loop over its part.
pub(super) const NORM_SPAN: usize = 16 * 1024;

/// Added to the norm before dividing by it, as PyTorch's `clip_grad_norm_` does.
pub(super) const NORM_EPS: f32 = 1e-6;

/// The optimizer's passes. Outside autodiff.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
)]
pub trait Optimize: Backend {
    /// Writes the sums of the squares of each 16,384 elements of `x` `[elements]` to
    /// `sums[first..]`; gives `sums`.
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference_sum_squares::<Self>(x, sums, first)
    }

    /// The root of the sum of `sums`, and what a gradient is to be multiplied with for a norm of at
    /// most `limit`, 0 for any: `[1]` both.
    fn clip(
        sums: FloatTensor<Self>,
        limit: f32,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_clip::<Self>(sums, limit)
    }

    /// One update of `w` by `grad * clip`: gives the new `w`, `m` and `v`, all `[elements]`.
    /// `clip` is `[1]` and stays on the device, so that no step waits for the host.
    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_adamw::<Self>(w, grad, m, v, clip, &scalars)
    }
}

/// The running means of a parameter's gradient and of its square, flat: `[elements]` both.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The first moment.
    pub m: Tensor<1>,
    /// The second moment.
    pub v: Tensor<1>,
}

/// The global norm of gradients and the factor that clips them, `[1]` both, on the device.
#[derive(Clone, Debug)]
pub struct GradientNorm {
    /// The norm before clipping.
    pub norm: Tensor<1>,
    /// `min(1, limit / norm)`.
    pub clip: Tensor<1>,
}

/// The norm of all of `grads` taken together, and the factor that clips it to `limit`, 0 for none.
/// There must be at least one gradient.
pub fn gradient_norm(grads: &[Tensor<1>], limit: f32, mode: OpsMode) -> GradientNorm {
    let spans = |grad: &Tensor<1>| grad.dims()[0].div_ceil(NORM_SPAN);
    let count = grads.iter().map(spans).sum::<usize>();
    let mut sums = Tensor::<1>::empty([count], &grads[0].device()).into_dispatch();
    let mut first = 0;
    for grad in grads {
        sums = Dispatch::sum_squares(grad.clone().into_dispatch(), sums, first, mode);
        first += spans(grad);
    }
    let (norm, clip) = Dispatch::clip(sums, limit, mode);
    GradientNorm { norm: Tensor::from_dispatch(norm), clip: Tensor::from_dispatch(clip) }
}

/// Updates `w` `[elements]` and its moments by `grad * clip`; `clip` is `[1]`.
pub fn adamw(
    w: Tensor<1>,
    grad: Tensor<1>,
    moments: Moments,
    clip: Tensor<1>,
    scalars: AdamW,
    mode: OpsMode,
) -> (Tensor<1>, Moments) {
    let (w, m, v) = Dispatch::adamw(
        w.into_dispatch(),
        grad.into_dispatch(),
        moments.m.into_dispatch(),
        moments.v.into_dispatch(),
        clip.into_dispatch(),
        scalars,
        mode,
    );
    let moments = Moments { m: Tensor::from_dispatch(m), v: Tensor::from_dispatch(v) };
    (Tensor::from_dispatch(w), moments)
}

pub(super) fn reference_sum_squares<B: Backend>(
    x: FloatTensor<B>,
    sums: FloatTensor<B>,
    first: usize,
) -> FloatTensor<B> {
    let squares = B::float_mul(x.clone(), x);
    let elements = super::shape::<B>(&squares).num_elements();
    let whole = elements / NORM_SPAN;
    let part = |from: usize, to: usize| B::float_slice(squares.clone(), &[Slice::from(from..to)]);
    let place = |from: usize, to: usize| [Slice::from(first + from..first + to)];
    let mut sums = sums;
    if whole > 0 {
        let rows = B::float_reshape(part(0, whole * NORM_SPAN), [whole, NORM_SPAN].into());
        let rows = B::float_reshape(B::float_sum_dim(rows, 1), [whole].into());
        sums = B::float_slice_assign(sums, &place(0, whole), rows);
    }
    if whole * NORM_SPAN < elements {
        let rest = B::float_sum(part(whole * NORM_SPAN, elements));
        sums = B::float_slice_assign(sums, &place(whole, whole + 1), rest);
    }
    sums
}

pub(super) fn reference_clip<B: Backend>(
    sums: FloatTensor<B>,
    limit: f32,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let norm = B::float_sqrt(B::float_sum(sums));
    if limit == 0.0 {
        let device = super::device::<B>(&norm);
        let one = B::float_ones([1].into(), &device, FloatDType::F32);
        return (norm, one);
    }
    let factor = B::float_recip(B::float_add_scalar(norm.clone(), NORM_EPS.into()));
    let factor = B::float_mul_scalar(factor, limit.into());
    (norm, B::float_clamp_max(factor, 1f32.into()))
}

pub(super) fn reference_adamw<B: Backend>(
    w: FloatTensor<B>,
    grad: FloatTensor<B>,
    m: FloatTensor<B>,
    v: FloatTensor<B>,
    clip: FloatTensor<B>,
    scalars: &AdamW,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let blend = |mean: FloatTensor<B>, new: FloatTensor<B>, beta: f32| {
        B::float_add(
            B::float_mul_scalar(mean, beta.into()),
            B::float_mul_scalar(new, (1.0 - beta).into()),
        )
    };
    let grad = B::float_mul(grad, clip);
    let m = blend(m, grad.clone(), scalars.beta1);
    let v = blend(v, B::float_mul(grad.clone(), grad), scalars.beta2);
    let root = B::float_mul_scalar(B::float_sqrt(v.clone()), scalars.second_correction.into());
    let update = B::float_div(
        B::float_mul_scalar(m.clone(), scalars.step_size.into()),
        B::float_add_scalar(root, scalars.eps.into()),
    );
    let w = B::float_sub(B::float_mul_scalar(w, scalars.decay.into()), update);
    (w, m, v)
}
