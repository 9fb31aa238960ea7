//! The softmax in cubecl's language.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use crate::ops::shared::cube::math::exp;
use crate::ops::shared::cube::reduce::softmax_sum;
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, each, launch};

/// A workgroup for each row of `width` vectors.
#[cube(launch_unchecked)]
fn softmax_rows<N: Size>(
    x: &[Vector<f32, N>],
    y: &mut [Vector<f32, N>],
    rows: usize,
    width: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let base = row * width;
    let of_row = softmax_sum(x, base, width * N::value(), ELEMENTWISE);
    let scale = 1.0f32 / of_row.sum;
    let mut i = UNIT_POS as usize;
    while i < width {
        let values = x[base + i];
        let mut shares = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            shares.insert(j, exp(values.extract(j) - of_row.largest) * scale);
        }
        y[base + i] = shares;
        i += ELEMENTWISE as usize;
    }
}

pub(super) fn forward(kernels: &CubeKernels, x: CubeTensor) -> CubeTensor {
    let [rows, width] = x.shape().dims();
    let y = kernels.queue.empty([rows, width]);
    let vector = kernels.vector(x.dtype, width);
    launch!(
        kernels,
        each(rows, ELEMENTWISE),
        softmax_rows(vector, &[&x, &y], rows, width / vector)
    );
    y
}
