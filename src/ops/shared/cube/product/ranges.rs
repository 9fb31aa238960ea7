//! The sum of a product over ranges of k that were multiplied separately.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::Epilogue;
use crate::ops::shared::cube::gelu::gelu_derivative;
use crate::ops::shared::cube::{CubeKernels, cover, elem, launch};

/// Adds up the products over ranges of k, in order, and runs the epilogue: an invocation per element.
#[cube(launch_unchecked)]
fn sum_ranges<T: Float>(
    partial: &[f32],
    y: &mut [T],
    factor: &[T],
    bias: &[f32],
    residual: &[T],
    elements: usize,
    width: usize,
    first: usize,
    ranges: usize,
    #[comptime] has_factor: bool,
    #[comptime] exact: bool,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
    #[comptime] accumulate: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let mut sum = 0.0f32;
        for range in 0..ranges {
            sum += partial[range * elements + i];
        }
        if comptime!(has_factor) {
            sum *= gelu_derivative(f32::cast_from(factor[i]), exact);
        }
        if comptime!(has_bias) {
            sum += bias[i % width];
        }
        if comptime!(has_residual) {
            sum += f32::cast_from(residual[i]);
        }
        if comptime!(accumulate) {
            sum += f32::cast_from(y[first + i]);
        }
        y[first + i] = T::cast_from(sum);
    }
}

impl CubeKernels {
    /// Adds the products over ranges of k, `[ranges, m, n]`, up to `m` rows of `y` `[.., n]`.
    pub(super) fn sum_ranges(&self, partial: &CubeTensor, y: &CubeTensor, epilogue: Epilogue) {
        let [ranges, rows, width] = partial.shape().dims();
        let Epilogue { derivative, bias, residual, accumulate, first_row } = epilogue;
        launch!(
            self,
            cover(rows * width),
            sum_ranges(
                &[partial, y, derivative.map(|(_, x)| x), bias, residual],
                rows * width,
                width,
                first_row * width,
                ranges,
                derivative.is_some(),
                epilogue.is_exact(),
                bias.is_some(),
                residual.is_some(),
                accumulate,
                elem(y)
            )
        );
    }
}
