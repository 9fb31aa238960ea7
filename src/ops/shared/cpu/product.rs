//! Products of matrices on all cores, with work on the rows of the result while they are in the cache.

use std::ops::{Range, RangeInclusive};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::memory;
use super::panels::{Panels, Right};
use super::tile::{Left, STRIP, Target, multiply};

/// Columns of the left factor at a time: a panel of so many rows and a strip stay in the first cache.
const DEPTH: usize = 192;

/// Rows of the result in one task: at least, because each task packs its panels, and at most, because
/// the rows of the left factor stay in the second cache from panel to panel.
const ROWS: RangeInclusive<usize> = 64..=512;

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

    /// Its rows from `row` on, as a right factor.
    fn from_row(&self, row: usize) -> Right<'a> {
        match self.transposed {
            true => Right::Columns(&self.values[row..], self.rows),
            false => Right::Rows(&self.values[row * self.columns..], self.columns),
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
    /// A matrix of the same shape, of which the last step gets the elements at the same places.
    pub beside: Option<&'a mut [f32]>,
}

/// Some neighbouring elements of a row of a result.
pub(in crate::ops) struct Segment<'a> {
    pub row: usize,
    pub columns: Range<usize>,
    pub values: &'a mut [f32],
    /// The same elements of [`Output::beside`]; empty without.
    pub beside: &'a mut [f32],
}

/// The last step of a product, on each element while it is in the cache. A trait and no closure, which
/// would not be inlined: see [`vectorised`](super::vectorised).
pub(in crate::ops) trait Epilogue: Sync {
    /// Has the attribute `#[inline(always)]`.
    fn finish(&self, segment: Segment);
}

/// No last step.
impl Epilogue for () {
    #[inline(always)]
    fn finish(&self, _: Segment) {}
}

/// Computes `left right`, then `epilogue` on all elements, in segments of rows.
///
/// A task computes some rows and columns of the result and packs what it needs: memory that one core
/// has written and another one reads costs more than packing it again. No element depends on how the
/// result is split: its sum runs over the depth in order, in blocks of a fixed size.
pub(in crate::ops) fn product(left: Factor, right: Factor, out: Output, epilogue: impl Epilogue) {
    let (m, depth, n) = (left.rows, left.columns, right.columns);
    assert_eq!(depth, right.rows, "inner dimensions match");
    assert_eq!(out.values.len(), m * n, "the result is [rows, columns]");
    if m * n == 0 {
        return;
    }
    let panels = Panels::new(depth, n);
    let grid = Grid::new(m, &panels);
    let beside = out.beside.map(|beside| grid.split(beside));
    let mut beside = beside.into_iter().flatten();
    let tasks: Vec<_> = grid
        .split(out.values)
        .into_iter()
        .enumerate()
        .map(|(index, values)| (grid.tile(index), values, beside.next().unwrap_or_default()))
        .collect();
    tasks.into_par_iter().for_each(|(tile, values, beside)| {
        let part = Part { left, right, panels, tile, add: out.add };
        pulp::Arch::new().dispatch(Multiply { part, values, beside, epilogue: &epilogue });
    });
}

/// The tasks of a product: blocks of rows by groups of panels.
struct Grid {
    m: usize,
    n: usize,
    /// Rows of a block.
    rows: usize,
    /// The panels and the columns of each group.
    groups: Vec<(Range<usize>, Range<usize>)>,
}

/// The rows and panels of one task.
struct Tile {
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Grid {
    fn new(m: usize, panels: &Panels) -> Self {
        // More tasks than threads, which other programs slow down.
        let tasks = 3 * rayon::current_num_threads();
        let groups = panels.count().min(tasks);
        let rows = m.div_ceil(tasks.div_ceil(groups)).clamp(*ROWS.start(), *ROWS.end());
        let range = |group: usize| {
            let panel = |group: usize| group * panels.count() / groups;
            let range = panel(group)..panel(group + 1);
            let columns = panels.columns_of(&range);
            (range, columns)
        };
        Self {
            m,
            n: panels.columns,
            rows: rows.next_multiple_of(STRIP),
            groups: (0..groups).map(range).collect(),
        }
    }

    fn tile(&self, index: usize) -> Tile {
        let first = index / self.groups.len() * self.rows;
        let rows = first..(first + self.rows).min(self.m);
        Tile { rows, panels: self.groups[index % self.groups.len()].0.clone() }
    }

    /// The segments of rows of a matrix `[m, n]` that belong to each task.
    fn split<'a>(&self, values: &'a mut [f32]) -> Vec<Vec<&'a mut [f32]>> {
        let mut tasks = Vec::with_capacity(self.m.div_ceil(self.rows) * self.groups.len());
        for block in values.chunks_mut(self.rows * self.n) {
            let first = tasks.len();
            let rows = block.len() / self.n;
            tasks.extend(self.groups.iter().map(|_| Vec::with_capacity(rows)));
            for mut row in block.chunks_mut(self.n) {
                for (segments, (_, columns)) in tasks[first..].iter_mut().zip(&self.groups) {
                    let (segment, rest) = row.split_at_mut(columns.len());
                    segments.push(segment);
                    row = rest;
                }
            }
        }
        tasks
    }
}

/// What a task computes.
struct Part<'a> {
    left: Factor<'a>,
    right: Factor<'a>,
    panels: Panels,
    tile: Tile,
    add: bool,
}

struct Multiply<'a, 'b, E> {
    part: Part<'a>,
    values: Vec<&'b mut [f32]>,
    beside: Vec<&'b mut [f32]>,
    epilogue: &'a E,
}

impl<E: Epilogue> WithSimd for Multiply<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { part, mut values, beside, epilogue } = self;
        part.multiply(simd, &mut values);
        let columns = part.panels.columns_of(&part.tile.panels);
        let mut beside = beside.into_iter();
        for (row, values) in part.tile.rows.zip(values) {
            let beside = beside.next().unwrap_or_default();
            epilogue.finish(Segment { row, columns: columns.clone(), values, beside });
        }
    }
}

impl Part<'_> {
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, values: &mut [&mut [f32]]) {
        let Self { left, right, panels, add, .. } = *self;
        let Tile { rows, panels: group } = &self.tile;
        let first_column = panels.columns_of(group).start;
        let depth = panels.depth;
        // Blocks of even sizes.
        let size = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).max(1);
        let strips_len =
            if left.transposed { values.len().next_multiple_of(STRIP) * size } else { 0 };
        let mut strips = memory::take(strips_len);
        let mut packed = memory::take(panels.widest() * size);
        for from in (0..depth).step_by(size) {
            let to = (from + size).min(depth);
            if left.transposed {
                pack_strips(&left, rows.clone(), from..to, &mut strips);
            }
            for index in group.clone() {
                let panel = panels.pack_rows(index, right.from_row(from), to - from, &mut packed);
                let column = panel.first - first_column;
                for (strip, values) in values.chunks_mut(STRIP).enumerate() {
                    let first = strip * STRIP;
                    let left = match left.transposed {
                        true => Left::Columns(&strips[first * (to - from)..], STRIP),
                        false => {
                            let at = (rows.start + first) * depth + from;
                            Left::Rows(&left.values[at..], depth)
                        }
                    };
                    let target = Target { rows: values, column, add: add || from > 0 };
                    multiply(simd, left, panel, target);
                }
            }
        }
        memory::give(strips);
        memory::give(packed);
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
