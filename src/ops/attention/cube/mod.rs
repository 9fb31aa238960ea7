//! Attention in cubecl's language: on tensor cores where the device has them for the activations'
//! dtype, else in f32.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionShape, pairs_at_a_time};
use crate::gpu::queue::Workgroups;
use crate::ops::dropout::cube::{MaskLaunch, mask};
use crate::ops::shared::cube::{CubeKernels, argument, elem, launch};
use crate::ops::shared::kernels::contiguous;

mod layout;
mod matrices;
mod scalar;
mod strip;

use layout::{Layout, PLANES};

/// Below every score, and finite: infinity minus infinity is NaN.
const LEAST: f32 = -3.0e38;

/// The layout of packed qkv, `[batch * time, 3 * heads * size]`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Packed {
    time: usize,
    heads: usize,
    /// `1 / sqrt(head size)`.
    scale: f32,
    /// Blocks of the positions that a workgroup owns.
    blocks: usize,
    /// The index of the launch's first pair of a sequence and a head.
    first_pair: usize,
}

/// Returns the offset of a position's row in packed qkv; part 0 is the query, 1 the key, 2 the
/// value. Positions from `time` on read the last row, and their values are masked.
#[cube]
fn packed_at(
    p: &Packed,
    pair: usize,
    position: usize,
    #[comptime] third: usize,
    #[comptime] size: usize,
) -> usize {
    let row = pair / p.heads * p.time + min(position, p.time - 1);
    ((row * 3 + third) * p.heads + pair % p.heads) * size
}

/// Returns the offset of a position's row in the output, `[batch * time, heads * size]`.
#[cube]
fn row_at(p: &Packed, pair: usize, position: usize, #[comptime] size: usize) -> usize {
    let row = pair / p.heads * p.time + min(position, p.time - 1);
    (row * p.heads + pair % p.heads) * size
}

/// Returns the index of a probability in its sequence's dropout mask.
#[cube]
fn mask_at(p: &Packed, pair: usize, query: usize, key: usize) -> usize {
    (pair % p.heads * p.time + query) * p.time + key
}

/// How the kernels multiply.
#[derive(Clone, Copy)]
enum Form {
    Scalar(scalar::Form),
    Matrices(Layout),
}

impl Form {
    /// Chooses matrices where the device has square ones of the dtype of `qkv` with sums in f32.
    fn of(
        kernels: &CubeKernels,
        qkv: &CubeTensor,
        size: usize,
        vector: usize,
        dropout: bool,
    ) -> Self {
        let memory = kernels.queue.workgroup_memory();
        let layout = matrix_side(kernels, qkv).and_then(|side| {
            let lanes = kernels.queue.subgroup()? as usize;
            let layout = Layout { size, vector, side, lanes, dropout };
            (lanes.is_multiple_of(side) && layout.memory() <= memory).then_some(layout)
        });
        match layout {
            Some(layout) => Form::Matrices(layout),
            None => Form::Scalar(scalar::Form::new(memory, size / vector, vector, dropout)),
        }
    }

    /// Returns the positions that a workgroup owns.
    fn rows(self) -> usize {
        match self {
            Form::Scalar(_) => scalar::UNITS as usize,
            Form::Matrices(layout) => layout.rows(),
        }
    }

    fn workgroup(self) -> CubeDim {
        match self {
            Form::Scalar(_) => CubeDim::new_1d(scalar::UNITS),
            Form::Matrices(layout) => CubeDim::new_2d(layout.lanes as u32, PLANES as u32),
        }
    }
}

/// Returns the side of the largest square matrices whose factors have the dtype of `x`. f32 has
/// none: tensor cores would read 19 bits of it.
fn matrix_side(kernels: &CubeKernels, x: &CubeTensor) -> Option<usize> {
    let factor = elem(x);
    let listed = kernels.client().properties().features.matmul.cmma.iter();
    listed
        .filter(|it| x.dtype != DType::F32 && it.m == it.n && it.n == it.k)
        .filter(|it| it.a_type == factor && it.b_type == factor)
        .filter(|it| it.cd_type == f32::elem_type_native() && [8, 16].contains(&it.m))
        .map(|it| it.m as usize)
        .max()
}

/// The launches of one pass.
struct Launches {
    shape: AttentionShape,
    form: Form,
    /// A head's size.
    size: usize,
    /// Elements of a vector.
    vector: usize,
    scale: f32,
}

impl Launches {
    fn new(kernels: &CubeKernels, qkv: &CubeTensor, shape: AttentionShape, width: usize) -> Self {
        let size = width / shape.heads;
        let vector = if size.is_multiple_of(4) { 4 } else { 1 };
        let form = Form::of(kernels, qkv, size, vector, shape.dropout.is_some());
        Self { shape, form, size, vector, scale: shape.scale(width) }
    }

    /// Returns the grid, the layout of qkv and the mask of each launch.
    fn each(&self) -> impl Iterator<Item = (CubeCount, PackedLaunch, MaskLaunch)> {
        let AttentionShape { batch, time, heads, dropout } = self.shape;
        let blocks = time.div_ceil(self.form.rows());
        let pairs = batch * heads;
        let at_a_time = pairs_at_a_time(time, self.size);
        let scale = self.scale;
        (0..pairs).step_by(at_a_time).map(move |first| {
            let count = Workgroups::Plane(blocks, at_a_time.min(pairs - first)).count();
            let packed = PackedLaunch::new(time, heads, scale, blocks, first);
            (count, packed, mask(dropout.as_ref()))
        })
    }
}

/// Launches a pass in its form: `pass!(kernels, launches, kernel(buffer...))`. The first buffer has
/// the dtype of activations.
macro_rules! pass {
    ($kernels:expr, $launches:expr, $pass:ident($first:expr $(, $buffer:expr)* $(,)?)) => {
        for (count, packed, mask) in $launches.each() {
            let grid = (count, $launches.form.workgroup());
            let vector = $launches.vector;
            match $launches.form {
                Form::Scalar(form) => {
                    use scalar::$pass;
                    launch!($kernels, grid, $pass(
                        vector, argument($first), $(argument($buffer),)*
                        packed, mask, form, elem($first),
                    ));
                }
                Form::Matrices(layout) => {
                    use matrices::$pass;
                    launch!($kernels, grid, $pass(
                        vector, argument($first), $(argument($buffer),)*
                        packed, mask, layout, elem($first),
                    ));
                }
            }
        }
    };
}

pub(super) fn forward(
    kernels: &CubeKernels,
    qkv: CubeTensor,
    shape: AttentionShape,
) -> (CubeTensor, CubeTensor) {
    let [n, three_c] = qkv.shape().dims();
    let qkv = contiguous(qkv);
    let out = kernels.queue.empty_of([n, three_c / 3], qkv.dtype);
    let log_sum_exp = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    let launches = Launches::new(kernels, &qkv, shape, three_c / 3);
    pass!(kernels, launches, attend(&qkv, &out, &log_sum_exp));
    (out, log_sum_exp)
}

pub(super) fn backward(
    kernels: &CubeKernels,
    dout: CubeTensor,
    qkv: CubeTensor,
    out: CubeTensor,
    log_sum_exp: CubeTensor,
    shape: AttentionShape,
) -> CubeTensor {
    let [n, three_c] = qkv.shape().dims();
    let [dout, qkv, out, log_sum_exp] = [dout, qkv, out, log_sum_exp].map(contiguous);
    let delta = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    let dqkv = kernels.queue.empty_of([n, three_c], qkv.dtype);
    let launches = Launches::new(kernels, &qkv, shape, three_c / 3);
    pass!(kernels, launches, backward_queries(&qkv, &out, &dout, &log_sum_exp, &delta, &dqkv));
    pass!(kernels, launches, backward_keys(&qkv, &dout, &log_sum_exp, &delta, &dqkv));
    dqkv
}
