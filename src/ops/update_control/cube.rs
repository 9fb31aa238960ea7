use burn::tensor::DType;
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
use crate::ops::shared::kernels::elements;

/// The sum of the squares of each `NORM_SPAN` elements of several gradients, divided by the loss scale and
/// `divisor`, in `sums[first..]`: a workgroup for each.
#[cube(launch_unchecked)]
fn squares<N: Size>(
    sums: &mut [f32],
    loss_scale: &[f32],
    grads: &Sequence<Box<[Vector<f32, N>]>>,
    vectors: &Sequence<usize>,
    first: usize,
    divisor: f32,
) {
    let factor = Vector::<f32, N>::new(1.0f32 / (loss_scale[0] * divisor));
    let vector = N::value().comptime();
    let span = comptime!(NORM_SPAN / vector);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut begin = 0usize.runtime();
    #[unroll]
    for k in 0..grads.len() {
        let next = begin + vectors[k].div_ceil(span);
        if CUBE_POS >= begin && CUBE_POS < next {
            let at = (CUBE_POS - begin) * span;
            let end = min(at + span, vectors[k]);
            let mut i = at + UNIT_POS as usize;
            while i < end {
                let value = grads[k][i] * factor;
                sum += value * value;
                i += ELEMENTWISE as usize;
            }
        }
        begin = next;
    }
    let total = group_sum(sum.vector_sum(), ELEMENTWISE);
    if UNIT_POS == 0 && CUBE_POS < begin {
        sums[first + CUBE_POS] = total;
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
    grads: &[CubeTensor],
    loss_scale: &CubeTensor,
    divisor: f32,
) -> CubeTensor {
    let spans = |grad: &CubeTensor| elements(grad).div_ceil(NORM_SPAN);
    let sums = kernels.queue.empty([grads.iter().map(spans).sum::<usize>()]);
    let vector_of = |grad: &CubeTensor| kernels.vector(DType::F32, elements(grad));
    let mut first = 0;
    for vector in [4, 2, 1] {
        let grads: Vec<_> = grads.iter().filter(|grad| vector_of(grad) == vector).collect();
        for grads in grads.chunks(kernels.tensors_per_launch(grads.len(), 1, 2)) {
            let spans: usize = grads.iter().copied().map(spans).sum();
            launch!(
                kernels,
                each(spans, ELEMENTWISE),
                squares(
                    vector,
                    &[&sums, loss_scale],
                    grads.iter().map(|grad| kernels.argument(*grad)).collect(),
                    grads.iter().map(|grad| elements(grad) / vector).collect(),
                    first,
                    divisor,
                )
            );
            first += spans;
        }
    }
    sums
}

pub(super) fn decide(
    kernels: &CubeKernels,
    inputs: UpdateControlInputs<Gpu>,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let UpdateControlInputs { grads, loss_scale, settings } = inputs;
    let sums = sum_squares(kernels, &grads, &loss_scale, settings.divisor);
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
