//! Sums that several kernels need.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{CubeKernels, cover, launch};

/// Returns the sum of `own` over a workgroup of `units` invocations, a power of two, to each of them.
#[cube]
pub(in crate::ops) fn group_sum(own: f32, #[comptime] units: u32) -> f32 {
    reduce(own, units, false)
}

/// Returns the largest `own` of a workgroup of `units` invocations, a power of two, to each of them.
#[cube]
pub(in crate::ops) fn group_max(own: f32, #[comptime] units: u32) -> f32 {
    reduce(own, units, true)
}

#[cube]
fn reduce(own: f32, #[comptime] units: u32, #[comptime] to_max: bool) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let lane = UNIT_POS as usize;
    shared[lane] = own;
    sync_cube();
    // As in shaders/reduce.wgsl.
    let parts = comptime!(units.min(16) as usize);
    if comptime!(units > 16) {
        if lane < parts {
            let mut part = shared[lane];
            for i in 1..comptime!(units as usize / parts) {
                part = combined(part, shared[lane + i * parts], to_max);
            }
            shared[lane] = part;
        }
        sync_cube();
    }
    let mut result = shared[0];
    for i in 1..parts {
        result = combined(result, shared[i], to_max);
    }
    // The next reduction of the same kernel may get the same memory.
    sync_cube();
    result
}

#[cube]
fn combined(a: f32, b: f32, #[comptime] to_max: bool) -> f32 {
    if comptime!(to_max) { max(a, b) } else { a + b }
}

/// `sums[column]` adds up `partial[group, column]` in the order of groups, an invocation per column.
#[cube(launch_unchecked)]
fn sum_groups(partial: &[f32], sums: &mut [f32], groups: usize, width: usize) {
    let column = ABSOLUTE_POS;
    if column < width {
        let mut sum = 0.0f32;
        for group in 0..groups {
            sum += partial[group * width + column];
        }
        sums[column] = sum;
    }
}

impl CubeKernels {
    /// Returns the column sums of `partial` `[groups, width]`: the second stage of sums over rows.
    pub fn sum_groups(&self, partial: &CubeTensor, groups: usize, width: usize) -> CubeTensor {
        let sums = self.queue.empty([width]);
        launch!(self, cover(width), sum_groups(&[partial, &sums], groups, width));
        sums
    }
}
