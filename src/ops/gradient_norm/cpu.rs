//! The gradient norm as a loop.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{NORM_SPAN, reference};
use crate::ops::shared::cpu::{CpuTensor, contiguous, math, values, values_mut, vectorised};

pub(super) fn sum_squares(x: CpuTensor, sums: CpuTensor, first: usize) -> CpuTensor {
    let [x, mut sums] = [x, sums].map(contiguous);
    values(&x)
        .par_chunks(NORM_SPAN)
        .zip(&mut values_mut(&mut sums)[first..])
        .for_each(|(span, sum)| *sum = vectorised(|| math::dot(span, span)));
    sums
}

/// A few numbers: tensor operations do.
pub(super) fn clip_factor(sums: CpuTensor, limit: f32) -> (CpuTensor, CpuTensor) {
    reference::clip_factor::<Flex>(sums, limit)
}
