//! Attention in cubecl's language.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionShape, pairs_at_a_time};
use crate::gpu::queue::Workgroups;
use crate::ops::dropout::cube::{Mask, MaskLaunch, keep, mask, sequence_key};
use crate::ops::shared::cube::math::{exp, ln};
use crate::ops::shared::cube::{CubeKernels, argument, elem, launch};
use crate::ops::shared::kernels::contiguous;

mod backward;

pub(super) use backward::backward;

/// Invocations in a workgroup. Each owns a row; together they walk over the other side in shared
/// tiles.
const UNITS: u32 = 64;

/// Below every score, and finite: infinity minus infinity is NaN.
const LEAST: f32 = -3.0e38;

/// The number of positions in a tile of the kernels: rows of two matrices, and two values for each
/// row, within `memory` bytes.
fn tile(memory: usize, size: usize) -> u32 {
    let mut tile = 32;
    while tile > 8 && tile * (2 * size + 2) * 4 > memory {
        tile /= 2;
    }
    tile as u32
}

/// The compile-time parameters of all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form {
    /// A head's size in vectors.
    size: usize,
    /// Positions in a tile.
    tile: usize,
    dropout: bool,
}

/// The layout of packed qkv, `[batch * time, 3 * heads * size]`.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Packed {
    time: usize,
    heads: usize,
    /// `1 / sqrt(head size)`.
    scale: f32,
    /// Blocks of `UNITS` positions.
    blocks: usize,
    /// The index of the launch's first pair of a sequence and a head.
    first_pair: usize,
}

/// The offset of a position's row in packed qkv; part 0 is the query, 1 the key, 2 the value.
/// Positions from `time` on read the last row, and their values are masked.
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

/// The offset of a position's row in the output, `[batch * time, heads * size]`.
#[cube]
fn row_at(p: &Packed, pair: usize, position: usize, #[comptime] size: usize) -> usize {
    let row = pair / p.heads * p.time + min(position, p.time - 1);
    (row * p.heads + pair % p.heads) * size
}

/// The index of a probability in its sequence's dropout mask.
#[cube]
fn mask_at(p: &Packed, pair: usize, query: usize, key: usize) -> usize {
    (pair % p.heads * p.time + query) * p.time + key
}

/// The output and the log-sum-exp of the scores, `[batch, heads, time]`, by a running maximum. An
/// invocation owns a query; the workgroup goes through the keys up to its last query.
#[cube(launch_unchecked)]
fn attend<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    out: &mut [Vector<T, N>],
    log_sum_exp: &mut [f32],
    p: Packed,
    mask: Mask,
    #[comptime] form: Form,
    #[define(T)] _elem: ElemType,
) {
    let size = comptime!(form.size);
    let tile = comptime!(form.tile);
    let lane = UNIT_POS as usize;
    let units = UNITS as usize;
    let pair = p.first_pair + CUBE_POS_Y as usize;
    // The last queries see the most keys: they come first.
    let first = (p.blocks - 1 - CUBE_POS_X as usize) * units;
    let own = first + lane;
    let mask_key = sequence_key(&mask, pair / p.heads);

    let mut keys = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut values = Shared::<[Vector<f32, N>]>::new_slice(comptime!(form.tile * form.size));
    let mut q = Array::<Vector<f32, N>>::new(size);
    let mut acc = Array::<Vector<f32, N>>::new(size);
    let at = packed_at(&p, pair, own, 0usize, size);
    for d in 0..size {
        // Scaled before the product: the large scores of a long row stay in range.
        q[d] = Vector::<f32, N>::cast_from(qkv[at + d]) * Vector::new(p.scale);
        acc[d] = Vector::new(0.0f32);
    }
    let mut largest = LEAST.runtime();
    let mut sum = 0.0f32;

    let end = min(first + units, p.time);
    let mut begin = 0usize.runtime();
    while begin < end {
        let mut i = lane;
        while i < tile * size {
            let position = begin + i / size;
            keys[i] =
                Vector::cast_from(qkv[packed_at(&p, pair, position, 1usize, size) + i % size]);
            values[i] =
                Vector::cast_from(qkv[packed_at(&p, pair, position, 2usize, size) + i % size]);
            i += units;
        }
        sync_cube();
        let seen = min(min(begin + tile, end), own + 1);
        for key in begin..seen {
            let place = (key - begin) * size;
            let mut products = Vector::<f32, N>::new(0.0f32);
            for d in 0..size {
                products += q[d] * keys[place + d];
            }
            let score = products.vector_sum();
            if score > largest {
                let factor = exp(largest - score);
                sum *= factor;
                for d in 0..size {
                    acc[d] *= Vector::new(factor);
                }
                largest = score;
            }
            let mut prob = exp(score - largest);
            sum += prob;
            if comptime!(form.dropout) {
                prob *= keep(&mask, mask_key, mask_at(&p, pair, own, key));
            }
            for d in 0..size {
                acc[d] += values[place + d] * Vector::new(prob);
            }
        }
        sync_cube();
        begin += tile;
    }

    if own < p.time {
        let at = row_at(&p, pair, own, size);
        for d in 0..size {
            out[at + d] = Vector::cast_from(acc[d] * Vector::new(1.0f32 / sum));
        }
        log_sum_exp[pair * p.time + own] = largest + ln(sum);
    }
}

/// The launches of one pass.
struct Launches {
    shape: AttentionShape,
    form: Form,
    /// Elements of a vector.
    vector: usize,
    scale: f32,
}

impl Launches {
    fn new(kernels: &CubeKernels, shape: AttentionShape, width: usize) -> Self {
        let size = width / shape.heads;
        let vector = if size.is_multiple_of(4) { 4 } else { 1 };
        let tile = tile(kernels.queue.workgroup_memory(), size) as usize;
        let form = Form { size: size / vector, tile, dropout: shape.dropout.is_some() };
        Self { shape, form, vector, scale: shape.scale(width) }
    }

    /// The grid, the layout of qkv and the mask of each launch.
    fn each(&self) -> impl Iterator<Item = (CubeCount, PackedLaunch, MaskLaunch)> {
        let AttentionShape { batch, time, heads, dropout } = self.shape;
        let blocks = time.div_ceil(UNITS as usize);
        let pairs = batch * heads;
        let at_a_time = pairs_at_a_time(time, self.form.size * self.vector);
        let scale = self.scale;
        (0..pairs).step_by(at_a_time).map(move |first| {
            let count = Workgroups::Plane(blocks, at_a_time.min(pairs - first)).count();
            let packed = PackedLaunch::new(time, heads, scale, blocks, first);
            (count, packed, mask(dropout.as_ref()))
        })
    }
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
    let launches = Launches::new(kernels, shape, three_c / 3);
    for (count, packed, mask) in launches.each() {
        launch!(attend(
            kernels.client(),
            count,
            CubeDim::new_1d(UNITS),
            launches.vector,
            argument(&qkv),
            argument(&out),
            argument(&log_sum_exp),
            packed,
            mask,
            launches.form,
            elem(&qkv),
        ));
    }
    (out, log_sum_exp)
}
