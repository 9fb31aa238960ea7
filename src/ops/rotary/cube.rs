//! The rotation in cubecl's language. An invocation has a pair of vectors of a head, `i` and `i + half`: `half` is
//! the number of vectors in half a head.

use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{COSINE, RADIANS, RotaryBackwardInputs, RotaryInputs, RotaryShape, SINE};
use crate::ops::shared::cube::{CubeKernels, Gpu, each, elem, launch};
use crate::ops::shared::kernels::{in_place, owned};
use crate::plan::NORM_GROUPS;

/// Invocations in a workgroup: several of the largest heads.
const UNITS: u32 = 128;

#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Packed {
    rows: usize,
    time: usize,
    heads: usize,
    kv_heads: usize,
    eps: f32,
    /// 1, or -1 to rotate back.
    direction: f32,
}

#[cube]
impl Packed {
    /// Returns the start of a head of a row, in vectors.
    fn at(&self, row: usize, head: usize, #[comptime] half: usize) -> usize {
        (row * (self.heads + 2 * self.kv_heads) + head) * comptime!(2 * half)
    }
}

#[derive(CubeType)]
struct Rotation<N: Size> {
    cosine: Vector<f32, N>,
    sine: Vector<f32, N>,
}

/// Returns the rotation of the pairs of vector `i` at a position, as `cosine_and_sine` computes it.
#[cube]
fn rotation<N: Size>(
    turns: &[Vector<u32, N>],
    i: usize,
    position: usize,
    direction: f32,
) -> Rotation<N> {
    let turns = turns[i];
    let mut cosines = Vector::<f32, N>::new(0.0f32);
    let mut sines = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..N::value() {
        let angle = position as u32 * turns.extract(j);
        let quadrant = (angle + comptime!(1u32 << 29)) >> 30u32;
        let x = f32::cast_from(i32::reinterpret(angle - (quadrant << 30u32))) * RADIANS;
        let square = x * x;
        let series = comptime!(SINE[1]) + square * comptime!(SINE[2]);
        let sine = x + x * square * (comptime!(SINE[0]) + square * series);
        let series = comptime!(COSINE[1]) + square * comptime!(COSINE[2]);
        let tail = comptime!(COSINE[0]) + square * series;
        let cosine = 1.0f32 - 0.5f32 * square + square * square * tail;
        let odd = quadrant % 2u32 == 1u32;
        let of_cosine = select((quadrant + 1u32) % 4u32 >= 2u32, -1.0f32, 1.0f32);
        let of_sine = select(quadrant >= 2u32, -direction, direction);
        cosines.insert(j, select(odd, sine, cosine) * of_cosine);
        sines.insert(j, select(odd, cosine, sine) * of_sine);
    }
    Rotation::<N> { cosine: cosines, sine: sines }
}

/// Returns the sum of `own` over the invocations of head `nth` of the workgroup.
#[cube]
fn head_sum(own: f32, nth: usize, #[comptime] half: usize) -> f32 {
    let mut parts = Shared::<[f32]>::new_slice(UNITS as usize);
    parts[UNIT_POS as usize] = own;
    sync_cube();
    let begin = min(nth, comptime!(UNITS as usize / half - 1)) * half;
    let mut sum = 0.0f32;
    for i in 0..half {
        sum += parts[begin + i];
    }
    // The next sum may get the same memory.
    sync_cube();
    sum
}

#[cube]
fn either<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    rotated: &[Vector<T, N>],
    at: usize,
    #[comptime] in_place: bool,
) -> Vector<f32, N> {
    if comptime!(in_place) { Vector::cast_from(rotated[at]) } else { Vector::cast_from(qkv[at]) }
}

#[cube]
fn weight<N: Size>(
    q_norm: &[Vector<f32, N>],
    k_norm: &[Vector<f32, N>],
    is_query: bool,
    i: usize,
) -> Vector<f32, N> {
    if is_query { q_norm[i] } else { k_norm[i] }
}

/// Normalises, if `normed`, and rotates q and k of packed qkv. If not `in_place`, it also copies the values.
#[cube(launch_unchecked)]
fn rotate<T: Float, N: Size>(
    qkv: &[Vector<T, N>],
    rotated: &mut [Vector<T, N>],
    q_norm: &[Vector<f32, N>],
    k_norm: &[Vector<f32, N>],
    turns: &[Vector<u32, N>],
    p: Packed,
    #[comptime] half: usize,
    #[comptime] in_place: bool,
    #[comptime] normed: bool,
    #[define(T)] _elem: ElemType,
) {
    let of_workgroup = comptime!(UNITS as usize / half);
    let nth = UNIT_POS as usize / half;
    let i = UNIT_POS as usize % half;
    let index = CUBE_POS * of_workgroup + nth;
    let rotating = p.heads + p.kv_heads;
    let heads = rotating + comptime!(usize::from(!in_place)) * p.kv_heads;
    let row = index / heads;
    let head = index % heads;
    let at = p.at(min(row, p.rows - 1), head, half) + i;
    let mut low = either::<T, N>(qkv, &*rotated, at, in_place);
    let mut high = either::<T, N>(qkv, &*rotated, at + half, in_place);
    if comptime!(normed) {
        let squares = head_sum((low * low + high * high).vector_sum(), nth, half);
        let vector = N::value().comptime();
        let size = comptime!((2 * half * vector) as f32);
        let scale = Vector::<f32, N>::new(1.0f32 / (squares / size + p.eps).sqrt());
        if head < rotating {
            low *= scale * weight(q_norm, k_norm, head < p.heads, i);
            high *= scale * weight(q_norm, k_norm, head < p.heads, i + half);
        }
    }
    if nth < of_workgroup && row < p.rows {
        if head < rotating {
            let by = rotation(turns, i, row % p.time, p.direction);
            rotated[at] = Vector::cast_from(low * by.cosine - high * by.sine);
            rotated[at + half] = Vector::cast_from(high * by.cosine + low * by.sine);
        } else {
            rotated[at] = Vector::cast_from(low);
            rotated[at + half] = Vector::cast_from(high);
        }
    }
}

/// Gradients of normalised heads, in place: rotates them back, to d, and turns them into
/// `rstd * (g - x_hat * mean(g * x_hat))` with `g = d * weight`. A workgroup takes its rows in order and
/// keeps its sums of `d * x_hat` in registers.
#[cube(launch_unchecked)]
fn gradients<T: Float, N: Size>(
    d_qkv: &mut [Vector<T, N>],
    qkv: &[Vector<T, N>],
    q_norm: &[Vector<f32, N>],
    k_norm: &[Vector<f32, N>],
    turns: &[Vector<u32, N>],
    partial: &mut [Vector<f32, N>],
    p: Packed,
    rows_per_group: usize,
    #[comptime] half: usize,
    #[define(T)] _elem: ElemType,
) {
    let of_workgroup = comptime!(UNITS as usize / half);
    let nth = UNIT_POS as usize / half;
    let i = UNIT_POS as usize % half;
    let heads = p.heads + p.kv_heads;
    let last = min((CUBE_POS + 1) * rows_per_group, p.rows) * heads;
    let vector = N::value().comptime();
    let size = comptime!((2 * half * vector) as f32);
    // Of the weights of q and of k, each in two halves.
    let mut q_low = Vector::<f32, N>::new(0.0f32);
    let mut q_high = Vector::<f32, N>::new(0.0f32);
    let mut k_low = Vector::<f32, N>::new(0.0f32);
    let mut k_high = Vector::<f32, N>::new(0.0f32);
    let mut begin = CUBE_POS * rows_per_group * heads;
    while begin < last {
        let index = begin + nth;
        let present = nth < of_workgroup && index < last;
        // Past the end, this reads the last head again.
        let row = min(index, last - 1) / heads;
        let head = min(index, last - 1) % heads;
        let at = p.at(row, head, half) + i;
        let low = Vector::<f32, N>::cast_from(qkv[at]);
        let high = Vector::<f32, N>::cast_from(qkv[at + half]);
        let d_low = Vector::<f32, N>::cast_from(d_qkv[at]);
        let d_high = Vector::<f32, N>::cast_from(d_qkv[at + half]);
        let squares = head_sum((low * low + high * high).vector_sum(), nth, half);
        let scale = 1.0f32 / (squares / size + p.eps).sqrt();
        let rstd = Vector::<f32, N>::new(scale);
        let by = rotation(turns, i, row % p.time, p.direction);
        let mut g_low = d_low * by.cosine - d_high * by.sine;
        let mut g_high = d_high * by.cosine + d_low * by.sine;
        let is_query = head < p.heads;
        if present && is_query {
            q_low += g_low * low * rstd;
            q_high += g_high * high * rstd;
        } else if present {
            k_low += g_low * low * rstd;
            k_high += g_high * high * rstd;
        }
        g_low *= weight(q_norm, k_norm, is_query, i);
        g_high *= weight(q_norm, k_norm, is_query, i + half);
        let products = head_sum((g_low * low + g_high * high).vector_sum(), nth, half);
        let mean = Vector::<f32, N>::new(products * scale * scale / size);
        if present {
            d_qkv[at] = Vector::cast_from((g_low - low * mean) * rstd);
            d_qkv[at + half] = Vector::cast_from((g_high - high * mean) * rstd);
        }
        begin += of_workgroup;
    }
    let at = 4 * CUBE_POS * half;
    write_sum(partial, q_low, at, half);
    write_sum(partial, q_high, at + half, half);
    write_sum(partial, k_low, at + comptime!(2 * half), half);
    write_sum(partial, k_high, at + comptime!(3 * half), half);
}

/// Writes the sum of the heads of the workgroup, for each of its pairs.
#[cube]
fn write_sum<N: Size>(
    partial: &mut [Vector<f32, N>],
    own: Vector<f32, N>,
    at: usize,
    #[comptime] half: usize,
) {
    let mut parts = Shared::<[Vector<f32, N>]>::new_slice(UNITS as usize);
    let unit = UNIT_POS as usize;
    parts[unit] = own;
    sync_cube();
    if unit < half {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for nth in 0..comptime!(UNITS as usize / half) {
            sum += parts[nth * half + unit];
        }
        partial[at + unit] = sum;
    }
    sync_cube();
}

fn packed(shape: RotaryShape, rows: usize, direction: f32) -> PackedLaunch {
    let RotaryShape { time, heads, kv_heads, eps, .. } = shape;
    PackedLaunch::new(rows, time, heads, kv_heads, eps, direction)
}

pub(super) fn forward(kernels: &CubeKernels, inputs: RotaryInputs<Gpu>) -> CubeTensor {
    let RotaryInputs { qkv, norms, shape } = inputs;
    let (source, rotated) = in_place(&kernels.queue, qkv);
    let (q_norm, k_norm) = norms.unzip();
    launch_rotation(kernels, source, &rotated, [q_norm, k_norm], shape, 1.0);
    rotated
}

fn launch_rotation(
    kernels: &CubeKernels,
    source: Option<CubeTensor>,
    rotated: &CubeTensor,
    [q_norm, k_norm]: [Option<CubeTensor>; 2],
    shape: RotaryShape,
    direction: f32,
) {
    let [n, width] = rotated.shape().dims();
    let size = shape.size(width);
    let turns = kernels.queue.upload(&shape.turns(size));
    let heads = if source.is_none() { shape.rotated() } else { width / size };
    let vector = kernels.vector(rotated.dtype, size / 2);
    let half = size / 2 / vector;
    launch!(
        kernels,
        each((n * heads).div_ceil(UNITS as usize / half), UNITS),
        rotate(
            vector,
            &[source.as_ref(), rotated, q_norm.as_ref(), k_norm.as_ref(), &turns],
            packed(shape, n, direction),
            half,
            source.is_none(),
            q_norm.is_some(),
            elem(rotated),
        )
    );
}

pub(super) fn backward(
    kernels: &CubeKernels,
    inputs: RotaryBackwardInputs<Gpu>,
) -> (CubeTensor, Option<CubeTensor>) {
    let RotaryBackwardInputs { dqkv, qkv, norms, shape } = inputs;
    let dqkv = owned(dqkv);
    let [n, width] = dqkv.shape().dims();
    let Some((q_norm, k_norm)) = norms else {
        launch_rotation(kernels, None, &dqkv, [None, None], shape, -1.0);
        return (dqkv, None);
    };
    let qkv = qkv.expect("qkv as the op took it");
    let size = shape.size(width);
    let rows_per_group = n.div_ceil(NORM_GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let partial = kernels.queue.empty([groups, 2, size]);
    let turns = kernels.queue.upload(&shape.turns(size));
    let vector = kernels.vector(dqkv.dtype, size / 2);
    launch!(
        kernels,
        each(groups, UNITS),
        gradients(
            vector,
            &[&dqkv, &qkv, &q_norm, &k_norm, &turns, &partial],
            packed(shape, n, -1.0),
            rows_per_group,
            size / 2 / vector,
            elem(&dqkv),
        )
    );
    (dqkv, Some(partial))
}
