//! The optimizer's passes.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::reduce::group_sum;
use super::{ELEMENTWISE, Kernels, argument, contiguous, cover, each, elements, owned};
use crate::ops::AdamW;
use crate::ops::adamw::{NORM_EPS, NORM_SPAN};

/// The sum of the squares of each `NORM_SPAN` elements of `x`, in `sums[first..]`: a workgroup for
/// each.
#[cube(launch_unchecked)]
fn sum_squares(x: &[f32], sums: &mut [f32], elements: usize, first: usize, spans: usize) {
    let index = CUBE_POS;
    if index >= spans {
        terminate!();
    }
    let span = comptime!(NORM_SPAN).runtime();
    let last = min((index + 1) * span, elements);
    let mut sum = 0.0f32;
    let mut i = index * span + UNIT_POS as usize;
    while i < last {
        let value = x[i];
        sum += value * value;
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(sum, ELEMENTWISE);
    if UNIT_POS == 0 {
        sums[first + index] = total;
    }
}

/// The root of the sum of all of `sums`, and the factor that clips gradients to a norm of `limit`
/// (zero: not at all). One workgroup.
#[cube(launch_unchecked)]
fn clip_factor(sums: &[f32], norm: &mut [f32], clip: &mut [f32], elements: usize, limit: f32) {
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i < elements {
        sum += sums[i];
        i += ELEMENTWISE as usize;
    }
    let total = group_sum(sum, ELEMENTWISE).sqrt();
    if UNIT_POS == 0 {
        norm[0] = total;
        clip[0] = select(limit == 0.0f32, 1.0f32, min(limit / (total + NORM_EPS), 1.0f32));
    }
}

/// One update in place, element by element.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer and scalar")]
fn update(
    w: &mut [f32],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    clip: &[f32],
    elements: usize,
    decay: f32,
    beta1: f32,
    beta2: f32,
    step_size: f32,
    second_correction: f32,
    eps: f32,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let g = grad[i] * clip[0];
        let first = beta1 * m[i] + (1.0f32 - beta1) * g;
        let second = beta2 * v[i] + (1.0f32 - beta2) * g * g;
        m[i] = first;
        v[i] = second;
        w[i] = decay * w[i] - step_size * first / (second.sqrt() * second_correction + eps);
    }
}

impl Kernels {
    pub fn sum_squares(&self, x: CubeTensor, sums: CubeTensor, first: usize) -> CubeTensor {
        let (x, sums) = (contiguous(x), owned(sums));
        let spans = elements(&x).div_ceil(NORM_SPAN);
        let (count, dim) = each(spans, ELEMENTWISE);
        unsafe {
            sum_squares::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(&x),
                argument(&sums),
                elements(&x),
                first,
                spans,
            );
        }
        sums
    }

    pub fn clip(&self, sums: CubeTensor, limit: f32) -> (CubeTensor, CubeTensor) {
        let sums = contiguous(sums);
        let [norm, clip] = [(); 2].map(|()| self.queue.empty([1]));
        let (count, dim) = each(1, ELEMENTWISE);
        unsafe {
            clip_factor::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(&sums),
                argument(&norm),
                argument(&clip),
                elements(&sums),
                limit,
            );
        }
        (norm, clip)
    }

    pub fn adamw(
        &self,
        w: CubeTensor,
        grad: CubeTensor,
        m: CubeTensor,
        v: CubeTensor,
        clip: CubeTensor,
        scalars: AdamW,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [w, m, v] = [w, m, v].map(owned);
        let (grad, clip) = (contiguous(grad), contiguous(clip));
        let AdamW { decay, beta1, beta2, step_size, second_correction, eps } = scalars;
        let (count, dim) = cover(elements(&w));
        unsafe {
            update::launch_unchecked(
                self.client(),
                count,
                dim,
                argument(&w),
                argument(&grad),
                argument(&m),
                argument(&v),
                argument(&clip),
                elements(&w),
                decay,
                beta1,
                beta2,
                step_size,
                second_correction,
                eps,
            );
        }
        (w, m, v)
    }
}
