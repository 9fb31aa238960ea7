use rayon::prelude::*;

use super::{
    GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_EPS, NORM_SPAN, UpdateControlInputs,
    UpdateSettings,
};
use crate::ops::shared::cpu::{
    CpuTensor, Flex, contiguous, from_values, values, vector, vectorised,
};

fn sum_squares(grads: Vec<CpuTensor>, factor: f32) -> Vec<f32> {
    let mut sums = Vec::new();
    for grad in grads {
        let grad = contiguous(grad);
        let spans = values(&grad).par_chunks(NORM_SPAN);
        sums.par_extend(spans.map(|span| sum_squares_of(span, factor)));
    }
    sums
}

vectorised! {
    fn sum_squares_of<S>(simd; x: &[f32], factor: f32) -> f32 {
        let factor = simd.splat_f32s(factor);
        vector::sum(simd, [x], |[x]| {
            let x = simd.mul_f32s(x, factor);
            simd.mul_f32s(x, x)
        })
    }
}

pub(super) fn decide(inputs: UpdateControlInputs<Flex>) -> (CpuTensor, CpuTensor, CpuTensor) {
    let UpdateControlInputs { grads, loss_scale, settings } = inputs;
    let UpdateSettings { grad_clip, divisor, scales_loss, .. } = settings;
    let loss_scale = contiguous(loss_scale);
    let [scale, clean, skipped, in_a_row] = [0, 1, 2, 3].map(|i| values(&loss_scale)[i]);
    let sums = sum_squares(grads, 1.0 / (scale * divisor));
    let norm = sums.into_iter().map(f64::from).sum::<f64>().sqrt() as f32;
    let clip = if grad_clip == 0.0 { 1.0 } else { (grad_clip / (norm + NORM_EPS)).min(1.0) };
    let made = settings.step as f32 - skipped;
    let [first, second] = settings.log_betas().map(|log_beta| -libm::expm1f(made * log_beta));
    let (factor, applied, state) = if norm.is_finite() {
        let grows = scales_loss && clean + 1.0 >= GROWTH_INTERVAL as f32;
        let fits = 2.0 * scale <= MAX_GROWN_SCALE as f32;
        let scale_after = if grows && fits { 2.0 * scale } else { scale };
        let clean = if grows { 0.0 } else { clean + 1.0 };
        (clip / (scale * divisor), 1.0, [scale_after, clean, skipped, 0.0])
    } else {
        let scale = if scales_loss { (0.5 * scale).max(MIN_SCALE as f32) } else { scale };
        (0.0, 0.0, [scale, 0.0, skipped + 1.0, in_a_row + 1.0])
    };
    let step_size = settings.learning_rate as f32 / first;
    let control = [factor, applied, step_size, 1.0 / second.sqrt()];
    (
        from_values(vec![norm], [1].into()),
        from_values(control.to_vec(), [4].into()),
        from_values(state.to_vec(), [4].into()),
    )
}
