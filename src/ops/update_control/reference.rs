//! The control of an update by tensor operations.

use burn::backend::tensor::{BoolTensor, FloatTensor};
use burn::backend::{Backend, get_or_init_device_settings};
use burn::tensor::{BoolDType, FloatDType, Slice};

use super::{GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_EPS, NORM_SPAN, UpdateSettings};
use crate::ops::shared::{device, shape};

pub(super) fn sum_squares<B: Backend>(
    grads: Vec<FloatTensor<B>>,
    loss_scale: FloatTensor<B>,
    divisor: f32,
) -> FloatTensor<B> {
    let divisor = B::float_mul_scalar(element::<B>(&loss_scale, 0), divisor.into());
    let factor = B::float_recip(divisor);
    let sums = grads.into_iter().flat_map(|grad| sums_of::<B>(grad, &factor));
    B::float_cat(sums.collect(), 0)
}

/// The sums of the squares of `x` times `factor`: of its whole spans, and of what remains.
fn sums_of<B: Backend>(x: FloatTensor<B>, factor: &FloatTensor<B>) -> Vec<FloatTensor<B>> {
    let x = B::float_mul(x, factor.clone());
    let squares = B::float_mul(x.clone(), x);
    let elements = shape::<B>(&squares).num_elements();
    let whole = elements / NORM_SPAN;
    let part = |from: usize, to: usize| B::float_slice(squares.clone(), &[Slice::from(from..to)]);
    let mut sums = Vec::new();
    if whole > 0 {
        let rows = B::float_reshape(part(0, whole * NORM_SPAN), [whole, NORM_SPAN].into());
        sums.push(B::float_reshape(B::float_sum_dim(rows, 1), [whole].into()));
    }
    if whole * NORM_SPAN < elements {
        sums.push(B::float_sum(part(whole * NORM_SPAN, elements)));
    }
    sums
}

pub(super) fn decide<B: Backend>(
    sums: FloatTensor<B>,
    loss_scale: FloatTensor<B>,
    settings: UpdateSettings,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let total = B::float_sum(sums);
    // NaN compares as false.
    let finite = B::float_lower_equal_elem(total.clone(), f32::MAX.into(), bools::<B>(&total));
    let applied = number::<B>(finite.clone());
    let norm = B::float_sqrt(total);
    let factor = factor::<B>(norm.clone(), &loss_scale, settings);
    let factor = B::float_mask_where(
        B::float_zeros([1].into(), &device::<B>(&norm), FloatDType::F32),
        finite,
        factor,
    );
    let [step_size, second_correction] = corrections::<B>(&loss_scale, settings);
    let control = B::float_cat(vec![factor, applied.clone(), step_size, second_correction], 0);
    (norm, control, next_scale::<B>(loss_scale, applied, settings.scales_loss))
}

/// The factor of the gradients, if they are finite.
fn factor<B: Backend>(
    norm: FloatTensor<B>,
    loss_scale: &FloatTensor<B>,
    settings: UpdateSettings,
) -> FloatTensor<B> {
    let UpdateSettings { grad_clip, divisor, .. } = settings;
    let divisor = B::float_mul_scalar(element::<B>(loss_scale, 0), divisor.into());
    let factor = B::float_recip(divisor);
    if grad_clip == 0.0 {
        return factor;
    }
    let clip = B::float_recip(B::float_add_scalar(norm, NORM_EPS.into()));
    let clip = B::float_clamp_max(B::float_mul_scalar(clip, grad_clip.into()), 1f32.into());
    B::float_mul(clip, factor)
}

/// `learning_rate / (1 - beta1^t)` and `1 / sqrt(1 - beta2^t)`.
fn corrections<B: Backend>(
    loss_scale: &FloatTensor<B>,
    settings: UpdateSettings,
) -> [FloatTensor<B>; 2] {
    let step = B::float_neg(element::<B>(loss_scale, 2));
    let step = B::float_add_scalar(step, (settings.step as f32).into());
    let [first, second] = settings
        .log_betas()
        .map(|log_beta| one_minus_exp::<B>(B::float_mul_scalar(step.clone(), log_beta.into())));
    let step_size =
        B::float_mul_scalar(B::float_recip(first), (settings.learning_rate as f32).into());
    [step_size, B::float_recip(B::float_sqrt(second))]
}

/// `1 - e^x` for `x <= 0`: by its series where the difference would cancel.
fn one_minus_exp<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let mut series = B::float_ones([1].into(), &device::<B>(&x), FloatDType::F32);
    for n in (2..=10).rev() {
        let term = B::float_mul(B::float_div_scalar(x.clone(), (n as f32).into()), series);
        series = B::float_add_scalar(term, 1f32.into());
    }
    let near = B::float_neg(B::float_mul(x.clone(), series));
    let far = B::float_add_scalar(B::float_neg(B::float_exp(x.clone())), 1f32.into());
    let is_near = B::float_greater_elem(x.clone(), (-1f32).into(), bools::<B>(&x));
    B::float_mask_where(far, is_near, near)
}

/// The state of loss scaling after an update that is applied (1) or not (0). All of it is finite, so
/// that products with 0 and 1 select.
fn next_scale<B: Backend>(
    loss_scale: FloatTensor<B>,
    applied: FloatTensor<B>,
    scales: bool,
) -> FloatTensor<B> {
    let [scale, clean, skipped, in_a_row] = [0, 1, 2, 3].map(|i| element::<B>(&loss_scale, i));
    let not = |x: FloatTensor<B>| B::float_add_scalar(B::float_neg(x), 1f32.into());
    let next = |x: FloatTensor<B>| B::float_add_scalar(x, 1f32.into());
    let failed = not(applied.clone());
    let mut scale = scale;
    let mut clean = B::float_mul(next(clean), applied.clone());
    if scales {
        let interval = (GROWTH_INTERVAL as f32).into();
        let grows =
            number::<B>(B::float_greater_equal_elem(clean.clone(), interval, bools::<B>(&clean)));
        let doubled = B::float_mul_scalar(scale.clone(), 2f32.into());
        let fits =
            B::float_lower_equal_elem(doubled, (MAX_GROWN_SCALE as f32).into(), bools::<B>(&scale));
        let growth = next(B::float_mul(grows.clone(), number::<B>(fits)));
        let halved = B::float_mul_scalar(scale.clone(), 0.5f32.into());
        let halved = B::float_clamp_min(halved, (MIN_SCALE as f32).into());
        scale = B::float_add(
            B::float_mul(B::float_mul(scale, growth), applied),
            B::float_mul(halved, failed.clone()),
        );
        clean = B::float_mul(clean, not(grows));
    }
    let in_a_row = B::float_mul(next(in_a_row), failed.clone());
    B::float_cat(vec![scale, clean, B::float_add(skipped, failed), in_a_row], 0)
}

/// Element `index` of a vector, as `[1]`.
fn element<B: Backend>(x: &FloatTensor<B>, index: usize) -> FloatTensor<B> {
    B::float_slice(x.clone(), &[Slice::from(index..index + 1)])
}

/// 1 for true and 0 for false.
fn number<B: Backend>(x: BoolTensor<B>) -> FloatTensor<B> {
    B::bool_into_float(x, FloatDType::F32)
}

/// The type in which the tensor's device stores booleans.
fn bools<B: Backend>(x: &FloatTensor<B>) -> BoolDType {
    get_or_init_device_settings::<B>(&device::<B>(x)).bool_dtype
}
