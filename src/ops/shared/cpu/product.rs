//! Products of matrices on all cores, with work on the rows of the result while they are in the cache.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::memory;
use super::panels::{Panels, Right};
use super::tile::{Left, STRIP, Target, multiply};
use super::vectorised;

/// The most columns of the left factor at a time. A panel of so many rows is read again and again from
/// the second cache, a strip from the first.
const DEPTH: usize = 192;

/// The most rows of the result in one task. Each task reads all panels; with so many rows it does so
/// slower than memory delivers them.
const ROWS: usize = 96;

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
    let panels = Panels::new(depth, n);
    let mut packed = memory::take(panels.len());
    let source = match right.transposed {
        true => Right::Columns(right.values, depth),
        false => Right::Rows(right.values, n),
    };
    panels.split(&mut packed).into_par_iter().enumerate().for_each(|(index, panel)| {
        vectorised(|| panels.pack_panel(index, source, panel));
    });
    let rows = m.div_ceil(4 * rayon::current_num_threads()).next_multiple_of(STRIP).min(ROWS);
    let mut beside = out.beside.map(|values| values.chunks_mut(rows * n));
    let blocks: Vec<Rows> = out
        .values
        .chunks_mut(rows * n)
        .enumerate()
        .map(|(block, values)| {
            let beside = beside.as_mut().and_then(Iterator::next).unwrap_or_default();
            Rows { first: block * rows, values, beside }
        })
        .collect();
    blocks.into_par_iter().for_each(|rows| {
        let block = Block { left, panels, packed: &packed, add: out.add, first: rows.first };
        pulp::Arch::new().dispatch(Multiply { block, values: &mut *rows.values });
        finish(rows);
    });
    memory::give(packed);
}

/// Rows of the result from row `first` on.
struct Block<'a> {
    left: Factor<'a>,
    panels: Panels,
    packed: &'a [f32],
    add: bool,
    first: usize,
}

struct Multiply<'a> {
    block: Block<'a>,
    values: &'a mut [f32],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { block, values } = self;
        let (depth, n) = (block.panels.depth, block.panels.columns);
        let rows = values.len() / n;
        let size = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).max(1);
        let len = if block.left.transposed { rows.next_multiple_of(STRIP) * size } else { 0 };
        let mut strips = memory::take(len);
        for from in (0..depth).step_by(size) {
            let to = (from + size).min(depth);
            if block.left.transposed {
                pack_strips(&block, rows, from, to, &mut strips);
            }
            for index in 0..block.panels.count() {
                let panel = block.panels.panel(block.packed, index, from, to);
                for strip in (0..rows).step_by(STRIP) {
                    let left = match block.left.transposed {
                        true => Left::Columns(&strips[strip * (to - from)..], STRIP),
                        false => {
                            let first = (block.first + strip) * depth + from;
                            Left::Rows(&block.left.values[first..], depth)
                        }
                    };
                    let target = Target {
                        values: &mut values[strip * n + panel.first..],
                        stride: n,
                        rows: (rows - strip).min(STRIP),
                        add: block.add || from > 0,
                    };
                    multiply(simd, left, panel, target);
                }
            }
        }
        memory::give(strips);
    }
}

/// Packs columns `from..to` of `rows` rows of a transposed left factor as strips `[to - from, STRIP]`.
/// Unpacked, the columns of a strip are a row apart, which for many widths are few sets of the cache.
#[inline(always)]
fn pack_strips(block: &Block, rows: usize, from: usize, to: usize, strips: &mut [f32]) {
    let stride = block.left.rows;
    let count = rows.div_ceil(STRIP);
    for (index, strip) in strips.chunks_mut(STRIP * (to - from)).enumerate().take(count) {
        let first = index * STRIP;
        let real = (rows - first).min(STRIP);
        let mut column = from * stride + block.first + first;
        for packed in strip.as_chunks_mut::<STRIP>().0 {
            match block.left.values.get(column..column + STRIP) {
                Some(values) if real == STRIP => packed.copy_from_slice(values),
                // Whatever follows the last row: sums of it are not stored.
                _ => packed[..real].copy_from_slice(&block.left.values[column..column + real]),
            }
            column += stride;
        }
    }
}
