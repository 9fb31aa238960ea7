use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Buckets, EmbedInputs, PositionGradientInputs, TokenGradientInputs};
use crate::gpu::stored;
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::owned;

/// `y[row] = base[row mod period] + shard[id of row - first]`, without the second term for ids that
/// the shard does not hold. An invocation for each vector; rows have `width` of them.
#[cube(launch_unchecked)]
fn look_up<W: Float, B: Float, T: Float, N: Size>(
    shard: &[Vector<W, N>],
    base: &[Vector<B, N>],
    ids: &[u32],
    y: &mut [Vector<T, N>],
    vectors: usize,
    width: usize,
    period: usize,
    first: usize,
    rows: usize,
    #[define(W, B, T)] _elems: [ElemType; 3],
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let row = i / width;
        let column = i - row * width;
        let mut value = Vector::<f32, N>::cast_from(base[row % period * width + column]);
        let id = ids[row] as usize;
        if id >= first && id < first + rows {
            value += Vector::cast_from(shard[(id - first) * width + column]);
        }
        y[i] = Vector::cast_from(value);
    }
}

/// Adds the rows of dy to the rows of the shard's gradient for their tokens, in the order of the rows.
/// The host has sorted the rows by token: `index` is the sorted rows, then where each bucket begins
/// among them, then the buckets' rows of the shard. An invocation for each vector of each bucket.
#[cube(launch_unchecked)]
fn add_buckets<T: Float, N: Size>(
    dy: &[Vector<T, N>],
    index: &[u32],
    d_shard: &mut [Vector<f32, N>],
    buckets: usize,
    width: usize,
    starts: usize,
    places: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < buckets * width {
        let bucket = i / width;
        let column = i - bucket * width;
        let at = index[places + bucket] as usize * width + column;
        let mut sum = d_shard[at];
        for k in index[starts + bucket]..index[starts + bucket + 1] {
            sum += Vector::cast_from(dy[index[k as usize] as usize * width + column]);
        }
        d_shard[at] = sum;
    }
}

/// The sum of dy over the periods, in their order; rows that no period reaches are zero. An
/// invocation for each vector of `d_base`; `used` of them are reached, dy has `total`.
#[cube(launch_unchecked)]
fn sum_sequences<T: Float, N: Size>(
    dy: &[Vector<T, N>],
    d_base: &mut [Vector<f32, N>],
    vectors: usize,
    used: usize,
    total: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        if i < used {
            let mut at = i;
            while at < total {
                sum += Vector::cast_from(dy[at]);
                at += used;
            }
        }
        d_base[i] = sum;
    }
}

pub(super) fn forward(kernels: &CubeKernels, inputs: EmbedInputs<Gpu>) -> CubeTensor {
    let EmbedInputs { shard, base, tokens, first, period } = inputs;
    let [rows, c] = shard.shape().dims();
    let y = kernels.queue.empty_of([tokens.len(), c], stored(kernels.dtype));
    let ids = kernels.queue.upload(&tokens);
    let vector = kernels.vector(y.dtype, c);
    let width = c / vector;
    let vectors = tokens.len() * width;
    launch!(
        kernels,
        cover(vectors),
        look_up(
            vector,
            &[&shard, &base, &ids, &y],
            vectors,
            width,
            period,
            first,
            rows,
            [elem(&shard), elem(&base), elem(&y)],
        )
    );
    y
}

pub(super) fn by_token(kernels: &CubeKernels, inputs: TokenGradientInputs<Gpu>) -> CubeTensor {
    let TokenGradientInputs { dy, into, tokens, shard } = inputs;
    let d_shard = owned(into);
    let Some(Buckets { count, index, starts, places }) = Buckets::new(&tokens, &shard) else {
        return d_shard;
    };
    let [_, c] = dy.shape().dims();
    let index = kernels.queue.upload(&index);
    let vector = kernels.vector(dy.dtype, c);
    let width = c / vector;
    launch!(
        kernels,
        cover(count * width),
        add_buckets(vector, &[&dy, &index, &d_shard], count, width, starts, places, elem(&dy),)
    );
    d_shard
}

pub(super) fn by_position(
    kernels: &CubeKernels,
    inputs: PositionGradientInputs<Gpu>,
) -> CubeTensor {
    let PositionGradientInputs { dy, time, positions } = inputs;
    let [n, c] = dy.shape().dims();
    let sums = kernels.queue.empty([positions, c]);
    let vector = kernels.vector(dy.dtype, c);
    let width = c / vector;
    launch!(
        kernels,
        cover(positions * width),
        sum_sequences(vector, &[&dy, &sums], positions * width, time * width, n * width, elem(&dy),)
    );
    sums
}
