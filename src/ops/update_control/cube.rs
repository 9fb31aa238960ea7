use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{
    GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_EPS, NORM_SPAN, UpdateControlInputs,
    UpdateSettings,
};
use crate::ops::shared::cube::math::exp;
use crate::ops::shared::cube::reduce::group_sum;
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, Gpu, each, launch};
use crate::ops::shared::kernels::{contiguous, elements};

/// The sum of the squares of each `NORM_SPAN` elements of `x`, divided by the loss scale and
/// `divisor`, in `sums[first..]`: a workgroup for each.
#[cube(launch_unchecked)]
fn squares(
    x: &[f32],
    sums: &mut [f32],
    loss_scale: &[f32],
    elements: usize,
    first: usize,
    spans: usize,
    divisor: f32,
) {
    let index = CUBE_POS;
    if index >= spans {
        terminate!();
    }
    let span = comptime!(NORM_SPAN).runtime();
    let last = min((index + 1) * span, elements);
    let factor = 1.0f32 / (loss_scale[0] * divisor);
    let mut sum = 0.0f32;
    let mut i = index * span + UNIT_POS as usize;
    while i < last {
        let value = x[i] * factor;
        sum += value * value;
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(sum, ELEMENTWISE);
    if UNIT_POS == 0 {
        sums[first + index] = total;
    }
}

/// `1 - e^x` for `x <= 0`: by its series where the difference would cancel.
#[cube]
fn one_minus_exp(x: f32) -> f32 {
    let mut series = 1.0f32.runtime();
    let mut n = 10.0f32.runtime();
    while n > 1.0f32 {
        series = 1.0f32 + x / n * series;
        n -= 1.0f32;
    }
    select(x > -1.0f32, -x * series, 1.0f32 - exp(x))
}

/// The norm, the control of the update and the next state of loss scaling. One workgroup.
#[cube(launch_unchecked)]
fn decision(
    sums: &[f32],
    loss_scale: &[f32],
    norm: &mut [f32],
    control: &mut [f32],
    next: &mut [f32],
    elements: usize,
    grad_clip: f32,
    divisor: f32,
    step: f32,
    learning_rate: f32,
    log_beta1: f32,
    log_beta2: f32,
    #[comptime] scales_loss: bool,
) {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < elements {
        sum += sums[i];
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(sum, ELEMENTWISE);
    if UNIT_POS == 0 {
        // By its bits: compilers may assume that numbers are finite.
        let finite = (u32::reinterpret(total) & 0x7f80_0000u32) != 0x7f80_0000u32;
        let root = total.sqrt();
        norm[0] = root;
        let scale = loss_scale[0];
        let clip = select(grad_clip == 0.0f32, 1.0f32, min(grad_clip / (root + NORM_EPS), 1.0f32));
        let made = step - loss_scale[2];
        control[0] = select(finite, clip / (scale * divisor), 0.0f32);
        control[1] = select(finite, 1.0f32, 0.0f32);
        control[2] = learning_rate / one_minus_exp(made * log_beta1);
        control[3] = 1.0f32 / one_minus_exp(made * log_beta2).sqrt();
        let mut next_scale = scale;
        let mut clean = select(finite, loss_scale[1] + 1.0f32, 0.0f32);
        if comptime!(scales_loss) {
            let halved = max(0.5f32 * scale, comptime!(MIN_SCALE as f32).runtime());
            let grows = clean >= comptime!(GROWTH_INTERVAL as f32).runtime();
            let fits = 2.0f32 * scale <= comptime!(MAX_GROWN_SCALE as f32).runtime();
            next_scale = select(finite, select(grows && fits, 2.0f32 * scale, scale), halved);
            clean = select(grows, 0.0f32, clean);
        }
        next[0] = next_scale;
        next[1] = clean;
        next[2] = loss_scale[2] + select(finite, 0.0f32, 1.0f32);
        next[3] = select(finite, 0.0f32, loss_scale[3] + 1.0f32);
    }
}

fn sum_squares(
    kernels: &CubeKernels,
    grads: Vec<CubeTensor>,
    loss_scale: &CubeTensor,
    divisor: f32,
) -> CubeTensor {
    let grads: Vec<CubeTensor> = grads.into_iter().map(contiguous).collect();
    let spans = |grad: &CubeTensor| elements(grad).div_ceil(NORM_SPAN);
    let sums = kernels.queue.empty([grads.iter().map(spans).sum::<usize>()]);
    #[cfg(feature = "cuda")]
    if super::cuda::sum_squares(kernels, &grads, loss_scale, divisor, &sums) {
        return sums;
    }
    let mut first = 0;
    for grad in &grads {
        let spans = spans(grad);
        launch!(
            kernels,
            each(spans, ELEMENTWISE),
            squares(&[grad, &sums, loss_scale], elements(grad), first, spans, divisor)
        );
        first += spans;
    }
    sums
}

pub(super) fn decide(
    kernels: &CubeKernels,
    inputs: UpdateControlInputs<Gpu>,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let UpdateControlInputs { grads, loss_scale, settings } = inputs;
    let sums = sum_squares(kernels, grads, &loss_scale, settings.divisor);
    let [norm, control, next] = [1, 4, 4].map(|len| kernels.queue.empty([len]));
    let [log_beta1, log_beta2] = settings.log_betas();
    let UpdateSettings { grad_clip, divisor, step, learning_rate, scales_loss, .. } = settings;
    launch!(
        kernels,
        each(1, ELEMENTWISE),
        decision(
            &[&sums, &loss_scale, &norm, &control, &next],
            elements(&sums),
            grad_clip,
            divisor,
            step as f32,
            learning_rate as f32,
            log_beta1,
            log_beta2,
            scales_loss,
        )
    );
    (norm, control, next)
}
