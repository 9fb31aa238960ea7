//! Reductions that several kernels need.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::math::{LEAST, exp};
use super::{CubeKernels, each, elem, launch};

/// Invocations in a workgroup that sums columns, half as many if the device has fewer.
const SUMMING: u32 = 512;

/// The bytes of a row that such a workgroup reads: what GPUs fetch at least.
const SECTOR: usize = 32;

/// Parts of a column that its last invocation adds up.
const PARTS: usize = 16;

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

/// The largest element of a row, and the sum of `exp(element - largest)`.
#[derive(CubeType)]
pub(in crate::ops) struct SoftmaxSum {
    pub largest: f32,
    pub sum: f32,
}

/// Returns the sum of the first `columns` elements of the row that begins at the vector `base`, to each of a
/// workgroup of `units` invocations. Reads the row once: each invocation adds relative to the largest element
/// that it has seen.
#[cube]
pub(in crate::ops) fn softmax_sum<T: Float, N: Size>(
    x: &[Vector<T, N>],
    base: usize,
    columns: usize,
    #[comptime] units: u32,
) -> SoftmaxSum {
    let mut largest = LEAST.runtime();
    let mut sum = 0.0f32;
    let mut i = UNIT_POS as usize;
    while i * N::value() < columns {
        let values = Vector::<f32, N>::cast_from(x[base + i]);
        let mut top = largest;
        #[unroll]
        for j in 0..N::value() {
            let value = select(i * N::value() + j < columns, values.extract(j), LEAST);
            top = max(top, value);
        }
        if top > largest {
            sum *= exp(largest - top);
            largest = top;
        }
        #[unroll]
        for j in 0..N::value() {
            let share = exp(values.extract(j) - largest);
            sum += select(i * N::value() + j < columns, share, 0.0f32);
        }
        i += units as usize;
    }
    let row_max = group_max(largest, units);
    let row_sum = group_sum(sum * exp(largest - row_max), units);
    SoftmaxSum { largest: row_max, sum: row_sum }
}

/// The sums of the columns of `d`, in a fixed order. A workgroup has `strip` vectors of each row, so that
/// one launch is enough, and each of its invocations every `units / strip`-th row of one vector.
#[cube(launch_unchecked)]
fn sum_columns<T: Float, N: Size>(
    d: &[Vector<T, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    vectors: usize,
    #[comptime] units: usize,
    #[comptime] strip: usize,
    #[define(T)] _elem: ElemType,
) {
    let unit = UNIT_POS as usize;
    let column = CUBE_POS * strip + unit % strip;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    if column < vectors {
        let mut row = unit / strip;
        while row < rows {
            sum += Vector::cast_from(d[row * vectors + column]);
            row += comptime!(units / strip);
        }
    }
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(units);
    shared[unit] = sum;
    sync_cube();
    let adding = comptime!(PARTS * strip);
    if unit < adding {
        for part in 1..comptime!(units / (PARTS * strip)) {
            sum += shared[unit + part * adding];
        }
        shared[unit] = sum;
    }
    sync_cube();
    if unit < strip && column < vectors {
        for part in 1..PARTS {
            sum += shared[unit + part * strip];
        }
        sums[column] = sum;
    }
}

impl CubeKernels {
    /// Returns the sums of the columns of `d` `[rows, width]`, `[width]`, in f32.
    pub fn column_sums(&self, d: &CubeTensor, rows: usize, width: usize) -> CubeTensor {
        let sums = self.queue.empty([width]);
        let vector = self.vector(d.dtype, width);
        let vectors = width / vector;
        let strip = SECTOR / (vector * d.dtype.size());
        let units = if self.queue.workgroup_size() < SUMMING { SUMMING / 2 } else { SUMMING };
        launch!(
            self,
            each(vectors.div_ceil(strip), units),
            sum_columns(vector, &[d, &sums], rows, vectors, units as usize, strip, elem(d))
        );
        sums
    }
}
