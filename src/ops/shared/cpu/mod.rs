//! Loops over the slices of `flex` tensors.
//!
//! Composed of tensor ops, a step of the small CPU recipe spends two thirds of its time in
//! elementwise passes on one thread. The loops of the ops fuse those passes, run on all cores
//! (rayon) and are compiled for several instruction sets; pulp picks the best that the CPU has. No
//! result depends on the number of threads: sums are split into blocks of a fixed size.

use std::ops::Range;

pub(in crate::ops) use burn::backend::Flex;
use burn::backend::{TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, TensorData};
use rayon::prelude::*;

pub(in crate::ops) mod math;
pub(in crate::ops) mod memory;
pub(in crate::ops) mod product;
pub(in crate::ops) mod vector;

pub(in crate::ops) type CpuTensor = FloatTensor<Flex>;

/// Rows per partial sum: fixed, so that the result does not depend on the number of threads.
const SUM_ROWS: usize = 64;

/// Returns the tensor with its elements in row-major order.
pub(in crate::ops) fn contiguous(x: CpuTensor) -> CpuTensor {
    if x.as_slice::<f32>().is_some() { x } else { x.to_contiguous() }
}

/// Returns the elements of a tensor that [`contiguous`] returned.
pub(in crate::ops) fn values(x: &CpuTensor) -> &[f32] {
    x.as_slice::<f32>().expect("f32 in row-major order")
}

/// Returns the elements for writing: in place if nothing else holds the tensor, else of a copy.
pub(in crate::ops) fn values_mut(x: &mut CpuTensor) -> &mut [f32] {
    let len = x.shape().num_elements();
    // A view of a part of its buffer must not be written through.
    if x.storage::<f32>().len() != len || x.as_slice::<f32>().is_none() {
        let shape = x.shape();
        *x = from_values(values(&contiguous(x.clone())).to_vec(), shape);
    }
    x.storage_mut::<f32>()
}

pub(in crate::ops) fn from_values(values: Vec<f32>, shape: Shape) -> CpuTensor {
    CpuTensor::from_data(TensorData::new(values, shape))
}

/// Returns rows of `width` elements per task: enough tasks to balance the load at no cost to start them.
pub(in crate::ops) fn rows_per_task(rows: usize, width: usize) -> usize {
    let tasks = 4 * rayon::current_num_threads();
    let at_least = 4096usize.div_ceil(width.max(1));
    rows.div_ceil(tasks).max(at_least).max(1)
}

/// Defines a function whose body runs with the widest vector instructions of this CPU. The body and
/// all that it calls must be inlined into the version for each instruction set, or it is compiled for
/// the oldest one: so it is a method with `#[inline(always)]`, which a closure cannot be. `S` and the
/// first argument are the instruction set.
macro_rules! vectorised {
    (@output) => { () };
    (@output $result:ty) => { $result };
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident<$simd_type:ident>(
        $simd:ident; $($argument:ident: $type:ty),* $(,)?
    ) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            struct Kernel<T>(T);

            impl pulp::WithSimd for Kernel<($($type,)*)> {
                type Output = vectorised!(@output $($result)?);

                #[inline(always)]
                fn with_simd<$simd_type: pulp::Simd>(self, $simd: $simd_type) -> Self::Output {
                    let Self(($($argument,)*)) = self;
                    $body
                }
            }

            pulp::Arch::new().dispatch(Kernel(($($argument,)*)))
        }
    };
}
pub(in crate::ops) use vectorised;

/// Returns the column sums of `rows` rows of width `c`; `add(rows, sums)` adds some rows to `sums`.
pub(in crate::ops) fn sum_rows(
    rows: usize,
    c: usize,
    add: impl Fn(Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let blocks = rows.div_ceil(SUM_ROWS).max(1);
    let mut partial = vec![0.0f32; blocks * c];
    partial.par_chunks_mut(c).enumerate().for_each(|(block, sums)| {
        let from = block * SUM_ROWS;
        add(from..(from + SUM_ROWS).min(rows), sums);
    });
    let mut total = partial[..c].to_vec();
    for sums in partial[c..].chunks(c) {
        for (total, part) in total.iter_mut().zip(sums) {
            *total += part;
        }
    }
    total
}
