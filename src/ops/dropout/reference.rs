use burn::tensor::{DType, Int, Tensor, TensorData};

use super::{Dropout, DropoutInputs, MIX};
use crate::ops::shared::dispatch::Reference;

pub(super) fn forward(inputs: DropoutInputs<Reference>) -> Tensor<2> {
    let DropoutInputs { x, residual, time, dropout } = inputs;
    let [n, c] = x.dims();
    let index = Tensor::arange(0..(time * c) as i64, (&x.device(), DType::I32));
    let y = x * mask(&dropout, n / time, index).reshape([n, c]);
    match residual {
        Some(residual) => y + residual,
        None => y,
    }
}

/// Returns the factors `0` or `1 / (1 - rate)` of the elements `index` of each of `batch` sequences, as
/// `[batch, len]`, by tensor operations on i32.
pub(in crate::ops) fn mask(dropout: &Dropout, batch: usize, index: Tensor<1, Int>) -> Tensor<2> {
    let keys: Vec<i32> = (0..batch).map(|s| dropout.sequence_key(s) as i32).collect();
    let keys = TensorData::new(keys, [batch, 1]);
    let keys = Tensor::<2, Int>::from_data(keys, (&index.device(), DType::I32));
    let hash = mix32_tensor(index.unsqueeze::<2>().bitwise_xor(keys));
    let hash = mix32_tensor(hash.bitwise_xor_scalar(dropout.key[1] as i32));
    // 1 where hash >= threshold, else 0.
    let kept = (logical_shift(hash, 8) - (dropout.threshold() as i32 - 1)).clamp(0, 1);
    kept.float() * dropout.scale()
}

fn mix32_tensor(x: Tensor<2, Int>) -> Tensor<2, Int> {
    let fold = |x: Tensor<2, Int>, by| x.clone().bitwise_xor(logical_shift(x, by));
    let x = fold(x, 16) * MIX[0] as i32;
    let x = fold(x, 15) * MIX[1] as i32;
    fold(x, 16)
}

/// Shifts without the sign: tensor operations shift an i32 with it, so its copies are masked off.
fn logical_shift(x: Tensor<2, Int>, by: u32) -> Tensor<2, Int> {
    x.bitwise_right_shift_scalar(by as i32).bitwise_and_scalar((u32::MAX >> by) as i32)
}
