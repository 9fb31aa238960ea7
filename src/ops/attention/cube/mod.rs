//! Attention on CUDA, by wgpt's own kernels where they run, and in cubecl's language: on tensor cores that take
//! the activations' dtype or tf32, else in f32.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionBackwardInputs, AttentionInputs, AttentionShape, scale};
use crate::config::Dtype;
use crate::gpu::queue::Workgroups;
use crate::ops::dropout::cube::{Mask, keep, mask, sequence_key};
use crate::ops::shared::cube::{CubeKernels, Gpu, elem, launch};

#[cfg(feature = "cuda")]
mod cuda;
mod layout;
mod matrices;
mod scalar;
mod strip;

use layout::{HeadRows, PLANES, StripLayout};
use scalar::TileLayout;

/// The dimensions of packed qkv, `[batch * time, (heads + 2 * kv_heads) * size]`, and the parameters of a
/// launch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Packed {
    time: usize,
    heads: usize,
    kv_heads: usize,
    /// `1 / sqrt(head size)`.
    scale: f32,
    /// Blocks of the positions that a workgroup owns.
    blocks: usize,
    /// The index of the launch's first pair of a sequence and a head: of keys, in their pass.
    first_pair: usize,
    mask: Mask,
}

#[cube]
impl Packed {
    /// Returns the pair of a sequence and a head that the workgroup computes.
    fn pair(&self) -> usize {
        self.first_pair + CUBE_POS_Y as usize
    }

    /// Returns how many heads of queries share a head of keys.
    fn sharing(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Returns the pair of the `nth` head of queries that share the head of keys of the workgroup.
    fn sharing_pair(&self, nth: usize) -> usize {
        let pair = self.pair();
        let head = pair % self.kv_heads * self.sharing() + nth;
        pair / self.kv_heads * self.heads + head
    }

    /// Returns a pair's queries, keys or values in packed qkv: thirds 0, 1, 2.
    fn third(&self, pair: usize, #[comptime] third: usize, #[comptime] size: usize) -> HeadRows {
        let mut head = pair % self.heads;
        if comptime!(third > 0) {
            head = head / self.sharing() + self.heads;
        }
        if comptime!(third > 1) {
            head += self.kv_heads;
        }
        let heads = self.heads + 2 * self.kv_heads;
        HeadRows {
            start: (pair / self.heads * self.time * heads + head) * size,
            stride: heads * size,
            last: self.time - 1,
        }
    }

    /// Returns a pair's rows in the output or its gradient, `[batch * time, heads * size]`.
    fn merged(&self, pair: usize, #[comptime] size: usize) -> HeadRows {
        let first = pair / self.heads * self.time;
        HeadRows {
            start: (first * self.heads + pair % self.heads) * size,
            stride: self.heads * size,
            last: self.time - 1,
        }
    }

    /// Returns the place of a position's statistics. Positions from `time` on have the last place.
    fn statistic(&self, pair: usize, position: usize) -> usize {
        pair * self.time + min(position, self.time - 1)
    }

    /// Returns the key of the dropout mask of a pair's sequence.
    fn mask_key(&self, pair: usize) -> u32 {
        sequence_key(&self.mask, pair / self.heads)
    }

    /// Returns the factor of a probability by dropout, zero or the mask's scale.
    fn keep(&self, mask_key: u32, pair: usize, query: usize, key: usize) -> f32 {
        let place = (pair % self.heads * self.time + query) * self.time + key;
        keep(&self.mask, mask_key, place)
    }
}

#[derive(Clone, Copy)]
enum Multiplication {
    Scalar(TileLayout),
    Matrices(StripLayout),
}

/// A shape of cooperative matrices: sums `[side, side]` of products over `depth`, from factors of `factor`.
struct MatrixShape {
    side: usize,
    depth: usize,
    factor: ElemType,
}

impl MatrixShape {
    /// Returns the largest shape whose sums are square and f32. Its factors have the dtype of `x`, or
    /// tf32 if products may be rounded so: in float32 there is none.
    fn of(kernels: &CubeKernels, x: &CubeTensor) -> Option<Self> {
        let factor = match (x.dtype, kernels.dtype) {
            (DType::F32, Dtype::Tf32) => tf32::elem_type_native(),
            (DType::F32, _) => return None,
            _ => elem(x),
        };
        let listed = kernels.queue.client.properties().features.matmul.cmma.iter();
        listed
            .filter(|it| it.m == it.n && [8, 16].contains(&it.m) && it.m.is_multiple_of(it.k))
            .filter(|it| it.a_type == factor && it.b_type == factor)
            .filter(|it| it.cd_type == f32::elem_type_native())
            .map(|it| Self { side: it.m as usize, depth: it.k as usize, factor })
            .max_by_key(|it| (it.side, it.depth))
    }
}

/// The launches of one pass.
struct Launches {
    shape: AttentionShape,
    multiplication: Multiplication,
    size: usize,
    vector: usize,
    elem: ElemType,
    /// The element type of the factors of matrices.
    factor: ElemType,
    /// The most multiplications and additions of each.
    operations: u64,
}

impl Launches {
    /// Chooses matrices where the device has them for the dtype of `qkv`.
    fn new(kernels: &CubeKernels, qkv: &CubeTensor, shape: AttentionShape) -> Self {
        let size = shape.size(qkv.shape()[1]);
        let vector = if size.is_multiple_of(4) { 4 } else { 1 };
        let dropout = shape.dropout.is_some();
        let memory = kernels.queue.workgroup_memory();
        let matrices = MatrixShape::of(kernels, qkv);
        let factor = matrices.as_ref().map_or(elem(qkv), |it| it.factor);
        let strips = matrices.and_then(|MatrixShape { side, depth, factor }| {
            let lanes = kernels.queue.subgroup()? as usize;
            let bytes = factor.size();
            let layout = StripLayout { size, vector, side, depth, bytes, lanes, dropout };
            (lanes.is_multiple_of(side) && layout.memory() <= memory).then_some(layout)
        });
        let tiles = || TileLayout::new(memory, size / vector, vector, dropout);
        let multiplication =
            strips.map_or_else(|| Multiplication::Scalar(tiles()), Multiplication::Matrices);
        let operations = kernels.queue.driver.operations;
        Self { shape, multiplication, size, vector, elem: elem(qkv), factor, operations }
    }

    /// Returns the grid and the parameters of each launch of a pass with `pass_heads` heads.
    fn each(
        &self,
        pass_heads: usize,
    ) -> impl Iterator<Item = ((CubeCount, CubeDim), PackedLaunch)> {
        let AttentionShape { time, heads, kv_heads, dropout, .. } = self.shape;
        // The positions that a workgroup owns, and its invocations.
        let (rows, workgroup) = match self.multiplication {
            Multiplication::Scalar(_) => (scalar::UNITS as usize, CubeDim::new_1d(scalar::UNITS)),
            Multiplication::Matrices(layout) => {
                (layout.rows(), CubeDim::new_2d(layout.lanes as u32, PLANES as u32))
            }
        };
        let blocks = time.div_ceil(rows);
        let scale = scale(self.size);
        let dispatches = self.shape.dispatches(self.size, pass_heads, self.operations);
        dispatches.map(move |(first, pairs)| {
            let mask = mask(dropout.as_ref());
            let packed = PackedLaunch::new(time, heads, kv_heads, scale, blocks, first, mask);
            ((Workgroups::Plane(blocks, pairs).count(), workgroup), packed)
        })
    }
}

/// Launches a pass over heads: `pass!(kernels, launches, heads, kernel(&[buffer...]))`.
macro_rules! pass {
    ($kernels:expr, $launches:expr, $heads:expr, $pass:ident(&[$($buffer:expr),*])) => {
        let Launches { multiplication, vector, elem, factor, .. } = $launches;
        for (grid, packed) in $launches.each($heads) {
            match multiplication {
                Multiplication::Scalar(layout) => {
                    launch!($kernels, grid, scalar::$pass(
                        vector, &[$($buffer),*], packed, layout, elem
                    ));
                }
                Multiplication::Matrices(layout) => {
                    launch!($kernels, grid, matrices::$pass(
                        vector, &[$($buffer),*], packed, layout, elem, factor
                    ));
                }
            }
        }
    };
}

pub(super) fn forward(
    kernels: &CubeKernels,
    inputs: AttentionInputs<Gpu>,
) -> (CubeTensor, CubeTensor) {
    let AttentionInputs { qkv, shape } = inputs;
    #[cfg(feature = "cuda")]
    if let Some(kernels) = cuda::Kernels::of(kernels, &qkv, shape) {
        return kernels.forward(qkv);
    }
    let [n, width] = qkv.shape().dims();
    let out = kernels.queue.empty_of([n, shape.heads * shape.size(width)], qkv.dtype);
    let log_sum_exp = kernels.queue.empty([shape.batch, shape.heads, shape.time]);
    let launches = Launches::new(kernels, &qkv, shape);
    pass!(kernels, launches, shape.heads, attend(&[&qkv, &out, &log_sum_exp]));
    (out, log_sum_exp)
}

pub(super) fn backward(kernels: &CubeKernels, inputs: AttentionBackwardInputs<Gpu>) -> CubeTensor {
    #[cfg(feature = "cuda")]
    if let Some(kernels) = cuda::Kernels::of(kernels, &inputs.qkv, inputs.shape) {
        return kernels.backward(inputs);
    }
    let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, shape } = inputs;
    let delta = kernels.queue.empty(log_sum_exp.shape());
    let dqkv = kernels.queue.empty_of(qkv.shape(), qkv.dtype);
    let launches = Launches::new(kernels, &qkv, shape);
    let AttentionShape { heads, kv_heads, .. } = shape;
    pass!(
        kernels,
        launches,
        heads,
        backward_queries(&[&qkv, &out, &dout, &log_sum_exp, &delta, &dqkv])
    );
    pass!(kernels, launches, kv_heads, backward_keys(&[&qkv, &dout, &log_sum_exp, &delta, &dqkv]));
    dqkv
}
