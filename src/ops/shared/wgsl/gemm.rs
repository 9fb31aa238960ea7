//! Matrix products, fused with what comes before and after them.

use burn_cubecl::tensor::CubeTensor;

use super::{Tier, WgslKernels};
use crate::config::Gelu;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, wgsl};

static SHUFFLED: Shader = Shader {
    name: "gemm_shuffled",
    parts: &[wgsl!("gelu"), wgsl!("gemm_operands"), wgsl!("gemm_shuffled")],
};
static STAGED: Shader = Shader {
    name: "gemm_staged",
    parts: &[wgsl!("gelu"), wgsl!("gemm_operands"), wgsl!("gemm_staged")],
};

/// Which factor is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Layout {
    /// `a` `[m, k]`, `b` `[k, n]`: the forward pass.
    Nn,
    /// `a` `[m, k]`, `b` `[n, k]`: the gradient of the input; logits.
    Nt,
    /// `a` `[k, m]`, `b` `[k, n]`: the gradient of the weight.
    Tn,
}

/// A matrix within a buffer.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Matrix<'a> {
    pub tensor: &'a CubeTensor,
    /// The first element.
    pub offset: usize,
    /// Elements from one row to the next; `None` if rows are contiguous.
    pub stride: Option<usize>,
}

impl<'a> From<&'a CubeTensor> for Matrix<'a> {
    fn from(tensor: &'a CubeTensor) -> Self {
        Self { tensor, offset: 0, stride: None }
    }
}

/// The operations fused into a product: the prologue on the left factor as it is loaded, the
/// epilogue on the product before it is stored.
#[derive(Clone, Copy, Default)]
pub(in crate::ops) struct Fusion<'a> {
    /// The activation of the left factor, computed at each load.
    pub activation: Option<Gelu>,
    /// `[n]`, added to each row.
    pub bias: Option<&'a CubeTensor>,
    /// An activation and its pre-activations `[m, n]`: multiplies the product by the derivative.
    pub derivative: Option<(Gelu, &'a CubeTensor)>,
    /// `[m, n]`, added.
    pub residual: Option<&'a CubeTensor>,
    /// Adds to the output instead of overwriting it.
    pub accumulate: bool,
    /// Takes the column sums of `b`, `[n]`: the gradient of a bias comes with the gradient of its
    /// weight, which reads the same rows.
    pub bias_gradient: Option<&'a CubeTensor>,
}

/// The part of a [`Fusion`] that decides the kernel's source.
#[derive(Clone, Copy, Default)]
struct Flags {
    activation: Option<Gelu>,
    bias: bool,
    derivative: Option<Gelu>,
    residual: bool,
    accumulate: bool,
    bias_gradient: bool,
}

/// The types of a product's matrices in memory.
#[derive(Clone, Copy)]
struct Elements {
    left: Element,
    right: Element,
    result: Element,
    /// Of the residual and the pre-activations.
    activation: Element,
}

impl Elements {
    const fn all(element: Element) -> Self {
        Self { left: element, right: element, result: element, activation: element }
    }

    fn of(a: &CubeTensor, b: &CubeTensor, out: &CubeTensor, fusion: &Fusion) -> Self {
        let result = Element::of(out);
        let activation = fusion.residual.or(fusion.derivative.map(|(_, pre)| pre));
        Self {
            left: Element::of(a),
            right: Element::of(b),
            result,
            // Without either, one variant less.
            activation: activation.map_or(result, Element::of),
        }
    }

    /// The types with activations in f16. A weight is f16 where a copy of it is kept, and its
    /// gradient is f32.
    fn half(layout: Layout) -> Vec<Self> {
        let all = Self::all(Element::F16);
        match layout {
            Layout::Tn => vec![Self { result: Element::F32, activation: Element::F32, ..all }],
            Layout::Nn | Layout::Nt => vec![Self { right: Element::F32, ..all }, all],
        }
    }
}

/// The blocks of 4 x 4 elements that an invocation holds: rows by columns.
#[derive(Clone, Copy)]
struct Blocks {
    rows: u32,
    columns: u32,
}

/// The most multiplications and additions of one dispatch: Windows resets a device that takes
/// longer than two seconds, and a slow one does about a hundred billion a second.
const DISPATCH_OPERATIONS: u64 = 1 << 35;

/// Fewer tiles than this leave parts of a GPU idle: then smaller tiles are faster.
const MANY_TILES: usize = 96;

fn blocks(tier: Tier, m: usize, n: usize) -> Blocks {
    match tier {
        // A block has as many rows as the subgroup has invocations.
        Tier::Narrow(_) => Blocks { rows: 2, columns: 2 },
        Tier::Wide if m.div_ceil(128) * n.div_ceil(128) >= MANY_TILES => {
            Blocks { rows: 2, columns: 2 }
        }
        Tier::Wide => Blocks { rows: 1, columns: 1 },
    }
}

fn spec(
    tier: Tier,
    layout: Layout,
    blocks: Blocks,
    pack: u32,
    elements: Elements,
    flags: Flags,
) -> Spec {
    let spec = match tier {
        Tier::Narrow(lanes) => Spec::new(&SHUFFLED, lanes),
        // 2048 elements of each factor: 16 KiB in all, which WebGPU guarantees.
        Tier::Wide => Spec::new(&STAGED, 256).with("DEPTH", 32 / blocks.rows.max(blocks.columns)),
    };
    spec.packed(pack)
        .storing("left", elements.left)
        .storing("right", elements.right)
        .storing("result", elements.result)
        .storing("activation", elements.activation)
        .with("ROW_BLOCKS", blocks.rows)
        .with("COLUMN_BLOCKS", blocks.columns)
        .with("A_TRANSPOSED", layout == Layout::Tn)
        .with("B_TRANSPOSED", layout == Layout::Nt)
        .with("BIAS", flags.bias)
        .with("ACTIVATED", flags.activation.is_some())
        .with("DERIVATIVE", flags.derivative.is_some())
        .with("ERF", flags.activation.or(flags.derivative) == Some(Gelu::Erf))
        .with("RESIDUAL", flags.residual)
        .with("ACCUMULATE", flags.accumulate)
        .with("BIAS_GRADIENT", flags.bias_gradient)
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let plain = Flags::default();
    let mut used = vec![
        (Layout::Nn, Flags { accumulate: true, ..plain }),
        (Layout::Nt, plain),
        (Layout::Tn, Flags { accumulate: true, ..plain }),
    ];
    for form in [Gelu::Tanh, Gelu::Erf] {
        used.push((Layout::Nt, Flags { derivative: Some(form), ..plain }));
    }
    for activation in [None, Some(Gelu::Tanh), Some(Gelu::Erf)] {
        used.push((Layout::Tn, Flags { activation, bias_gradient: true, ..plain }));
        used.push((Layout::Tn, Flags { activation, ..plain }));
        for bias in [false, true] {
            for residual in [false, true] {
                used.push((Layout::Nn, Flags { activation, bias, residual, ..plain }));
            }
        }
    }
    let tiles = [(1, 1), (2, 2)].map(|(rows, columns)| Blocks { rows, columns });
    let mut specs = Vec::new();
    for (layout, flags) in used {
        let mut add = |blocks, elements| {
            specs.extend([1, 4].map(|pack| spec(tier, layout, blocks, pack, elements, flags)));
        };
        for blocks in tiles {
            add(blocks, Elements::all(Element::F32));
        }
        // Tiles and types are independent of each other.
        for elements in Elements::half(layout) {
            add(tiles[0], elements);
        }
    }
    specs
}

impl WgslKernels {
    /// Computes `out = a b` with `out` `[m, n]`. `a` and `out` may be columns of wider matrices.
    pub fn gemm<'a>(
        &self,
        layout: Layout,
        [m, n, k]: [usize; 3],
        a: impl Into<Matrix<'a>>,
        b: impl Into<Matrix<'a>>,
        out: impl Into<Matrix<'a>>,
        fusion: Fusion<'a>,
    ) {
        let (a, b, out) = (a.into(), b.into(), out.into());
        let [a_width, b_width] = match layout {
            Layout::Nn => [k, n],
            Layout::Nt => [k, k],
            Layout::Tn => [m, n],
        };
        let a_stride = a.stride.unwrap_or(a_width);
        let out_stride = out.stride.unwrap_or(n);
        let offsets = [a.offset, b.offset, out.offset];
        let pack = pack_of(&[&[a_width, b_width, n, a_stride, out_stride], &offsets[..]].concat());
        let flags = Flags {
            activation: fusion.activation,
            bias: fusion.bias.is_some(),
            derivative: fusion.derivative.map(|(form, _)| form),
            residual: fusion.residual.is_some(),
            accumulate: fusion.accumulate,
            bias_gradient: fusion.bias_gradient.is_some(),
        };
        let blocks = blocks(self.tier, m, n);
        let elements = Elements::of(a.tensor, b.tensor, out.tensor, &fusion);
        let spec = spec(self.tier, layout, blocks, pack, elements, flags);
        let [rows, columns] = match self.tier {
            Tier::Narrow(lanes) => [lanes * blocks.rows, 4 * lanes * blocks.columns],
            Tier::Wide => [64 * blocks.rows, 64 * blocks.columns],
        };
        let (rows, columns) = (rows as usize, columns as usize);
        let most = DISPATCH_OPERATIONS / (2 * n as u64 * k as u64).max(1);
        // A band of more than m rows is the whole product. In browsers a usize has 32 bits.
        let band = (most.clamp(1, 1 << 31) as usize).next_multiple_of(rows);
        for first in (0..m).step_by(band) {
            let last = (first + band).min(m);
            let grid = Workgroups::Plane(n.div_ceil(columns), (last - first).div_ceil(rows));
            let ends = [first, last];
            let sizes = [&[m, n, k], &ends[..], &offsets, &[a_stride, out_stride]].concat();
            self.queue.launch(
                spec.clone(),
                grid,
                [
                    a.tensor.handle.clone().binding(),
                    b.tensor.handle.clone().binding(),
                    out.tensor.handle.clone().binding(),
                    self.optional(fusion.bias.or(fusion.bias_gradient)),
                    self.optional(fusion.residual),
                    self.optional(fusion.derivative.map(|(_, pre)| pre)),
                ],
                &sizes.iter().map(|&size| size as u32).collect::<Vec<u32>>(),
            );
        }
    }
}
