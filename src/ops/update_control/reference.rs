use burn::tensor::{DType, Tensor};

use super::{
    GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_EPS, NORM_SPAN, UpdateControl,
    UpdateControlInputs, UpdateSettings,
};
use crate::ops::shared::dispatch::Reference;

/// Returns the sums of the squares of `x` times `factor`: of its whole spans, and of what remains.
fn sums_of(x: Tensor<1>, factor: &Tensor<1>) -> Vec<Tensor<1>> {
    let x = x * factor.clone();
    let squares = x.clone() * x;
    let [elements] = squares.dims();
    let whole = elements / NORM_SPAN;
    let part = |from: usize, to: usize| squares.clone().narrow(0, from, to - from);
    let mut sums = Vec::new();
    if whole > 0 {
        let rows = part(0, whole * NORM_SPAN).reshape([whole, NORM_SPAN]);
        sums.push(rows.sum_dim(1).reshape([whole]));
    }
    if whole * NORM_SPAN < elements {
        sums.push(part(whole * NORM_SPAN, elements).sum());
    }
    sums
}

pub(super) fn decide(inputs: UpdateControlInputs<Reference>) -> UpdateControl {
    let UpdateControlInputs { grads, loss_scale, settings } = inputs;
    let mut factor = (element(&loss_scale, 0) * settings.divisor).recip();
    let sums = grads.into_iter().flat_map(|grad| sums_of(grad, &factor));
    let total = Tensor::<1>::cat(sums.collect(), 0).sum();
    // NaN compares as false.
    let finite = total.clone().lower_equal_elem(f32::MAX);
    let applied = finite.clone().float();
    let norm = total.sqrt();
    if settings.grad_clip != 0.0 {
        let clip = ((norm.clone() + NORM_EPS).recip() * settings.grad_clip).clamp_max(1.0);
        factor = clip * factor;
    }
    let none = Tensor::zeros([1], (&norm.device(), DType::F32));
    let factor = none.mask_where(finite, factor);
    let [step_size, second_correction] = corrections(&loss_scale, settings);
    let control = Tensor::cat(vec![factor, applied.clone(), step_size, second_correction], 0);
    let loss_scale = next_scale(loss_scale, applied, settings.scales_loss);
    UpdateControl { norm, control, loss_scale }
}

/// `learning_rate / (1 - beta1^t)` and `1 / sqrt(1 - beta2^t)`.
fn corrections(loss_scale: &Tensor<1>, settings: UpdateSettings) -> [Tensor<1>; 2] {
    let step = element(loss_scale, 2).neg() + settings.step as f32;
    let [first, second] =
        settings.log_betas().map(|log_beta| one_minus_exp(step.clone() * log_beta));
    [first.recip() * settings.learning_rate as f32, second.sqrt().recip()]
}

/// `1 - e^x` for `x <= 0`: by its series where the difference would cancel.
fn one_minus_exp(x: Tensor<1>) -> Tensor<1> {
    let mut series = x.ones_like();
    for n in (2..=10).rev() {
        series = x.clone() / n as f32 * series + 1.0;
    }
    let near = (x.clone() * series).neg();
    let far = x.clone().exp().neg() + 1.0;
    far.mask_where(x.greater_elem(-1.0), near)
}

/// Returns the state of loss scaling after an update that is applied (1) or not (0). All of it is
/// finite, so that products with 0 and 1 select.
fn next_scale(loss_scale: Tensor<1>, applied: Tensor<1>, scales: bool) -> Tensor<1> {
    let [mut scale, clean, skipped, in_a_row] = [0, 1, 2, 3].map(|i| element(&loss_scale, i));
    let not = |x: Tensor<1>| x.neg() + 1.0;
    let failed = not(applied.clone());
    let mut clean = (clean + 1.0) * applied.clone();
    if scales {
        let grows = clean.clone().greater_equal_elem(GROWTH_INTERVAL as f32).float();
        let fits = (scale.clone() * 2.0).lower_equal_elem(MAX_GROWN_SCALE as f32).float();
        let growth = grows.clone() * fits + 1.0;
        let halved = (scale.clone() * 0.5).clamp_min(MIN_SCALE as f32);
        scale = scale * growth * applied + halved * failed.clone();
        clean = clean * not(grows);
    }
    let in_a_row = (in_a_row + 1.0) * failed.clone();
    Tensor::cat(vec![scale, clean, skipped + failed, in_a_row], 0)
}

fn element(x: &Tensor<1>, index: usize) -> Tensor<1> {
    x.clone().narrow(0, index, 1)
}
