//! Products of matrices on all cores, with work on the rows of the result while they are in the cache.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::memory;
use super::panels::{Panels, Right};
use super::tile::{Left, STRIP, Target, multiply};
use super::vectorised;

/// The most columns of the left factor at a time. A panel of so many rows and a strip stay in the first
/// cache.
const DEPTH: usize = 192;

/// The most rows of the result in one task. Each task reads all panels; with so many rows it does so
/// slower than memory delivers them.
const ROWS: usize = 96;

/// Elements of the right factor that are packed at a time, about: they stay in the second cache. A
/// small factor is packed at once, because tasks start and end with each part.
const PACKED: usize = 512 * 1024;

/// A factor of a product: a matrix `[rows, columns]`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Factor<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    /// The values are those of the transposed matrix `[columns, rows]`.
    transposed: bool,
}

impl<'a> Factor<'a> {
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self { values: &values[..rows * columns], rows, columns, transposed: false }
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Its rows from `row` on and columns from `column` on, as a right factor.
    fn from(&self, row: usize, column: usize) -> Right<'a> {
        match self.transposed {
            true => Right::Columns(&self.values[column * self.rows + row..], self.rows),
            false => Right::Rows(&self.values[row * self.columns + column..], self.columns),
        }
    }

    pub fn transpose(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            transposed: !self.transposed,
            values: self.values,
        }
    }
}

/// The result of a product.
pub(in crate::ops) struct Output<'a> {
    /// Row-major; any values, unless the product is added to them.
    pub values: &'a mut [f32],
    pub add: bool,
    /// A matrix of the same shape, of whose rows the last step gets those that it has of the result.
    pub beside: Option<&'a mut [f32]>,
}

/// Some rows of a result.
pub(in crate::ops) struct Rows<'a> {
    /// The number of the first one.
    pub first: usize,
    pub values: &'a mut [f32],
    /// The same rows of [`Output::beside`]; empty without.
    pub beside: &'a mut [f32],
}

/// Computes `left right`, then `finish` on some rows at a time. No element depends on how the rows are
/// split: its sum runs over the depth in order, in blocks of a fixed size.
pub(in crate::ops) fn product(
    left: Factor,
    right: Factor,
    out: Output,
    finish: impl Fn(Rows) + Sync,
) {
    let (m, depth, n) = (left.rows, left.columns, right.columns);
    assert_eq!(depth, right.rows, "inner dimensions match");
    assert_eq!(out.values.len(), m * n, "the result is [rows, columns]");
    if m * n == 0 {
        return;
    }
    let parts = Parts::new(depth, n);
    let mut packed = memory::take(parts.size());
    let rows = m.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(STRIP).min(ROWS);
    let mut blocks = blocks(out.values, out.beside, rows * n);
    for columns in parts.columns() {
        for depths in parts.depths() {
            let panels = Panels::new(depths.len(), columns.len());
            let packed = &mut packed[..panels.len()];
            pack(&panels, right.from(depths.start, columns.start), packed);
            let last = depths.end == depth && columns.end == n;
            let add = out.add || depths.start > 0;
            let part =
                Part { left, from: depths.start, panels, packed, column: columns.start, n, add };
            blocks.par_iter_mut().enumerate().for_each(|(block, (values, beside))| {
                let first = block * rows;
                pulp::Arch::new().dispatch(Multiply { part: &part, first, values: &mut *values });
                if last {
                    finish(Rows { first, values, beside });
                }
            });
        }
    }
    memory::give(packed);
}

/// The memory of blocks of rows of a result, and of the matrix beside it.
fn blocks<'a>(
    values: &'a mut [f32],
    beside: Option<&'a mut [f32]>,
    size: usize,
) -> Vec<(&'a mut [f32], &'a mut [f32])> {
    let mut beside = beside.map(|beside| beside.chunks_mut(size));
    let mut next = || beside.as_mut().and_then(Iterator::next).unwrap_or_default();
    values.chunks_mut(size).map(|values| (values, next())).collect()
}

fn pack(panels: &Panels, right: Right, packed: &mut [f32]) {
    panels.split(packed).into_par_iter().enumerate().for_each(|(index, panel)| {
        vectorised(|| panels.pack_panel(index, right, panel));
    });
}

/// How a right factor `[depth, n]` is split into parts that are packed at a time.
struct Parts {
    depth: usize,
    n: usize,
    /// The most rows and columns of a part.
    rows: usize,
    columns: usize,
}

impl Parts {
    fn new(depth: usize, n: usize) -> Self {
        let at_once = (PACKED / n / DEPTH).max(1) * DEPTH;
        let even = |len: usize, most: usize| len.div_ceil(len.div_ceil(most).max(1));
        let rows = even(depth, at_once).next_multiple_of(STRIP);
        // Whole panels of any vectors.
        Self { depth, n, rows, columns: (PACKED / rows).next_multiple_of(STRIP * DEPTH) }
    }

    fn size(&self) -> usize {
        Panels::new(self.rows.min(self.depth), self.columns.min(self.n)).len()
    }

    fn depths(&self) -> impl Iterator<Item = Range<usize>> {
        ranges(self.depth, self.rows)
    }

    fn columns(&self) -> impl Iterator<Item = Range<usize>> {
        ranges(self.n, self.columns)
    }
}

fn ranges(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |from| from..(from + size).min(len))
}

/// A part of a product: rows `from..` of the right factor, packed, and columns `column..`.
struct Part<'a> {
    left: Factor<'a>,
    from: usize,
    panels: Panels,
    packed: &'a [f32],
    column: usize,
    /// Columns of the result.
    n: usize,
    add: bool,
}

struct Multiply<'a> {
    part: &'a Part<'a>,
    /// The first row.
    first: usize,
    /// Rows of the result.
    values: &'a mut [f32],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { part, first, values } = self;
        let Part { left, panels, packed, n, .. } = *part;
        let rows = values.len() / n;
        let depth = panels.depth.div_ceil(panels.depth.div_ceil(DEPTH));
        let len = if left.transposed { rows.next_multiple_of(STRIP) * depth } else { 0 };
        let mut strips = memory::take(len);
        for depths in ranges(panels.depth, depth) {
            let from = part.from + depths.start;
            if left.transposed {
                pack_strips(&left, first..first + rows, from..from + depths.len(), &mut strips);
            }
            for index in 0..panels.count() {
                let panel = panels.panel(packed, index, depths.start, depths.end);
                for strip in (0..rows).step_by(STRIP) {
                    let left = match left.transposed {
                        true => Left::Columns(&strips[strip * depths.len()..], STRIP),
                        false => {
                            let at = (first + strip) * left.columns + from;
                            Left::Rows(&left.values[at..], left.columns)
                        }
                    };
                    let target = Target {
                        values: &mut values[strip * n + part.column + panel.first..],
                        stride: n,
                        rows: (rows - strip).min(STRIP),
                        add: part.add || depths.start > 0,
                    };
                    multiply(simd, left, panel, target);
                }
            }
        }
        memory::give(strips);
    }
}

/// Packs some columns of some rows of a transposed left factor as strips `[columns, STRIP]`. Unpacked,
/// the columns of a strip are a row apart, which for many widths are few sets of the cache.
#[inline(always)]
fn pack_strips(left: &Factor, rows: Range<usize>, columns: Range<usize>, strips: &mut [f32]) {
    let size = STRIP * columns.len();
    for (strip, first) in strips.chunks_mut(size).zip(rows.clone().step_by(STRIP)) {
        let real = (rows.end - first).min(STRIP);
        for (packed, column) in strip.as_chunks_mut::<STRIP>().0.iter_mut().zip(columns.clone()) {
            let at = column * left.rows + first;
            match left.values[at..].first_chunk() {
                Some(values) if real == STRIP => *packed = *values,
                // Whatever follows the last row: sums of it are not stored.
                _ => packed[..real].copy_from_slice(&left.values[at..at + real]),
            }
        }
    }
}
