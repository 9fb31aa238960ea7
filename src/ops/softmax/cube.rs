//! The softmax in cubecl's language.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use crate::ops::shared::cube::math::{LEAST, exp};
use crate::ops::shared::cube::reduce::{group_max, group_sum};
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, each, launch};

/// A workgroup for each row.
#[cube(launch_unchecked)]
fn softmax_rows(x: &[f32], y: &mut [f32], rows: usize, width: usize) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let base = row * width;
    let mut largest = LEAST.runtime();
    let mut column = UNIT_POS as usize;
    while column < width {
        largest = max(largest, x[base + column]);
        column += ELEMENTWISE as usize;
    }
    let largest = group_max(largest, ELEMENTWISE);
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < width {
        let value = exp(x[base + column] - largest);
        y[base + column] = value;
        sum += value;
        column += ELEMENTWISE as usize;
    }
    let scale = 1.0f32 / group_sum(sum, ELEMENTWISE);
    let mut column = UNIT_POS as usize;
    while column < width {
        y[base + column] *= scale;
        column += ELEMENTWISE as usize;
    }
}

pub(super) fn forward(kernels: &CubeKernels, x: CubeTensor) -> CubeTensor {
    let [rows, width] = x.shape().dims();
    let y = kernels.queue.empty([rows, width]);
    launch!(kernels, each(rows, ELEMENTWISE), softmax_rows(&[&x, &y], rows, width));
    y
}
