//! The gradient norm in cubecl's language.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{NORM_EPS, NORM_SPAN};
use crate::ops::shared::cube::reduce::group_sum;
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, argument, each, launch};
use crate::ops::shared::kernels::{contiguous, elements, owned};

/// The sum of the squares of each `NORM_SPAN` elements of `x`, in `sums[first..]`: a workgroup for
/// each.
#[cube(launch_unchecked)]
fn squares(x: &[f32], sums: &mut [f32], elements: usize, first: usize, spans: usize) {
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
/// (0: no clipping). One workgroup.
#[cube(launch_unchecked)]
fn norm_and_clip(sums: &[f32], norm: &mut [f32], clip: &mut [f32], elements: usize, limit: f32) {
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

pub(super) fn sum_squares(
    kernels: &CubeKernels,
    x: CubeTensor,
    sums: CubeTensor,
    first: usize,
) -> CubeTensor {
    let (x, sums) = (contiguous(x), owned(sums));
    let spans = elements(&x).div_ceil(NORM_SPAN);
    let (count, dim) = each(spans, ELEMENTWISE);
    launch!(squares(
        kernels.client(),
        count,
        dim,
        argument(&x),
        argument(&sums),
        elements(&x),
        first,
        spans,
    ));
    sums
}

pub(super) fn clip_factor(
    kernels: &CubeKernels,
    sums: CubeTensor,
    limit: f32,
) -> (CubeTensor, CubeTensor) {
    let sums = contiguous(sums);
    let [norm, clip] = [(); 2].map(|()| kernels.queue.empty([1]));
    let (count, dim) = each(1, ELEMENTWISE);
    launch!(norm_and_clip(
        kernels.client(),
        count,
        dim,
        argument(&sums),
        argument(&norm),
        argument(&clip),
        elements(&sums),
        limit,
    ));
    (norm, clip)
}
