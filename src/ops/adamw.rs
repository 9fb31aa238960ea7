//! The optimizer's two passes over the parameters: the gradient norm and AdamW.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Slice, Tensor};

use super::{OpsMode, cpu};

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

/// The optimizer's passes. Outside autodiff.
#[backend_extension(Cube: cfg(any(feature = "wgpu", feature = "cuda")), Flex)]
pub trait Optimize: Backend {
    /// The sum of the squares of all elements of `x` `[elements]`, as `[1]`.
    fn sum_squares(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self> {
        let _ = mode;
        reference_sum_squares::<Self>(x)
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

/// The sum of the squares of all elements, as `[1]` on the device.
pub fn sum_squares(x: Tensor<1>, mode: OpsMode) -> Tensor<1> {
    Tensor::from_dispatch(Dispatch::sum_squares(x.into_dispatch(), mode))
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

#[cfg(any(feature = "wgpu", feature = "cuda"))]
impl Optimize for burn_cubecl::CubeBackend {}

impl Optimize for Flex {
    fn sum_squares(x: FloatTensor<Self>, mode: OpsMode) -> FloatTensor<Self> {
        match mode {
            OpsMode::Auto => cpu::adamw::sum_squares(&x),
            OpsMode::Reference => reference_sum_squares::<Self>(x),
        }
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
        match mode {
            OpsMode::Auto => cpu::adamw::update(w, grad, m, v, &clip, &scalars),
            OpsMode::Reference => reference_adamw::<Self>(w, grad, m, v, clip, &scalars),
        }
    }
}

/// In two stages: one reduction over a million elements loses digits on devices that give each of a
/// few threads a long part of it, and elements on software Vulkan, whose loops end early.
fn reference_sum_squares<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    const ROW: usize = 1024;
    let squares = B::float_mul(x.clone(), x);
    let elements = super::shape::<B>(&squares).num_elements();
    let whole = elements / ROW * ROW;
    let part = |from: usize, to: usize| B::float_slice(squares.clone(), &[Slice::from(from..to)]);
    if whole == 0 {
        return B::float_sum(squares);
    }
    let rows = B::float_reshape(part(0, whole), [whole / ROW, ROW].into());
    let sum = B::float_sum(B::float_sum_dim(rows, 1));
    if whole == elements { sum } else { B::float_add(sum, B::float_sum(part(whole, elements))) }
}

fn reference_adamw<B: Backend>(
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
