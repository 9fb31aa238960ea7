use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Buckets, EmbedInputs, PositionGradientInputs, TokenGradientInputs};
use crate::gpu::stored;
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::owned;

/// `y[row] = base[row mod period] + shard[id of row - first]`, without the second term for ids that
/// the shard does not hold. An invocation for each element.
#[cube(launch_unchecked)]
fn look_up<W: Float, B: Float, T: Float>(
    shard: &[W],
    base: &[B],
    ids: &[u32],
    y: &mut [T],
    elements: usize,
    width: usize,
    period: usize,
    first: usize,
    rows: usize,
    #[define(W, B, T)] _elems: [ElemType; 3],
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let row = i / width;
        let column = i - row * width;
        let mut value = f32::cast_from(base[row % period * width + column]);
        let id = ids[row] as usize;
        if id >= first && id < first + rows {
            value += f32::cast_from(shard[(id - first) * width + column]);
        }
        y[i] = T::cast_from(value);
    }
}

/// Adds the rows of dy to the rows of the shard's gradient for their tokens, in the order of the rows.
/// The host has sorted the rows by token: `index` is the sorted rows, then where each bucket begins
/// among them, then the buckets' rows of the shard. An invocation for each element of each bucket.
#[cube(launch_unchecked)]
fn add_buckets<T: Float>(
    dy: &[T],
    index: &[u32],
    d_shard: &mut [f32],
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
            sum += f32::cast_from(dy[index[k as usize] as usize * width + column]);
        }
        d_shard[at] = sum;
    }
}

/// The sum of dy over the periods, in their order; rows that no period reaches are zero. An
/// invocation for each element of `d_base`; `used` of them are reached, dy has `total`.
#[cube(launch_unchecked)]
fn sum_sequences<T: Float>(
    dy: &[T],
    d_base: &mut [f32],
    elements: usize,
    used: usize,
    total: usize,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let mut sum = 0.0f32;
        if i < used {
            let mut at = i;
            while at < total {
                sum += f32::cast_from(dy[at]);
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
    launch!(
        kernels,
        cover(tokens.len() * c),
        look_up(
            &[&shard, &base, &ids, &y],
            tokens.len() * c,
            c,
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
    launch!(
        kernels,
        cover(count * c),
        add_buckets(&[&dy, &index, &d_shard], count, c, starts, places, elem(&dy))
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
    launch!(
        kernels,
        cover(positions * c),
        sum_sequences(&[&dy, &sums], positions * c, time * c, n * c, elem(&dy))
    );
    sums
}
