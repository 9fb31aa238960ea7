//! Dropout by tensor operations.

use burn::backend::Backend;
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::tensor::{FloatDType, IntDType, TensorData};

use super::{Dropout, MIX};
use crate::ops::shared::{device, shape};

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    time: usize,
    dropout: Dropout,
) -> FloatTensor<B> {
    let dims = shape::<B>(&x);
    let [n, c] = dims.dims();
    let device = device::<B>(&x);
    let index = B::int_arange(0..(time * c) as i64, &device, IntDType::I32);
    let index = B::int_reshape(index, [1, time * c].into());
    let mask = mask::<B>(&dropout, n / time, index, &device);
    let y = B::float_mul(x, B::float_reshape(mask, dims));
    match residual {
        Some(residual) => B::float_add(y, residual),
        None => y,
    }
}

/// The factors `0` or `1 / (1 - rate)` of the elements `index` `[1, len]` of each of `batch`
/// sequences, as `[batch, len]`, by integer tensor ops.
pub(in crate::ops) fn mask<B: Backend>(
    dropout: &Dropout,
    batch: usize,
    index: IntTensor<B>,
    device: &Device<B>,
) -> FloatTensor<B> {
    let keys: Vec<i32> = (0..batch).map(|s| dropout.sequence_key(s) as i32).collect();
    let keys = B::int_from_data(TensorData::new(keys, [batch, 1]), device);
    let hash = mix32_tensor::<B>(B::bitwise_xor(index, keys));
    let hash = mix32_tensor::<B>(B::bitwise_xor_scalar(hash, (dropout.key[1] as i32).into()));
    let hash = logical_shift::<B>(hash, 8);
    // 1 where hash >= threshold, else 0.
    let kept = B::int_sub_scalar(hash, (dropout.threshold() as i32 - 1).into());
    let kept = B::int_clamp(kept, 0.into(), 1.into());
    let kept = B::int_into_float(kept, FloatDType::F32);
    B::float_mul_scalar(kept, dropout.scale().into())
}

fn mix32_tensor<B: Backend>(x: IntTensor<B>) -> IntTensor<B> {
    let fold = |x: IntTensor<B>, by| B::bitwise_xor(x.clone(), logical_shift::<B>(x, by));
    let x = B::int_mul_scalar(fold(x, 16), (MIX[0] as i32).into());
    let x = B::int_mul_scalar(fold(x, 15), (MIX[1] as i32).into());
    fold(x, 16)
}

/// Tensor ops shift i32 with the sign; the copies of the sign bit are masked off.
fn logical_shift<B: Backend>(x: IntTensor<B>, by: u32) -> IntTensor<B> {
    let shifted = B::bitwise_right_shift_scalar(x, (by as i32).into());
    B::bitwise_and_scalar(shifted, ((u32::MAX >> by) as i32).into())
}
