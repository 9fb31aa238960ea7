//! Products of matrices in the registers: the loop that attention spends its time in.
//!
//! A strip of [`STRIP`] rows of the left factor meets a panel of up to [`PANEL`] vectors of columns of
//! the right factor. The sums of both stay in the registers while the loop runs over the depth, so
//! that each multiplication and addition of vectors needs about half a load and no store (Goto and van
//! de Geijn 2008, "Anatomy of high-performance matrix multiplication"). Panels are packed: the loop
//! reads them from the first to the last element.

use pulp::{Simd, WithSimd};

use super::panels::{PANEL, PackedPanels, Panel, Strided};
use crate::ops::shared::cpu::vector::WIDEST;

pub(super) const STRIP: usize = 8;

/// The destination of a strip's product with a panel: at most [`STRIP`] rows, `stride` elements apart.
pub(super) struct Target<'a> {
    pub values: &'a mut [f32],
    pub stride: usize,
    pub rows: usize,
    pub add: bool,
}

impl Target<'_> {
    /// Row `r` from the panel's first column on.
    #[inline(always)]
    fn row(&mut self, r: usize, panel: Panel) -> &mut [f32] {
        &mut self.values[r * self.stride + panel.first..]
    }
}

/// The product of the panels of `right` and a strip of `left`, which begins at the strip's first row and
/// the first column of the depth. Of each column of a column-major factor a whole strip can be read,
/// whatever it holds beyond the last row.
///
/// It is a separate function that all products call: inlined, values that the caller keeps in registers
/// would leave too few for the sums.
#[inline(always)]
pub(super) fn multiply<S: Simd>(simd: S, left: Strided, right: PackedPanels, to: Target) {
    struct TileProduct<'a>(Strided<'a>, PackedPanels<'a>, Target<'a>);

    impl WithSimd for TileProduct<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self(left, right, mut to) = self;
            for index in 0..right.count {
                let panel = right.panel(index);
                match panel.vectors {
                    1 => strip::<S, 1>(simd, left, panel, &mut to),
                    2 => strip::<S, 2>(simd, left, panel, &mut to),
                    _ => strip::<S, PANEL>(simd, left, panel, &mut to),
                }
            }
        }
    }

    simd.vectorize(TileProduct(left, right, to));
}

/// With fewer registers, a strip is two of half as many rows.
#[inline(always)]
fn strip<S: Simd, const V: usize>(simd: S, left: Strided, panel: Panel, to: &mut Target) {
    if S::REGISTER_COUNT >= 32 {
        rows::<S, STRIP, V>(simd, left, 0, panel, to);
    } else {
        for first in (0..to.rows).step_by(STRIP / 2) {
            rows::<S, { STRIP / 2 }, V>(simd, left, first, panel, to);
        }
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "an iterator may keep the sums in memory")]
fn rows<S: Simd, const R: usize, const V: usize>(
    simd: S,
    left: Strided,
    first: usize,
    panel: Panel,
    to: &mut Target,
) {
    let right = S::as_simd_f32s(panel.values).0.as_chunks::<V>().0;
    let sums = match left {
        Strided::Rows(values, stride) => {
            let mut rows: [&[f32]; R] = [&[]; R];
            for (r, row) in rows.iter_mut().enumerate() {
                // Beyond the last row, that row again: its sums are not stored.
                *row = &values[(first + r).min(to.rows - 1) * stride..][..right.len()];
            }
            sums(simd, right, RowMajor(rows))
        }
        Strided::Columns(values, stride) => {
            sums(simd, right, ColumnMajor { values: &values[first..], stride })
        }
    };
    // The bodies of these loops are so small that the loops are unrolled: an index that is known at run
    // time only would keep the sums in memory, not in registers.
    let width = V * S::F32_LANES;
    if panel.columns < width || to.rows < first + R {
        let mut whole = [0.0; STRIP * PANEL * WIDEST];
        let values = S::as_mut_simd_f32s(&mut whole).0;
        for r in 0..R {
            for v in 0..V {
                values[r * V + v] = sums[r][v];
            }
        }
        store_part(&whole, width, first, panel, to);
        return;
    }
    for r in 0..R {
        let add = to.add;
        let row = &mut to.row(first + r, panel)[..width];
        let row = &mut S::as_mut_simd_f32s(row).0[..V];
        for v in 0..V {
            row[v] = if add { simd.add_f32s(row[v], sums[r][v]) } else { sums[r][v] };
        }
    }
}

/// Stores the rows and columns of `sums`, in rows of `width`, that the product has.
#[inline(never)]
fn store_part(sums: &[f32], width: usize, first: usize, panel: Panel, to: &mut Target) {
    for (r, sums) in sums.chunks(width).enumerate().take(to.rows - first) {
        let add = to.add;
        let row = &mut to.row(first + r, panel)[..panel.columns];
        for (value, sum) in row.iter_mut().zip(sums) {
            *value = if add { *value + sum } else { *sum };
        }
    }
}

/// Columns of `R` elements. A trait and no closure, which a compiler may leave a call.
trait LeftColumns<const R: usize> {
    fn column(&self, k: usize) -> [f32; R];
}

struct RowMajor<'a, const R: usize>([&'a [f32]; R]);

impl<const R: usize> LeftColumns<R> for RowMajor<'_, R> {
    #[inline(always)]
    fn column(&self, k: usize) -> [f32; R] {
        let mut column = [0.0; R];
        for (value, row) in column.iter_mut().zip(&self.0) {
            *value = row[k];
        }
        column
    }
}

struct ColumnMajor<'a> {
    values: &'a [f32],
    stride: usize,
}

impl<const R: usize> LeftColumns<R> for ColumnMajor<'_> {
    #[inline(always)]
    fn column(&self, k: usize) -> [f32; R] {
        let values = &self.values[k * self.stride..][..R];
        let mut column = [0.0; R];
        column.copy_from_slice(values);
        column
    }
}

/// Returns the sums over the depth. Multiplication and addition are fused where the CPU can.
#[inline(always)]
fn sums<S: Simd, const R: usize, const V: usize>(
    simd: S,
    right: &[[S::f32s; V]],
    left: impl LeftColumns<R>,
) -> [[S::f32s; V]; R] {
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    // By an index below the number of rows: nothing is left to check in the loop.
    for k in 0..right.len() {
        let left = left.column(k);
        let right = &right[k];
        for r in 0..R {
            let factor = simd.splat_f32s(left[r]);
            for v in 0..V {
                sums[r][v] = simd.mul_add_e_f32s(factor, right[v], sums[r][v]);
            }
        }
    }
    sums
}
