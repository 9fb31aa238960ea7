//! How strips of rows lie in shared memory and their tensors in memory.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

pub(super) const PLANES: usize = 4;

/// Positions of the other side in a tile.
pub(super) const COLUMNS: usize = 32;

/// Elements between two rows in shared memory beyond their length. Matrices are loaded with one
/// stride, which rules out a swizzle: with 16 bytes more, eight rows of f16 lie in different banks.
const PADDING: usize = 8;

/// The distance of two rows of scores or of factors, in elements.
pub(super) const CELL_STRIDE: usize = COLUMNS + PADDING;

/// The compile-time parameters of all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StripLayout {
    pub size: usize,
    pub vector: usize,
    /// Rows and columns of a matrix of sums; the rows of a strip.
    pub side: usize,
    /// Columns of a left factor, rows of a right one; divides `side`.
    pub depth: usize,
    /// The bytes of an element of a factor.
    pub bytes: usize,
    /// Invocations of a plane, a multiple of `side`.
    pub lanes: usize,
    pub dropout: bool,
}

impl StripLayout {
    /// Returns the positions that a workgroup owns.
    pub fn rows(self) -> usize {
        PLANES * self.side
    }

    /// Returns the matrices of sums side by side in a head. The last one is filled up with zeros.
    pub fn matrices(self) -> usize {
        self.size.div_ceil(self.side)
    }

    /// Returns the columns of a head's matrices.
    pub fn width(self) -> usize {
        self.matrices() * self.side
    }

    pub fn memory(self) -> usize {
        self.bytes * self.staged() + (4 + self.bytes) * self.cells() + 8 * COLUMNS
    }

    /// Returns the staged elements: a tile of two parts or, at first, the workgroup's rows of one.
    pub(super) fn staged(self) -> usize {
        self.rows().max(2 * COLUMNS) * self.staged_stride()
    }

    /// Returns the elements of all strips of a tile.
    pub(super) fn cells(self) -> usize {
        self.rows() * CELL_STRIDE
    }

    pub(super) fn staged_stride(self) -> usize {
        self.width() + PADDING
    }

    /// Returns the lanes that share a row.
    pub(super) fn share(self) -> usize {
        self.lanes / self.side
    }

    /// Returns the chunks of `COLUMNS` columns in which sums leave their registers.
    pub(super) fn chunks(self) -> usize {
        self.width().div_ceil(COLUMNS)
    }

    pub(super) fn first_in_chunk(self, chunk: usize) -> usize {
        chunk * COLUMNS / self.side
    }

    pub(super) fn in_chunk(self, chunk: usize) -> usize {
        (COLUMNS / self.side).min(self.matrices() - self.first_in_chunk(chunk))
    }

    /// Returns the elements of a tile that a lane has, all in one row.
    pub(super) fn elements(self) -> usize {
        COLUMNS / self.share()
    }
}

/// The rows of a pair of a sequence and a head in a tensor.
#[derive(CubeType, Clone, Copy)]
pub(super) struct HeadRows {
    /// The offset of the first row, in vectors.
    pub start: usize,
    pub stride: usize,
    pub last: usize,
}

#[cube]
impl HeadRows {
    /// Returns the offset of a row. Positions beyond the last have its offset.
    pub fn at(&self, position: usize) -> usize {
        self.start + min(position, self.last) * self.stride
    }
}
