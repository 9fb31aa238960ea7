//! Products by `shaders/cuda/product.cu`, where the device runs it: bfloat16, float16 and tf32.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::{Epilogue, Product};
use crate::config::Dtype;
use crate::gpu::cuda::{Arguments, Pointer, is_aligned};
use crate::gpu::name_launch;
use crate::ops::shared::cube::CubeKernels;
use crate::plan::products::Tile;

/// The k of a stage in shared memory, in elements of 2 bytes; half of it in tf32.
const STAGE: usize = 32;

/// Copies move 16 bytes.
const ACCESS: usize = 16;

/// The epilogue takes this many elements of a row at once.
const STORE: usize = 8;

/// Where the rows of a factor lie.
pub(super) struct Layout {
    /// The factor's first axis is contiguous, not its second.
    pub transposed: bool,
    /// The elements between the starts of two rows in memory.
    pub stride: usize,
}

impl Layout {
    /// Returns `None` if kernels cannot move 16 bytes at once: the rows do not start at multiples of that.
    pub fn of(factor: &CubeTensor) -> Option<Self> {
        let strides = factor.meta.strides();
        let (transposed, stride) = match (strides[0], strides[1]) {
            (stride, 1) => (false, stride),
            (1, stride) => (true, stride),
            _ => return None,
        };
        let rows_are_aligned = (stride * factor.dtype.size()).is_multiple_of(ACCESS);
        (is_aligned(factor) && rows_are_aligned).then_some(Self { transposed, stride })
    }
}

/// The tiles of a workgroup, in elements of the output. Both large ones have the same order of sums.
const WIDE: [[usize; 2]; 2] = [[128, 256], [256, 128]];

/// The speed of wide tiles in that of large ones where tensor cores wait for shared memory, by count: a warp reads
/// a third less of it for each multiplication. The GPUs for which that is so, of compute capability 8.0, 9.0 and 10.0,
/// have more than this shared memory.
const WIDE_SPEED: f64 = 1.2;
const SHARED_OF_FAST: usize = 128 << 10;

/// Returns the tile with which the busiest multiprocessor is done first.
fn workgroup_tile(
    kernels: &CubeKernels,
    tile: Tile,
    [m, n]: [usize; 2],
    ranges: usize,
) -> [usize; 2] {
    let square = [tile.side(); 2];
    if tile == Tile::Small || kernels.queue.workgroup_memory() <= SHARED_OF_FAST {
        return square;
    }
    let time = |tile: [usize; 2]| {
        let tiles = m.div_ceil(tile[0]) * n.div_ceil(tile[1]) * ranges;
        let speed = if tile == square { 1.0 } else { WIDE_SPEED };
        (tiles.div_ceil(kernels.multiprocessors()) * tile[0] * tile[1]) as f64 / speed
    };
    let all = [square].into_iter().chain(WIDE);
    all.min_by(|a, b| time(*a).total_cmp(&time(*b))).unwrap_or(square)
}

/// Launches a product, and `[ranges, n]` sums over the rows of `b` for each range of k if `column_sums` is a
/// tensor for them. Returns false, and launches nothing, if the kernels do not compute this product.
pub(super) fn multiply(
    kernels: &CubeKernels,
    product: &Product,
    column_sums: Option<&CubeTensor>,
) -> bool {
    try_multiply(kernels, product, column_sums).is_some()
}

fn try_multiply(
    kernels: &CubeKernels,
    product: &Product,
    column_sums: Option<&CubeTensor>,
) -> Option<()> {
    let Product { a, b, y, tiling, epilogue } = product;
    let dtype = match (a.dtype, kernels.dtype) {
        (DType::BF16, _) => "bf16",
        (DType::F16, _) => "f16",
        (DType::F32, Dtype::Tf32) => "tf32",
        _ => return None,
    };
    let ([m, k], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
    let size = a.dtype.size();
    let k_per_range = k / tiling.ranges;
    let Epilogue { derivative, bias, residual, .. } = *epilogue;
    let of_epilogue = [Some(*y), bias, residual, derivative.map(|(_, x)| x)];
    let fits = n.is_multiple_of(STORE)
        && of_epilogue.into_iter().flatten().all(is_aligned)
        && (k_per_range * size).is_multiple_of(STAGE * DType::BF16.size())
        && [DType::F32, a.dtype].contains(&y.dtype);
    if !kernels.queue.runs_ptx() || !fits {
        return None;
    }
    let (a_layout, b_layout) = (Layout::of(a)?, Layout::of(b)?);
    let layout = match (a_layout.transposed, b_layout.transposed) {
        (false, false) => "nn",
        (false, true) => "nt",
        (true, false) => "tn",
        (true, true) => return None,
    };
    let ranges = tiling.ranges;
    let [rows, columns] = workgroup_tile(kernels, tiling.tile, [m, n], ranges);
    let grid = [m.div_ceil(rows) * n.div_ceil(columns), ranges];
    name_launch(|| {
        format!("product {m}x{n}, {ranges} x {k_per_range} terms, tile {rows}x{columns}")
    });
    let Epilogue { accumulate, first_row, .. } = *epilogue;
    let values = [
        [m, n, k, a_layout.stride, b_layout.stride, k_per_range],
        [accumulate.into(), epilogue.is_exact().into(), (y.dtype == DType::F32).into(), 0, 0, 0],
    ];
    let values = values.as_flattened().iter().map(|&value| value as u32).collect::<Vec<_>>();
    kernels.queue.launch_ptx(
        &format!("product.{dtype}.{layout}.{rows}x{columns}"),
        grid,
        Arguments {
            pointers: &[
                Pointer::Read(a),
                Pointer::Read(b),
                Pointer::WriteFrom(y, first_row * n),
                Pointer::read_if(bias),
                Pointer::read_if(residual),
                Pointer::read_if(derivative.map(|(_, x)| x)),
                column_sums.map_or(Pointer::Null, Pointer::Write),
            ],
            values: &values,
        },
    );
    Some(())
}

#[cfg(test)]
mod tests {
    use super::WIDE;
    use crate::gpu::cuda::has_kernel;

    #[test]
    fn every_product_has_a_kernel() {
        for dtype in ["bf16", "f16", "tf32"] {
            for layout in ["nn", "nt", "tn"] {
                for [rows, columns] in [[64, 64], [128, 128]].into_iter().chain(WIDE) {
                    let name = format!("product.{dtype}.{layout}.{rows}x{columns}");
                    assert!(has_kernel(&name), "{name}");
                }
            }
        }
    }
}
