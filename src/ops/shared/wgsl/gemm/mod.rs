//! Matrix products, fused with what comes before and after them.

use burn_cubecl::tensor::CubeTensor;

use super::{Tier, WgslKernels};
use crate::config::Gelu;
use crate::gpu::kernel::{Element, Param, Shader, Spec, Workgroups, pack_of, params, wgsl};
use crate::ops::shared::DISPATCH_OPERATIONS;
use crate::plan::products::MANY_TILES;

mod cooperative;

params! {
    struct Params {
        m: usize,
        n: usize,
        k: usize,
        first_row: usize,
        last_row: usize,
        a_offset: usize,
        b_offset: usize,
        out_offset: usize,
        a_stride: usize,
        out_stride: usize,
        row_tiles: usize,
        splits: usize,
        split_depth: usize,
    }
}

static SHUFFLED: Shader = Shader {
    name: "gemm_shuffled",
    parts: &[wgsl!("gelu"), wgsl!("gemm_params"), wgsl!("gemm_operands"), wgsl!("gemm_shuffled")],
    params: Params::TYPE,
};
static STAGED: Shader = Shader {
    name: "gemm_staged",
    parts: &[wgsl!("gelu"), wgsl!("gemm_params"), wgsl!("gemm_operands"), wgsl!("gemm_staged")],
    params: Params::TYPE,
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

impl Flags {
    fn of(fusion: &Fusion) -> Self {
        Self {
            activation: fusion.activation,
            bias: fusion.bias.is_some(),
            derivative: fusion.derivative.map(|(form, _)| form),
            residual: fusion.residual.is_some(),
            accumulate: fusion.accumulate,
            bias_gradient: fusion.bias_gradient.is_some(),
        }
    }

    fn set(self, spec: Spec) -> Spec {
        spec.with("BIAS", self.bias)
            .with("ACTIVATED", self.activation.is_some())
            .with("DERIVATIVE", self.derivative.is_some())
            .with("ERF", self.activation.or(self.derivative) == Some(Gelu::Erf))
            .with("RESIDUAL", self.residual)
            .with("ACCUMULATE", self.accumulate)
            .with("BIAS_GRADIENT", self.bias_gradient)
    }

    /// Returns the combinations that the ops use.
    fn used() -> Vec<(Layout, Self)> {
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
        used
    }
}

/// A product `out = a b` with `out` `[m, n]`, of size `[m, n, k]`.
#[derive(Clone, Copy)]
struct Product<'a> {
    layout: Layout,
    size: [usize; 3],
    a: Matrix<'a>,
    b: Matrix<'a>,
    out: Matrix<'a>,
    fusion: Fusion<'a>,
}

impl Product<'_> {
    /// Returns the lengths of the rows of `a` and `b` in memory.
    fn widths(&self) -> [usize; 2] {
        let [m, n, k] = self.size;
        match self.layout {
            Layout::Nn => [k, n],
            Layout::Nt => [k, k],
            Layout::Tn => [m, n],
        }
    }

    /// Returns the strides of `a` and `out`.
    fn strides(&self) -> [usize; 2] {
        [self.a.stride.unwrap_or(self.widths()[0]), self.out.stride.unwrap_or(self.size[1])]
    }

    fn offsets(&self) -> [usize; 3] {
        [self.a.offset, self.b.offset, self.out.offset]
    }

    /// Returns the elements per memory access.
    fn pack(&self) -> u32 {
        pack_of(&[&self.widths()[..], &self.strides(), &self.offsets(), &self.size[1..2]].concat())
    }

    fn elements(&self) -> Elements {
        Elements::of(self.a.tensor, self.b.tensor, self.out.tensor, &self.fusion)
    }

    /// Returns the kernels' parameters for rows `first_row` to `last_row` of `out`, all of k in one
    /// range.
    fn params(&self, [first_row, last_row]: [usize; 2]) -> Params {
        let ([m, n, k], [a_offset, b_offset, out_offset]) = (self.size, self.offsets());
        let [a_stride, out_stride] = self.strides();
        Params {
            m,
            n,
            k,
            first_row,
            last_row,
            a_offset,
            b_offset,
            out_offset,
            a_stride,
            out_stride,
            ..Params::default()
        }
    }

    /// Returns the buffers of a kernel: two inputs, the output, and the operands of the epilogue.
    fn buffers<'b>(&'b self, inputs: [Option<&'b CubeTensor>; 2]) -> [Option<&'b CubeTensor>; 6] {
        let Fusion { bias, derivative, residual, bias_gradient, .. } = self.fusion;
        let pre_activation = derivative.map(|(_, pre)| pre);
        let [first, second] = inputs;
        let out = Some(self.out.tensor);
        [first, second, out, bias.or(bias_gradient), residual, pre_activation]
    }

    fn factors(&self) -> [Option<&CubeTensor>; 2] {
        [Some(self.a.tensor), Some(self.b.tensor)]
    }
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

    /// Returns the types in f16. A weight is f16 where a copy of it is kept, or the weight itself
    /// is stored so, which sampling multiplies activations in f32 by; its gradient is f32.
    fn half(layout: Layout) -> Vec<Self> {
        let all = Self::all(Element::F16);
        let stored = Self { right: Element::F16, ..Self::all(Element::F32) };
        match layout {
            Layout::Tn => vec![Self { result: Element::F32, activation: Element::F32, ..all }],
            Layout::Nn => vec![Self { right: Element::F32, ..all }, all, stored],
            Layout::Nt => vec![Self { right: Element::F32, ..all }, all],
        }
    }
}

/// The blocks of 4 x 4 elements that an invocation holds: rows by columns.
#[derive(Clone, Copy)]
struct Blocks {
    rows: u32,
    columns: u32,
}

impl Blocks {
    const ONE: Self = Self { rows: 1, columns: 1 };
    /// 64 sums in each invocation.
    const FOUR: Self = Self { rows: 2, columns: 2 };

    fn of(kernels: &WgslKernels, [m, n, _]: [usize; 3]) -> Self {
        let many = m.div_ceil(128) * n.div_ceil(128) >= MANY_TILES;
        match kernels.tier {
            // A block has as many rows as the subgroup has invocations.
            Tier::Narrow(_) => Self::FOUR,
            Tier::Wide if many && !kernels.queue.few_registers() => Self::FOUR,
            Tier::Wide => Self::ONE,
        }
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
    let spec = spec
        .packed(pack)
        .storing("left", elements.left)
        .storing("right", elements.right)
        .storing("result", elements.result)
        .storing("activation", elements.activation)
        .with("ROW_BLOCKS", blocks.rows)
        .with("COLUMN_BLOCKS", blocks.columns)
        .with("A_TRANSPOSED", layout == Layout::Tn)
        .with("B_TRANSPOSED", layout == Layout::Nt);
    flags.set(spec)
}

/// Splits the rows of a product into bands of tiles of `rows` rows; each band is one dispatch.
fn bands([m, n, k]: [usize; 3], rows: usize) -> impl Iterator<Item = [usize; 2]> {
    let most = DISPATCH_OPERATIONS / (2 * n as u64 * k as u64).max(1);
    // A band of more than m rows is the whole product. In browsers a usize has 32 bits.
    let band = (most.clamp(1, 1 << 31) as usize).next_multiple_of(rows);
    (0..m).step_by(band).map(move |first| [first, (first + band).min(m)])
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (layout, flags) in Flags::used() {
        let mut add = |blocks, elements| {
            specs.extend([1, 4].map(|pack| spec(tier, layout, blocks, pack, elements, flags)));
        };
        for blocks in [Blocks::ONE, Blocks::FOUR] {
            add(blocks, Elements::all(Element::F32));
        }
        // Tiles and types are independent of each other.
        for elements in Elements::half(layout) {
            add(Blocks::ONE, elements);
        }
    }
    specs
}

pub(in crate::ops) use cooperative::variants as cooperative_variants;

impl WgslKernels {
    /// Computes `out = a b` with `out` `[m, n]`. `a` and `out` may be columns of wider matrices.
    pub fn gemm<'a>(
        &self,
        layout: Layout,
        size: [usize; 3],
        a: impl Into<Matrix<'a>>,
        b: impl Into<Matrix<'a>>,
        out: impl Into<Matrix<'a>>,
        fusion: Fusion<'a>,
    ) {
        let product = Product { layout, size, a: a.into(), b: b.into(), out: out.into(), fusion };
        let Elements { left, right, .. } = product.elements();
        match self.matrices {
            Some(matrices) if [left, right] == [Element::F16; 2] => {
                cooperative::multiply(self, matrices, &product);
            }
            _ => self.multiply_in_tiles(&product),
        }
    }

    /// Computes a product without cooperative matrices.
    fn multiply_in_tiles(&self, product: &Product) {
        let blocks = Blocks::of(self, product.size);
        let flags = Flags::of(&product.fusion);
        let (pack, elements) = (product.pack(), product.elements());
        let spec = spec(self.tier, product.layout, blocks, pack, elements, flags);
        let [rows, columns] = match self.tier {
            Tier::Narrow(lanes) => [lanes * blocks.rows, 4 * lanes * blocks.columns],
            Tier::Wide => [64 * blocks.rows, 64 * blocks.columns],
        };
        let (rows, columns) = (rows as usize, columns as usize);
        for [first, last] in bands(product.size, rows) {
            self.queue.launch(
                spec.clone(),
                Workgroups::Plane(product.size[1].div_ceil(columns), (last - first).div_ceil(rows)),
                &product.buffers(product.factors()),
                &product.params([first, last]),
            );
        }
    }
}
