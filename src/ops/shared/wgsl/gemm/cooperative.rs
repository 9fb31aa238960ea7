//! Products of float16 matrices on cooperative matrices, with sums in float32.

use super::{DepthRanges, Elements, Flags, Fusion, Gemm, GemmLayout, Params, Variant, bands};
use crate::config::Matrices;
use crate::gpu::DriverTraits;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, shader};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};
use crate::plan::products::{prefers_large, ranges_of_k};

static TILES: Shader = shader!(
    "gemm_cooperative",
    Params,
    [
        "gelu",
        "swiglu",
        "gemm_params",
        "gemm_epilogue",
        "gemm_cooperative",
        "gemm_cooperative_staged"
    ]
);
/// For products in f32 without an epilogue.
static DIRECT: Shader = shader!(
    "gemm_cooperative_direct",
    Params,
    [
        "gelu",
        "swiglu",
        "gemm_params",
        "gemm_epilogue",
        "gemm_cooperative",
        "gemm_cooperative_direct"
    ]
);
static SPLIT_SUM: Shader = shader!(
    "gemm_split_sum",
    Params,
    ["gelu", "swiglu", "gemm_params", "gemm_epilogue", "gemm_split_sum"]
);

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

    /// Returns true if tiles may be staged as their matrices are stored: the kernel for that is written for
    /// cells of four elements and subgroups of one size.
    fn stores_both_ways(self) -> bool {
        self.matrices == Matrices::Sixteen && self.subgroup.is_some()
    }

    /// Returns the elements of k in workgroup memory: fewer for the small subgroups of software.
    fn depth(self) -> u32 {
        if self.lanes() < 32 { 16 } else { 32 }
    }
}

/// The tile of a workgroup: a square of this many matrices in rows and in columns.
#[derive(Clone, Copy)]
struct CooperativeTile(u32);

/// 128 x 128 in matrices of 16 x 16: on GPUs 64 registers of each invocation.
const LARGE: CooperativeTile = CooperativeTile(8);
/// 64 x 64 in matrices of 16 x 16.
const SMALL: CooperativeTile = CooperativeTile(4);

impl CooperativeTile {
    fn side(self, matrices: Matrices) -> usize {
        (self.0 * matrices.side()) as usize
    }

    fn count(self, matrices: Matrices, [m, n, _]: [usize; 3]) -> usize {
        let side = self.side(matrices);
        m.div_ceil(side) * n.div_ceil(side)
    }
}

/// How a workgroup stages its tiles of both factors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staging {
    /// Zeros fill what is outside the matrices.
    Checked,
    /// Nothing is outside: the tiles divide the matrices.
    Whole,
    /// Nor is anything transposed before a matrix is loaded, and accesses have 16 bytes.
    AsStored,
}

impl Staging {
    fn of(
        units: Units,
        tile: CooperativeTile,
        split: DepthRanges,
        product: &Gemm,
        driver: DriverTraits,
    ) -> Self {
        let [m, n, k] = product.size;
        let depth = units.depth() as usize;
        let is_whole = [m, n].iter().all(|size| size.is_multiple_of(tile.side(units.matrices)))
            && [k, split.depth].iter().all(|size| size.is_multiple_of(depth) && *size > 0)
            && product.pack() == 4;
        // Widths are multiples of 8 if the sizes are.
        let places = [&product.offsets()[..2], &product.strides()[..1]].concat();
        let as_stored = driver.loads_transposed
            && units.stores_both_ways()
            && places.iter().all(|place| place.is_multiple_of(8));
        if !is_whole {
            Staging::Checked
        } else if as_stored {
            Staging::AsStored
        } else {
            Staging::Whole
        }
    }
}

/// Returns the shader that writes the sums of this variant. Matrices of 8 x 8 are Metal's, which stores none to
/// memory of vectors.
fn shader(units: Units, staging: Staging, variant: Variant) -> &'static Shader {
    let Flags { bias, derivative, residual, .. } = variant.flags;
    let is_direct = staging != Staging::Checked
        && units.matrices == Matrices::Sixteen
        && variant.elements.result == Element::F32
        && !(bias || residual || derivative.is_some());
    if is_direct { &DIRECT } else { &TILES }
}

fn spec(units: Units, tile: CooperativeTile, staging: Staging, variant: Variant) -> Spec {
    // Each invocation loads 4 x 4 elements of each factor.
    let workgroup = tile.side(units.matrices) as u32 * units.depth() / 16;
    // Each subgroup has a part of the sums.
    let parts = workgroup / units.lanes();
    let row_parts = 1 << (parts.ilog2() / 2);
    let column_parts = parts / row_parts;
    let spec = Spec::new(shader(units, staging, variant), workgroup)
        .multiplying(units.matrices, units.subgroup)
        .with("ROW_PARTS", row_parts)
        .with("COLUMN_PARTS", column_parts)
        .with("ROW_MATRICES", tile.0 / row_parts)
        .with("COLUMN_MATRICES", tile.0 / column_parts)
        .with("DEPTH", units.depth())
        .flag("WHOLE", staging != Staging::Checked)
        .flag("AS_STORED", staging == Staging::AsStored);
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
    let mut specs = Vec::new();
    let single = Element::F32;
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
                    let mut stagings = vec![Staging::Checked];
                    stagings.extend((pack == 4).then_some(Staging::Whole));
                    stagings.extend(
                        (pack == 4 && units.stores_both_ways()).then_some(Staging::AsStored),
                    );
                    for staging in stagings {
                        specs.extend([variant, of_range].map(|it| spec(units, SMALL, staging, it)));
                        // Ranges of k are for products with few tiles.
                        specs.push(spec(units, LARGE, staging, variant));
                    }
                }
                specs.push(sum_spec(variant));
            }
        }
    }
    specs
}

impl DepthRanges {
    /// Splits k if the product has few tiles and is usually one dispatch. The order of a sum must not depend
    /// on the speed of the device.
    fn of(units: Units, size: [usize; 3]) -> Self {
        let k = size[2].max(1);
        let usual = DriverTraits::UNKNOWN.operations;
        let ranges = ranges_of_k(SMALL.count(units.matrices, size), size[2]);
        let depth = k.div_ceil(ranges).next_multiple_of(units.depth() as usize);
        if ranges == 1 || depth >= k || bands(size, 1, usual).count() > 1 {
            return Self { ranges: 1, depth: k };
        }
        Self { ranges: k.div_ceil(depth), depth }
    }
}

/// Computes a product of two factors in float16.
pub(super) fn multiply(kernels: &WgslKernels, matrices: Matrices, product: &Gemm) {
    let units = Units { matrices, subgroup: kernels.queue.subgroup() };
    let split = DepthRanges::of(units, product.size);
    if split.ranges > 1 {
        return multiply_ranges(kernels, units, product, split);
    }
    let [large, small] = [LARGE, SMALL].map(|tile| tile.count(matrices, product.size));
    let is_large = prefers_large(large, small, kernels.queue.driver.multiprocessors);
    let tile = if is_large { LARGE } else { SMALL };
    let staging = Staging::of(units, tile, split, product, kernels.queue.driver);
    let spec = spec(units, tile, staging, product.variant());
    product.launch(&kernels.queue, &spec, [tile.side(matrices); 2], split);
}

/// Computes the products over ranges of k, and then their sum.
fn multiply_ranges(kernels: &WgslKernels, units: Units, product: &Gemm, split: DepthRanges) {
    let [m, n, _] = product.size;
    let DepthRanges { ranges: splits, depth: split_depth } = split;
    let products = kernels.queue.empty([splits, m, n]);
    let sums = product.fusion.bias_gradient.map(|_| kernels.queue.empty([splits, n]));
    let fusion = Fusion {
        activation: product.fusion.activation,
        bias_gradient: sums.as_ref(),
        ..Fusion::default()
    };
    let of_ranges = Gemm { out: (&products).into(), fusion, ..*product };
    let staging = Staging::of(units, SMALL, split, &of_ranges, kernels.queue.driver);
    let of_range = spec(units, SMALL, staging, of_ranges.variant());
    of_ranges.launch(&kernels.queue, &of_range, [SMALL.side(units.matrices); 2], split);
    kernels.queue.launch(
        sum_spec(product.variant()),
        Workgroups::cover(m * n / product.pack() as usize, ELEMENTWISE),
        &product.buffers([Some(&products), sums.as_ref()]),
        &Params { splits, split_depth, ..product.params([0, m]) },
    );
}
