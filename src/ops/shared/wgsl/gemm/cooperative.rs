//! Products of float16 matrices on cooperative matrices, with sums in float32.

use super::{Elements, Flags, Fusion, GemmLayout, Params, Product, Split, Variant, bands};
use crate::config::Matrices;
use crate::gpu::DriverTraits;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, shader};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};
use crate::plan::products::{prefers_large, ranges_of_k};

static TILES: Shader = shader!(
    "gemm_cooperative",
    Params,
    ["gelu", "gemm_params", "gemm_epilogue", "gemm_cooperative"]
);
static SPLIT_SUM: Shader =
    shader!("gemm_split_sum", Params, ["gelu", "gemm_params", "gemm_epilogue", "gemm_split_sum"]);

/// The units that multiply: matrices, by subgroups of one size or of any.
#[derive(Clone, Copy)]
struct Units {
    matrices: Matrices,
    subgroup: Option<u32>,
}

impl Units {
    /// Returns the invocations of a workgroup for each of its parts.
    fn lanes(self) -> u32 {
        // Where the driver chooses, on AMD, such kernels get 64. With another size they are slower.
        self.subgroup.unwrap_or(64).clamp(8, 64)
    }

    /// Returns the elements of k in workgroup memory: fewer for the small subgroups of software.
    fn depth(self) -> u32 {
        if self.lanes() < 32 { 16 } else { 32 }
    }
}

/// The tile of a workgroup: blocks of parts, each part a matrix in the registers of a subgroup.
#[derive(Clone, Copy)]
struct Tile {
    row_parts: u32,
    column_parts: u32,
    row_matrices: u32,
    column_matrices: u32,
}

/// 128 x 128 in matrices of 16 x 16, eight sums in each of eight subgroups: 64 registers of 32 lanes.
const LARGE: Tile = Tile { row_parts: 2, column_parts: 4, row_matrices: 4, column_matrices: 2 };
/// 64 x 64 in matrices of 16 x 16, four sums in each of four subgroups.
const SMALL: Tile = Tile { row_parts: 2, column_parts: 2, row_matrices: 2, column_matrices: 2 };

impl Tile {
    fn size(self, matrices: Matrices) -> [usize; 2] {
        let Self { row_parts, column_parts, row_matrices, column_matrices } = self;
        [row_parts * row_matrices, column_parts * column_matrices]
            .map(|side| (side * matrices.side()) as usize)
    }

    fn count(self, matrices: Matrices, [m, n, _]: [usize; 3]) -> usize {
        let [rows, columns] = self.size(matrices);
        m.div_ceil(rows) * n.div_ceil(columns)
    }
}

fn spec(units: Units, tile: Tile, variant: Variant) -> Spec {
    let workgroup = units.lanes() * tile.row_parts * tile.column_parts;
    let [left, right] =
        tile.size(units.matrices).map(|side| side as u32 * units.depth() / 4 / workgroup);
    let spec = Spec::new(&TILES, workgroup)
        .multiplying(units.matrices, units.subgroup)
        .with("ROW_PARTS", tile.row_parts)
        .with("COLUMN_PARTS", tile.column_parts)
        .with("ROW_MATRICES", tile.row_matrices)
        .with("COLUMN_MATRICES", tile.column_matrices)
        .with("DEPTH", units.depth())
        .with("LEFT_QUADS", left)
        .with("RIGHT_QUADS", right);
    variant.set(spec)
}

fn sum_spec(Variant { pack, elements, flags, .. }: Variant) -> Spec {
    let spec = Spec::new(&SPLIT_SUM, ELEMENTWISE)
        .packed(pack)
        .storing("result", elements.result)
        .storing("activation", elements.activation);
    Flags { activation: None, ..flags }.set(spec)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let (mut specs, single) = (Vec::new(), Element::F32);
    for matrices in [Matrices::Eight, Matrices::Sixteen] {
        for (layout, flags) in Flags::used() {
            let result = if layout == GemmLayout::Tn { single } else { Element::F16 };
            let elements = Elements { result, activation: result, ..Elements::all(Element::F16) };
            let Flags { activation, bias_gradient, .. } = flags;
            for pack in [1, 4] {
                let variant = Variant { layout, pack, elements, flags };
                let of_range = Variant {
                    elements: Elements { result: single, activation: single, ..elements },
                    flags: Flags { activation, bias_gradient, ..Flags::default() },
                    ..variant
                };
                for subgroup in [Some(8), Some(32), None] {
                    let units = Units { matrices, subgroup };
                    specs.extend([variant, of_range].map(|it| spec(units, SMALL, it)));
                    // Ranges of k are for products with few tiles.
                    specs.push(spec(units, LARGE, variant));
                }
                specs.push(sum_spec(variant));
            }
        }
    }
    specs
}

impl Split {
    /// Splits k if the product has few tiles and is usually one dispatch. The order of a sum must not depend
    /// on the speed of the device.
    fn of(units: Units, size: [usize; 3]) -> Self {
        let (k, usual) = (size[2].max(1), DriverTraits::UNKNOWN.operations);
        let ranges = ranges_of_k(SMALL.count(units.matrices, size), size[2]);
        let depth = k.div_ceil(ranges).next_multiple_of(units.depth() as usize);
        if ranges == 1 || depth >= k || bands(size, 1, usual).count() > 1 {
            return Self { ranges: 1, depth: k };
        }
        Self { ranges: k.div_ceil(depth), depth }
    }
}

/// Computes a product of two factors in float16.
pub(super) fn multiply(kernels: &WgslKernels, matrices: Matrices, product: &Product) {
    let units = Units { matrices, subgroup: kernels.queue.subgroup() };
    let split = Split::of(units, product.size);
    if split.ranges > 1 {
        return multiply_ranges(kernels, units, product, split);
    }
    let [large, small] = [LARGE, SMALL].map(|tile| tile.count(matrices, product.size));
    let is_large = prefers_large(large, small, kernels.queue.driver.multiprocessors);
    let tile = if is_large { LARGE } else { SMALL };
    let spec = spec(units, tile, product.variant());
    product.launch(&kernels.queue, &spec, tile.size(matrices), split);
}

/// Computes the products over ranges of k, and then their sum.
fn multiply_ranges(kernels: &WgslKernels, units: Units, product: &Product, split: Split) {
    let [m, n, _] = product.size;
    let Split { ranges: splits, depth: split_depth } = split;
    let products = kernels.queue.empty([splits, m, n]);
    let sums = product.fusion.bias_gradient.map(|_| kernels.queue.empty([splits, n]));
    let fusion = Fusion {
        activation: product.fusion.activation,
        bias_gradient: sums.as_ref(),
        ..Fusion::default()
    };
    let of_ranges = Product { out: (&products).into(), fusion, ..*product };
    let of_range = spec(units, SMALL, of_ranges.variant());
    of_ranges.launch(&kernels.queue, &of_range, SMALL.size(units.matrices), split);
    kernels.queue.launch(
        sum_spec(product.variant()),
        Workgroups::cover(m * n / product.pack() as usize, ELEMENTWISE),
        &product.buffers([Some(&products), sums.as_ref()]),
        &Params { splits, split_depth, ..product.params([0, m]) },
    );
}
