//! Matrix products, fused with what comes before and after them.

use burn_cubecl::tensor::CubeTensor;

use super::{Tier, WgslKernels};
use crate::config::Gelu;
use crate::gpu::kernel::{Element, Queue, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::Activation;
use crate::plan::products::prefers_large;

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

static SHUFFLED: Shader = shader!(
    "gemm_shuffled",
    Params,
    ["gelu", "swiglu", "gemm_params", "gemm_operands", "gemm_shuffled"]
);
static STAGED: Shader = shader!(
    "gemm_staged",
    Params,
    ["gelu", "swiglu", "gemm_params", "gemm_operands", "gemm_staged"]
);

/// Which factor is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum GemmLayout {
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
    /// The activation of the left factor, computed at each load. Rows of a left factor with SwiGLU are
    /// gate and up.
    pub activation: Option<Activation>,
    /// `[n]`, added to each row.
    pub bias: Option<&'a CubeTensor>,
    /// An activation and its pre-activations `[m, n]`: multiplies the product by the derivative. With
    /// SwiGLU, pre-activations and output are `[m, 2 n]`.
    pub derivative: Option<(Activation, &'a CubeTensor)>,
    /// `[m, n]`, added.
    pub residual: Option<&'a CubeTensor>,
    /// Adds to the output instead of overwriting it.
    pub accumulate: bool,
    /// Takes the column sums of `b`, `[n]`: a bias gradient, in the product for the weight's gradient.
    pub bias_gradient: Option<&'a CubeTensor>,
}

/// The part of a [`Fusion`] that decides the kernel's source.
#[derive(Clone, Copy, Default)]
struct Flags {
    activation: Option<Activation>,
    bias: bool,
    derivative: Option<Activation>,
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
        let activation = self.activation.or(self.derivative);
        spec.flag("BIAS", self.bias)
            .flag("ACTIVATED", self.activation.is_some())
            .flag("DERIVATIVE", self.derivative.is_some())
            .flag("ERF", activation == Some(Gelu::Erf.into()))
            .flag("GATED", activation == Some(Activation::SwiGlu))
            .flag("RESIDUAL", self.residual)
            .flag("ACCUMULATE", self.accumulate)
            .flag("BIAS_GRADIENT", self.bias_gradient)
    }

    /// Returns the combinations that the ops use.
    fn used() -> Vec<(GemmLayout, Self)> {
        let plain = Flags::default();
        let mut used = vec![
            (GemmLayout::Nn, Flags { accumulate: true, ..plain }),
            (GemmLayout::Nt, plain),
            (GemmLayout::Tn, Flags { accumulate: true, ..plain }),
        ];
        for residual in [false, true] {
            let activation = Some(Activation::SwiGlu);
            used.push((GemmLayout::Nn, Flags { activation, residual, ..plain }));
        }
        used.push((GemmLayout::Tn, Flags { activation: Some(Activation::SwiGlu), ..plain }));
        let gelus = [Gelu::Tanh, Gelu::Erf].map(Activation::Gelu);
        for form in gelus.into_iter().chain([Activation::SwiGlu]) {
            for accumulate in [false, true] {
                used.push((GemmLayout::Nt, Flags { derivative: Some(form), accumulate, ..plain }));
            }
        }
        used.push((GemmLayout::Nt, Flags { accumulate: true, ..plain }));
        for activation in gelus.map(Some).into_iter().chain([None]) {
            used.push((GemmLayout::Tn, Flags { activation, bias_gradient: true, ..plain }));
            used.push((GemmLayout::Tn, Flags { activation, ..plain }));
            for bias in [false, true] {
                for residual in [false, true] {
                    used.push((GemmLayout::Nn, Flags { activation, bias, residual, ..plain }));
                }
            }
        }
        used
    }
}

/// A product `out = a b` with `out` `[m, n]`, of size `[m, n, k]`.
#[derive(Clone, Copy)]
struct Gemm<'a> {
    layout: GemmLayout,
    size: [usize; 3],
    a: Matrix<'a>,
    b: Matrix<'a>,
    out: Matrix<'a>,
    fusion: Fusion<'a>,
}

impl Gemm<'_> {
    /// Returns the lengths of the rows of `a` and `b` in memory.
    fn widths(&self) -> [usize; 2] {
        let [m, n, k] = self.size;
        match self.layout {
            GemmLayout::Nn => [k, n],
            GemmLayout::Nt => [k, k],
            GemmLayout::Tn => [m, n],
        }
    }

    /// Returns the strides of `a` and `out`.
    fn strides(&self) -> [usize; 2] {
        [self.a.stride.unwrap_or(self.widths()[0]), self.out.stride.unwrap_or(self.size[1])]
    }

    fn offsets(&self) -> [usize; 3] {
        [self.a.offset, self.b.offset, self.out.offset]
    }

    fn pack(&self) -> u32 {
        pack_of(&[&self.widths()[..], &self.strides(), &self.offsets(), &self.size[1..2]].concat())
    }

    fn elements(&self) -> Elements {
        let [left, right, result] = [self.a, self.b, self.out].map(|it| Element::of(it.tensor));
        let activation = self.fusion.residual.or(self.fusion.derivative.map(|(_, pre)| pre));
        // Without either, one variant less.
        let activation = activation.map_or(result, Element::of);
        Elements { left, right, result, activation }
    }

    fn variant(&self) -> Variant {
        let flags = Flags::of(&self.fusion);
        let elements = self.elements();
        Variant { layout: self.layout, pack: self.pack(), elements, flags }
    }

    /// Returns the parameters for rows `first_row` to `last_row` of `out`, with k in one range.
    fn params(&self, [first_row, last_row]: [usize; 2]) -> Params {
        let ([m, n, k], [a_stride, out_stride]) = (self.size, self.strides());
        let [a_offset, b_offset, out_offset] = self.offsets();
        let params = Params { m, n, k, first_row, last_row, ..Params::default() };
        Params { a_offset, b_offset, out_offset, a_stride, out_stride, ..params }
    }

    /// Launches a kernel whose workgroups compute tiles of `[rows, columns]`, each for a range of k.
    fn launch(&self, queue: &Queue, spec: &Spec, [rows, columns]: [usize; 2], split: DepthRanges) {
        let DepthRanges { ranges: splits, depth: split_depth } = split;
        let columns = self.size[1].div_ceil(columns);
        // Workgroups of several ranges are one dispatch.
        let operations = if splits > 1 { u64::MAX } else { queue.driver.operations };
        for band in bands(self.size, rows, operations) {
            let row_tiles = (band[1] - band[0]).div_ceil(rows);
            queue.launch(
                spec.clone(),
                Workgroups::Plane(columns, row_tiles * splits),
                &self.buffers([self.a.tensor, self.b.tensor].map(Some)),
                &Params { row_tiles, splits, split_depth, ..self.params(band) },
            );
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
}

/// k in ranges, each multiplied by other workgroups.
#[derive(Clone, Copy)]
struct DepthRanges {
    ranges: usize,
    /// Elements of k in each range but the last.
    depth: usize,
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

    /// Returns the types in f16. A weight is f16 if it has a half copy, or if it is stored in half, and then
    /// sampling multiplies it by activations in f32. Its gradient is f32.
    fn half(layout: GemmLayout) -> Vec<Self> {
        let all = Self::all(Element::F16);
        let stored = Self { right: Element::F16, ..Self::all(Element::F32) };
        match layout {
            GemmLayout::Tn => vec![Self { result: Element::F32, activation: Element::F32, ..all }],
            GemmLayout::Nn => vec![Self { right: Element::F32, ..all }, all, stored],
            GemmLayout::Nt => vec![Self { right: Element::F32, ..all }, all],
        }
    }
}

/// The part of a product that decides the source of any kernel for it.
#[derive(Clone, Copy)]
struct Variant {
    layout: GemmLayout,
    /// Elements per memory access.
    pack: u32,
    elements: Elements,
    flags: Flags,
}

impl Variant {
    fn set(self, spec: Spec) -> Spec {
        let spec = spec
            .packed(self.pack)
            .storing("left", self.elements.left)
            .storing("right", self.elements.right)
            .storing("result", self.elements.result)
            .storing("activation", self.elements.activation)
            .flag("A_TRANSPOSED", self.layout == GemmLayout::Tn)
            .flag("B_TRANSPOSED", self.layout == GemmLayout::Nt);
        self.flags.set(spec)
    }

    /// Returns the kernel whose invocations hold `blocks` by `blocks` blocks of 4 x 4 elements.
    fn spec(self, tier: Tier, blocks: u32) -> Spec {
        let spec = match tier {
            Tier::Narrow(lanes) => Spec::new(&SHUFFLED, lanes),
            // 2048 elements of each factor: 16 KiB in all, which WebGPU guarantees.
            Tier::Wide => Spec::new(&STAGED, 256).with("DEPTH", 32 / blocks),
        };
        self.set(spec).with("ROW_BLOCKS", blocks).with("COLUMN_BLOCKS", blocks)
    }
}

/// Splits the rows of a product into even bands of tiles of `rows` rows. Each band is one dispatch of up to
/// `operations` multiplications and additions, rounded up to whole tiles.
fn bands([m, n, k]: [usize; 3], rows: usize, operations: u64) -> impl Iterator<Item = [usize; 2]> {
    let most = operations / (2 * n as u64 * k as u64).max(1);
    // A band of more than m rows is the whole product. In browsers a usize has 32 bits.
    let most = (most.clamp(1, 1 << 31) as usize).next_multiple_of(rows);
    let band = m.div_ceil(m.div_ceil(most).max(1)).next_multiple_of(rows).max(1);
    (0..m).step_by(band).map(move |first| [first, (first + band).min(m)])
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    for (layout, flags) in Flags::used() {
        let mut add = |blocks, elements| {
            let spec = |pack| Variant { layout, pack, elements, flags }.spec(tier, blocks);
            specs.extend([1, 4].map(spec));
        };
        for blocks in [1, 2] {
            add(blocks, Elements::all(Element::F32));
            for elements in Elements::half(layout) {
                add(blocks, elements);
            }
        }
    }
    specs
}

pub(in crate::ops) use cooperative::variants as cooperative_variants;

impl WgslKernels {
    /// Computes `out = a b` with `out` `[m, n]`. `a` and `out` may be columns of wider matrices.
    pub fn gemm<'a>(
        &self,
        layout: GemmLayout,
        size: [usize; 3],
        a: impl Into<Matrix<'a>>,
        b: impl Into<Matrix<'a>>,
        out: impl Into<Matrix<'a>>,
        fusion: Fusion<'a>,
    ) {
        let product = Gemm { layout, size, a: a.into(), b: b.into(), out: out.into(), fusion };
        let Elements { left, right, .. } = product.elements();
        match self.matrices {
            Some(matrices) if [left, right] == [Element::F16; 2] => {
                cooperative::multiply(self, matrices, &product);
            }
            _ => self.multiply_in_tiles(&product),
        }
    }

    fn multiply_in_tiles(&self, product: &Gemm) {
        let [m, n, _] = product.size;
        let [large, small] = [128, 64].map(|side| m.div_ceil(side) * n.div_ceil(side));
        let is_large = prefers_large(large, small, self.queue.driver.multiprocessors);
        let (blocks, [rows, columns]) = match self.tier {
            // A block has as many rows as the subgroup has invocations.
            Tier::Narrow(lanes) => (2, [2 * lanes, 8 * lanes]),
            // 64 sums in each invocation.
            Tier::Wide if is_large && !self.queue.few_registers() => (2, [128; 2]),
            Tier::Wide => (1, [64; 2]),
        };
        let tile = [rows, columns].map(|side| side as usize);
        let spec = product.variant().spec(self.tier, blocks);
        product.launch(&self.queue, &spec, tile, DepthRanges { ranges: 1, depth: product.size[2] });
    }
}
