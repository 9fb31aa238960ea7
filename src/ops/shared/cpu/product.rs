//! Products of matrices on all cores, by the library `gemm`.
//!
//! burn's own product uses it, too, but for a new tensor each time: half of what a small step spent
//! outside its products went into memory that was just returned and is filled with zeros before it is
//! written. Here the result goes into memory of the caller, where it may be added to what is there.

use gemm::{Parallelism, gemm};

/// A factor of a product: a matrix `[rows, columns]`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Factor<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    /// True if the values are the transposed matrix `[columns, rows]`.
    transposed: bool,
}

impl<'a> Factor<'a> {
    /// `values` begin with the rows of the matrix.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self { values: &values[..rows * columns], rows, columns, transposed: false }
    }

    pub fn transpose(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            transposed: !self.transposed,
            values: self.values,
        }
    }

    /// Returns the elements from one column to the next and from one row to the next.
    fn strides(&self) -> [isize; 2] {
        if self.transposed { [self.rows as isize, 1] } else { [1, self.columns as isize] }
    }
}

/// Computes `left right` into `result`, `[left.rows, right.columns]` in row-major order, or adds it to
/// what is there. No element depends on the number of threads.
#[allow(unsafe_code, reason = "gemm takes pointers")]
pub(in crate::ops) fn multiply(left: Factor, right: Factor, result: &mut [f32], add: bool) {
    let m = left.rows;
    let depth = left.columns;
    let n = right.columns;
    assert_eq!(depth, right.rows, "inner dimensions match");
    assert_eq!(result.len(), m * n, "the result is [rows, columns]");
    let ([left_columns, left_rows], [right_columns, right_rows]) =
        (left.strides(), right.strides());
    // SAFETY: the elements that gemm reads and writes are those of matrices of these sizes and
    // strides, which lie within the slices by the lengths checked here and in `Factor::new`.
    unsafe {
        gemm(
            m,
            n,
            depth,
            result.as_mut_ptr(),
            1,
            n as isize,
            add,
            left.values.as_ptr(),
            left_columns,
            left_rows,
            right.values.as_ptr(),
            right_columns,
            right_rows,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_both_orders_give_the_product_of_f64() {
        for [m, depth, n] in [[1, 1, 1], [3, 5, 7], [65, 33, 130]] {
            let matrix = |rows: usize, columns: usize| -> Vec<f32> {
                (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect()
            };
            let transposed = |values: &[f32], rows: usize, columns: usize| -> Vec<f32> {
                (0..rows * columns).map(|i| values[i % rows * columns + i / rows]).collect()
            };
            let (a, b) = (matrix(m, depth), matrix(depth, n));
            let (at, bt) = (transposed(&a, m, depth), transposed(&b, depth, n));
            let rows = [Factor::new(&a, [m, depth]), Factor::new(&at, [depth, m]).transpose()];
            let columns = [Factor::new(&b, [depth, n]), Factor::new(&bt, [n, depth]).transpose()];
            for (left, right) in rows.iter().flat_map(|l| columns.iter().map(move |r| (*l, *r))) {
                let mut result = vec![f32::NAN; m * n];
                multiply(left, right, &mut result, false);
                multiply(left, right, &mut result, true);
                for (at, value) in result.iter().enumerate() {
                    let term = |k| f64::from(a[at / n * depth + k]) * f64::from(b[k * n + at % n]);
                    let expected = 2.0 * (0..depth).map(term).sum::<f64>();
                    assert!((f64::from(*value) - expected).abs() < 1e-5, "{m} {depth} {n}");
                }
            }
        }
    }
}
