//! Right factors of products, packed in the order in which the products read them.

use std::ops::Range;

use pulp::Simd;

/// Vectors of columns of the widest panel. With 8 rows: 24 sums, three vectors of the panel and one of
/// the strip, of 32 registers.
pub(super) const PANEL: usize = 3;

/// A matrix within its rows or columns in memory.
#[derive(Clone, Copy)]
pub(super) enum Strided<'a> {
    /// Row-major, with this many elements from row to row.
    Rows(&'a [f32], usize),
    /// Column-major, with this many elements from column to column.
    Columns(&'a [f32], usize),
}

/// How a right factor is split into panels.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    depth: usize,
    columns: usize,
    lanes: usize,
    vectors: usize,
    /// Vectors of the widest panel.
    widest: usize,
}

/// A packed factor, or some of its rows and of its first panels.
pub(super) struct PackedPanels<'a> {
    panels: Panels,
    values: &'a [f32],
    depth: Range<usize>,
    /// The number of its panels.
    pub count: usize,
}

impl<'a> PackedPanels<'a> {
    #[inline(always)]
    pub fn panel(&self, index: usize) -> Panel<'a> {
        let Self { panels, ref depth, .. } = *self;
        let (first, vectors) = panels.vectors_of(index);
        let first = first * panels.lanes;
        let width = vectors * panels.lanes;
        let values = &self.values[first * panels.depth..][depth.start * width..depth.end * width];
        Panel { values, vectors, first, columns: width.min(panels.columns - first) }
    }
}

/// A packed panel, or some of its rows.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// `[depth, vectors * lanes]`.
    pub values: &'a [f32],
    pub vectors: usize,
    /// Its first column in the factor.
    pub first: usize,
    /// Columns that are not padding.
    pub columns: usize,
}

impl Panels {
    pub fn new<S: Simd>(depth: usize, columns: usize) -> Self {
        let lanes = S::F32_LANES;
        // With 16 registers, half a strip has 8 sums: of 12 one would be in memory.
        let widest = if S::REGISTER_COUNT >= 32 { PANEL } else { PANEL - 1 };
        Self { depth, columns, lanes, vectors: columns.div_ceil(lanes), widest }
    }

    fn count(&self) -> usize {
        self.vectors.div_ceil(self.widest)
    }

    /// Returns the elements of all packed panels.
    pub fn len(&self) -> usize {
        self.vectors * self.lanes * self.depth
    }

    /// Returns the elements of a row of the product, with padding.
    pub fn width(&self) -> usize {
        self.vectors * self.lanes
    }

    /// Returns the first vector of panel `index` and the number of its vectors. A last panel of one
    /// vector would load more than it multiplies: the last four vectors are two panels of two.
    fn vectors_of(&self, index: usize) -> (usize, usize) {
        let narrow = self.widest == PANEL && self.vectors % PANEL == 1 && self.vectors > 1;
        let first = index * self.widest;
        match (self.count() - index, narrow) {
            (2, true) => (first, 2),
            (1, true) => (first - 1, 2),
            _ => (first, self.widest.min(self.vectors - first)),
        }
    }

    /// Returns the rows `depth` of a packed factor, of the panels that begin before column `end`.
    pub fn of(self, packed: &[f32], depth: Range<usize>, end: usize) -> PackedPanels<'_> {
        let begins = |index: &usize| self.vectors_of(*index).0 * self.lanes < end;
        let count = (0..self.count()).take_while(begins).count();
        PackedPanels { panels: self, values: packed, depth, count }
    }

    /// Packs all of `right`, `[depth, columns]`.
    #[inline(always)]
    pub fn pack(&self, right: Strided, packed: &mut [f32]) {
        for index in 0..self.count() {
            let (first, vectors) = self.vectors_of(index);
            let first = first * self.lanes;
            let width = vectors * self.lanes;
            let columns = width.min(self.columns - first);
            let panel = &mut packed[first * self.depth..][..width * self.depth];
            match right {
                Strided::Rows(values, stride) => {
                    for (k, row) in panel.chunks_exact_mut(width).enumerate() {
                        row[..columns].copy_from_slice(&values[k * stride + first..][..columns]);
                        row[columns..].fill(0.0);
                    }
                }
                Strided::Columns(values, stride) => {
                    for (block, panel) in panel.chunks_mut(SIDE * width).enumerate() {
                        for column in (0..width).step_by(SIDE) {
                            // Columns of padding repeat the last real one.
                            let source = (&values[block * SIDE..], stride);
                            let which = first + column..first + columns;
                            pack_square(source, which, panel, width, column);
                        }
                    }
                }
            }
        }
    }
}

/// Elements of a side of the squares that are transposed at a time.
const SIDE: usize = 16;

/// Transposes rows of columns `which` of a column-major factor to column `to` of a panel's rows.
#[inline(always)]
fn pack_square(
    (values, stride): (&[f32], usize),
    which: Range<usize>,
    rows: &mut [f32],
    width: usize,
    to: usize,
) {
    let count = rows.len() / width;
    let mut square = [0.0; SIDE * SIDE];
    for (j, line) in square.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
        let at = (which.start + j).min(which.end - 1) * stride;
        match values.get(at..at + SIDE) {
            Some(values) if count == SIDE => line.copy_from_slice(values),
            _ => line[..count].copy_from_slice(&values[at..at + count]),
        }
    }
    let square = interleave(&interleave(&interleave(&interleave(&square))));
    for (row, line) in rows.chunks_exact_mut(width).zip(square.as_chunks::<SIDE>().0) {
        let row = &mut row[to..width.min(to + SIDE)];
        match row.as_chunks_mut::<SIDE>().0 {
            [whole] => *whole = *line,
            _ => row.copy_from_slice(&line[..row.len()]),
        }
    }
}

/// Interleaves the halves of a square. That rotates the eight bits of an element's index by one: four
/// of them exchange row and column, in a loop that compilers turn into shuffles.
#[inline(always)]
fn interleave(square: &[f32; SIDE * SIDE]) -> [f32; SIDE * SIDE] {
    const HALF: usize = SIDE * SIDE / 2;
    let mut out = [0.0; SIDE * SIDE];
    for i in 0..HALF {
        out[2 * i] = square[i];
        out[2 * i + 1] = square[HALF + i];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::shared::cpu::vectorised;

    #[test]
    fn a_factor_is_packed_alike_from_rows_and_from_columns() {
        for (depth, columns) in [(1, 1), (16, 16), (33, 50), (70, 130)] {
            pack_both(depth, columns);
        }
    }

    vectorised! {
        fn pack_both<S>(_simd; depth: usize, columns: usize) {
            let rows: Vec<f32> = (0..depth * columns).map(|i| i as f32).collect();
            let transposed: Vec<f32> =
                (0..depth * columns).map(|i| rows[i % depth * columns + i / depth]).collect();
            let panels = Panels::new::<S>(depth, columns);
            let [mut by_rows, mut by_columns] = [vec![0.0; panels.len()], vec![0.0; panels.len()]];
            panels.pack(Strided::Rows(&rows, columns), &mut by_rows);
            panels.pack(Strided::Columns(&transposed, depth), &mut by_columns);
            let [by_rows, by_columns] =
                [&by_rows, &by_columns].map(|packed| panels.of(packed, 0..depth, columns));
            for index in 0..by_rows.count {
                let (a, b) = (by_rows.panel(index), by_columns.panel(index));
                let width = a.values.len() / depth;
                let (a_rows, b_rows) = (a.values.chunks(width), b.values.chunks(width));
                for (k, (a_row, b_row)) in a_rows.zip(b_rows).enumerate() {
                    assert_eq!(a_row[..a.columns], b_row[..a.columns]);
                    assert_eq!(a_row[0], rows[k * columns + a.first]);
                }
            }
        }
    }
}
