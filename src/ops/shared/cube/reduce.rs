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
    let mut half = comptime!((units / 2) as usize).runtime();
    while half > 0 {
        if lane < half {
            let other = shared[lane + half];
            if comptime!(to_max) {
                shared[lane] = max(shared[lane], other);
            } else {
                shared[lane] += other;
            }
        }
        sync_cube();
        half /= 2;
    }
    let result = shared[0];
    // The next reduction of the same kernel may get the same memory.
    sync_cube();
    result
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
