//! The embedding by tensor operations.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::{FloatDType, IndexingUpdateOp, Slice, TensorData};

use crate::ops::shared::{device, shape};

/// The rows of the tokens in a shard that holds the tokens `held`, and a factor for each, `[n, 1]`:
/// 0 for a token of another shard.
fn places<B: Backend>(
    tokens: &[u32],
    held: &Range<usize>,
    device: &Device<B>,
) -> (IntTensor<B>, FloatTensor<B>) {
    let place = |&token: &u32| match held.contains(&(token as usize)) {
        true => (token as usize - held.start) as i32,
        false => 0,
    };
    let factor = |token: &u32| f32::from(held.contains(&(*token as usize)));
    let n = tokens.len();
    let places: Vec<i32> = tokens.iter().map(place).collect();
    let factors: Vec<f32> = tokens.iter().map(factor).collect();
    (
        B::int_from_data(TensorData::new(places, [n]), device),
        B::float_from_data(TensorData::new(factors, [n, 1]), device),
    )
}

pub(super) fn forward<B: Backend>(
    table: FloatTensor<B>,
    base: FloatTensor<B>,
    tokens: Arc<[u32]>,
    first: usize,
    period: usize,
) -> FloatTensor<B> {
    let [rows, c] = shape::<B>(&table).dims();
    let (places, factors) = places::<B>(&tokens, &(first..first + rows), &device::<B>(&table));
    let x = B::float_mul(B::float_select(table, 0, places), factors);
    let x = B::float_reshape(x, [tokens.len() / period, period, c].into());
    let base = B::float_slice(base, &[Slice::from(0..period)]);
    let x = B::float_add(x, B::float_reshape(base, [1, period, c].into()));
    B::float_reshape(x, [tokens.len(), c].into())
}

pub(super) fn backward<B: Backend>(
    dy: FloatTensor<B>,
    into: FloatTensor<B>,
    tokens: Arc<[u32]>,
    shard: Range<usize>,
    period: usize,
    base_rows: usize,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let device = device::<B>(&dy);
    let [n, c] = shape::<B>(&dy).dims();
    let by_period = B::float_reshape(dy.clone(), [n / period, period, c].into());
    let used = B::float_reshape(B::float_sum_dim(by_period, 0), [period, c].into());
    let dbase = if period == base_rows {
        used
    } else {
        let unused = B::float_zeros([base_rows - period, c].into(), &device, FloatDType::F32);
        B::float_cat(vec![used, unused], 0)
    };
    let (places, factors) = places::<B>(&tokens, &shard, &device);
    let dy = B::float_mul(dy, factors);
    let dtable = B::float_select_assign(into, 0, places, dy, IndexingUpdateOp::Add);
    (dtable, dbase)
}
