//! The strip of rows that a plane owns, and its products.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use burn_cubecl::cubecl::prelude::*;

use super::layout::{CELL_STRIDE, COLUMNS, HeadRows, PLANES, StripLayout};

/// Matrices are loaded from addresses that are multiples of this many bytes.
const ALIGNMENT: usize = 32;

/// Rows of a strip, as left factors of products over the head.
pub(super) type Rows<F> = Sequence<Matrix<F>>;
/// Rows of a sum, as wide as the head.
pub(super) type Sums = Sequence<Matrix<f32>>;

/// A plane's strip and the shared memory of its products, whose factors have the dtype `F`. That is the
/// dtype `T` of the tensors or, if they are f32, tf32.
#[derive(CubeType)]
pub(super) struct Strip<F: Float, N: Size> {
    /// The strip's first row in the workgroup's.
    pub first: usize,
    /// The lane's row in the strip.
    row: usize,
    /// The lane's number among those that share the row.
    pub nth: usize,
    staged: Shared<[Vector<F, N>]>,
    scores: Shared<[Vector<f32, N>]>,
    factors: Shared<[Vector<F, N>]>,
    #[cube(comptime)]
    layout: StripLayout,
}

#[cube]
impl<F: Float, N: Size> Strip<F, N> {
    pub fn new(#[comptime] layout: StripLayout) -> Strip<F, N> {
        let share = comptime!(layout.share());
        let side = comptime!(layout.side);
        let lane = UNIT_POS_X as usize;
        let staged = comptime!(layout.staged() / layout.vector);
        let cells = comptime!(layout.cells() / layout.vector);
        Strip::<F, N> {
            first: UNIT_POS_Y as usize * side,
            row: lane / share,
            nth: lane % share,
            staged: Shared::new_aligned_slice(staged, ALIGNMENT),
            scores: Shared::new_aligned_slice(cells, ALIGNMENT),
            factors: Shared::new_aligned_slice(cells, ALIGNMENT),
            layout,
        }
    }

    /// Returns the lane's row in the workgroup's.
    pub fn own_row(&self) -> usize {
        self.first + self.row
    }

    /// Stages `count` rows from `first` on, as staged rows from `to` on, by the whole workgroup.
    pub fn stage<T: Float>(
        &mut self,
        source: &[Vector<T, N>],
        rows: &HeadRows,
        first: usize,
        #[comptime] to: usize,
        #[comptime] count: usize,
    ) {
        let n = comptime!(self.layout.vector);
        let size = comptime!(self.layout.size / n);
        let width = comptime!(self.layout.width() / n);
        let stride = comptime!(self.layout.staged_stride() / n);
        let units = comptime!(PLANES * self.layout.lanes);
        let mut i = UNIT_POS as usize;
        while i < comptime!(count * width) {
            let row = i / width;
            let d = i % width;
            let mut value = Vector::<F, N>::new(F::new(0.0));
            if d < size {
                value = Vector::cast_from(source[rows.at(first + row) + d]);
            }
            self.staged[(to + row) * stride + d] = value;
            i += units;
        }
    }

    /// Stages the workgroup's rows from `first` on and returns the strip's. The next need a barrier.
    pub fn load_rows<T: Float>(
        &mut self,
        source: &[Vector<T, N>],
        rows: &HeadRows,
        first: usize,
    ) -> Rows<F> {
        let layout = comptime!(self.layout);
        let stride = comptime!(layout.staged_stride());
        self.stage(source, rows, first, 0usize, comptime!(layout.rows()));
        sync_cube();
        let mut loaded = Rows::<F>::new();
        #[unroll]
        for d in 0..comptime!(layout.width() / layout.depth) {
            let at = (self.first * stride + comptime!(d * layout.depth)) / layout.vector;
            let from = &self.staged[at..at + 1];
            loaded.push(factor(from, MatrixIdent::A, MatrixLayout::RowMajor, layout, stride));
        }
        loaded
    }

    /// Returns sums as wide as the head, all 0.
    pub fn no_sums(&self) -> Sums {
        let mut sums = Sums::new();
        #[unroll]
        for _ in 0..comptime!(self.layout.matrices()) {
            sums.push(no_sum(self.layout));
        }
        sums
    }

    /// Writes the products of rows over the head with `COLUMNS` staged rows to the strip's scores.
    pub fn multiply(&mut self, rows: &Rows<F>, #[comptime] first: usize) {
        let layout = comptime!(self.layout);
        sync_plane();
        #[unroll]
        for column in 0..comptime!(COLUMNS / layout.side) {
            let sum = no_sum(layout);
            #[unroll]
            for d in 0..comptime!(layout.width() / layout.depth) {
                let right = self.staged_factor(
                    comptime!(first + column * layout.side),
                    comptime!(d * layout.depth),
                    MatrixLayout::ColMajor,
                );
                cmma::execute(&rows[d], &right, &sum, &sum);
            }
            self.put(&sum, column);
        }
        sync_plane();
    }

    /// Adds the products of the strip's factors with `COLUMNS` staged rows to sums.
    pub fn accumulate(&self, sums: &mut Sums, #[comptime] first: usize) {
        let layout = comptime!(self.layout);
        sync_plane();
        #[unroll]
        for k in 0..comptime!(COLUMNS / layout.depth) {
            let at = self.matrix(comptime!(k * layout.depth));
            let from = &self.factors[at..at + 1];
            let left = factor(from, MatrixIdent::A, MatrixLayout::RowMajor, layout, CELL_STRIDE);
            #[unroll]
            for d in 0..comptime!(layout.matrices()) {
                let right = self.staged_factor(
                    comptime!(first + k * layout.depth),
                    comptime!(d * layout.side),
                    MatrixLayout::RowMajor,
                );
                cmma::execute(&left, &right, &sums[d], &sums[d]);
            }
        }
    }

    /// Returns the matrix of the staged rows that starts at a row and a column, as a right factor: of
    /// their transpose if it is `ColMajor`.
    fn staged_factor(
        &self,
        #[comptime] row: usize,
        #[comptime] column: usize,
        #[comptime] order: MatrixLayout,
    ) -> Matrix<F> {
        let layout = comptime!(self.layout);
        let stride = comptime!(layout.staged_stride());
        let at = comptime!((row * stride + column) / layout.vector);
        factor(&self.staged[at..at + 1], MatrixIdent::B, order, layout, stride)
    }

    /// Returns the offset of the matrix of the strip's scores or factors that starts at a column, in
    /// vectors.
    fn matrix(&self, #[comptime] column: usize) -> usize {
        (self.first * CELL_STRIDE + column) / comptime!(self.layout.vector)
    }

    fn put(&mut self, sum: &Matrix<f32>, #[comptime] column: usize) {
        let at = self.matrix(comptime!(column * self.layout.side));
        cmma::store(
            &mut self.scores[at..at + 1],
            sum,
            comptime!(CELL_STRIDE as u32),
            MatrixLayout::RowMajor,
        );
    }

    /// Returns the offset of the lane's vector `j` of its row, in vectors.
    fn cell(&self, #[comptime] j: usize) -> usize {
        let stride = comptime!(CELL_STRIDE / self.layout.vector);
        self.own_row() * stride + self.nth + comptime!(j * self.layout.share())
    }

    /// Returns the column of the lane's element `j` in the tile.
    pub fn column(&self, #[comptime] j: usize) -> usize {
        let n = comptime!(self.layout.vector);
        self.nth * n + comptime!(j / n * n * self.layout.share() + j % n)
    }

    pub fn scores(&self) -> Array<f32> {
        let stride = comptime!(CELL_STRIDE / self.layout.vector);
        self.own(&self.scores, self.own_row() * stride)
    }

    /// Returns the lane's elements of the row of a tile that starts at `start`, in vectors.
    pub fn own(&self, rows: &[Vector<f32, N>], start: usize) -> Array<f32> {
        let n = comptime!(self.layout.vector);
        let elements = comptime!(self.layout.elements());
        let mut own = Array::<f32>::new(elements);
        #[unroll]
        for j in 0..comptime!(elements / n) {
            let values = rows[start + self.nth + comptime!(j * self.layout.share())];
            #[unroll]
            for i in 0..n {
                own[comptime!(j * n + i)] = values.extract(i);
            }
        }
        own
    }

    /// Writes the lane's factors, rounded.
    pub fn set_factors(&mut self, values: &Array<f32>) {
        let n = comptime!(self.layout.vector);
        sync_plane();
        #[unroll]
        for j in 0..comptime!(self.layout.elements() / n) {
            let mut factors = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for i in 0..n {
                factors.insert(i, values[comptime!(j * n + i)]);
            }
            let at = self.cell(j);
            self.factors[at] = Vector::cast_from(factors);
        }
    }

    /// Returns the product of two rows, the same in all lanes that share the lane's row.
    pub fn row_product<T: Float>(&self, a: &[Vector<T, N>], b: &[Vector<T, N>], at: usize) -> f32 {
        let mut products = Vector::<f32, N>::new(0.0f32);
        let mut d = self.nth;
        while d < comptime!(self.layout.size / self.layout.vector) {
            products +=
                Vector::<f32, N>::cast_from(a[at + d]) * Vector::<f32, N>::cast_from(b[at + d]);
            d += comptime!(self.layout.share());
        }
        self.row_sum(products.vector_sum())
    }

    /// Returns the sum of `own` over the lanes that share a row.
    pub fn row_sum(&self, own: f32) -> f32 {
        let mut sum = own;
        #[unroll]
        for i in 0..comptime!(self.layout.share().ilog2()) {
            sum += plane_shuffle_xor(sum, comptime!(1u32 << i));
        }
        sum
    }

    /// Returns the largest `own` of the lanes that share a row.
    pub fn row_max(&self, own: f32) -> f32 {
        let mut largest = own;
        #[unroll]
        for i in 0..comptime!(self.layout.share().ilog2()) {
            largest = max(largest, plane_shuffle_xor(largest, comptime!(1u32 << i)));
        }
        largest
    }

    /// Multiplies each row of sums by its lanes' `by`, through the scores.
    pub fn rescale(&mut self, sums: &mut Sums, by: f32) {
        let layout = comptime!(self.layout);
        #[unroll]
        for chunk in 0..comptime!(layout.chunks()) {
            self.put_chunk(&*sums, chunk);
            #[unroll]
            for j in 0..comptime!(layout.elements() / layout.vector) {
                let at = self.cell(j);
                self.scores[at] *= Vector::new(by);
            }
            sync_plane();
            #[unroll]
            for column in 0..comptime!(layout.in_chunk(chunk)) {
                let at = self.matrix(comptime!(column * layout.side));
                let d = comptime!(layout.first_in_chunk(chunk) + column);
                cmma::load_with_layout(
                    sums.index_mut(d),
                    &self.scores[at..at + 1],
                    comptime!(CELL_STRIDE as u32),
                    MatrixLayout::RowMajor,
                );
            }
        }
    }

    /// Writes sums, each row times its lanes' `by`, as `rows` from `first` on.
    pub fn store<T: Float>(
        &mut self,
        sums: &Sums,
        target: &mut [Vector<T, N>],
        rows: &HeadRows,
        first: usize,
        by: f32,
    ) {
        let layout = comptime!(self.layout);
        let n = comptime!(layout.vector);
        let size = comptime!(layout.size / n);
        let width = comptime!(COLUMNS / n);
        #[unroll]
        for chunk in 0..comptime!(layout.chunks()) {
            self.put_chunk(sums, chunk);
            // Side by side, unlike elsewhere: the lanes write rows as they lie in memory.
            #[unroll]
            for j in 0..comptime!(layout.elements() / n) {
                let i = UNIT_POS_X as usize + comptime!(j * layout.lanes);
                let row = i / width;
                let column = i % width;
                let factor = plane_shuffle(by, (row * comptime!(layout.share())) as u32);
                let d = column + comptime!(chunk * width);
                let position = first + self.first + row;
                if d < size && position <= rows.last {
                    let at = (self.first + row) * comptime!(CELL_STRIDE / n) + column;
                    target[rows.at(position) + d] =
                        Vector::cast_from(self.scores[at] * Vector::new(factor));
                }
            }
        }
    }

    /// Writes `COLUMNS` columns of sums to the scores.
    fn put_chunk(&mut self, sums: &Sums, #[comptime] chunk: usize) {
        let layout = comptime!(self.layout);
        sync_plane();
        #[unroll]
        for column in 0..comptime!(layout.in_chunk(chunk)) {
            self.put(&sums[comptime!(layout.first_in_chunk(chunk) + column)], column);
        }
        sync_plane();
    }
}

#[cube]
fn no_sum(#[comptime] layout: StripLayout) -> Matrix<f32> {
    let side = comptime!(layout.side);
    let depth = comptime!(layout.depth);
    let order = MatrixLayout::Undefined;
    Matrix::<f32>::from_value(MatrixIdent::Accumulator, side, side, depth, order, 0.0f32)
}

/// Returns a factor from shared memory. The stride is in elements.
#[cube]
fn factor<F: Float, N: Size>(
    from: &[Vector<F, N>],
    #[comptime] ident: MatrixIdent,
    #[comptime] order: MatrixLayout,
    #[comptime] layout: StripLayout,
    #[comptime] stride: usize,
) -> Matrix<F> {
    // Filled because an uninitialised one takes unsafe code; compilers drop it.
    let side = comptime!(layout.side);
    let depth = comptime!(layout.depth);
    let mut matrix = Matrix::<F>::from_value(ident, side, side, depth, order, F::new(0.0));
    cmma::load(&mut matrix, from, comptime!(stride as u32));
    matrix
}
