use std::ops::Range;

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};

use super::{EmbedInputs, PositionGradientInputs, TokenGradientInputs};
use crate::ops::shared::dispatch::Reference;

/// Returns the rows of the tokens in a shard that holds the tokens `held`, and a factor for each,
/// `[n, 1]`: 0 for a token of another shard.
fn places(tokens: &[u32], held: &Range<usize>, device: &Device) -> (Tensor<1, Int>, Tensor<2>) {
    let is_held = |token: u32| held.contains(&(token as usize));
    let place =
        |&token: &u32| if is_held(token) { (token as usize - held.start) as i32 } else { 0 };
    let n = tokens.len();
    let places: Vec<i32> = tokens.iter().map(place).collect();
    let factors: Vec<f32> = tokens.iter().map(|&token| f32::from(is_held(token))).collect();
    (
        Tensor::from_data(TensorData::new(places, [n]), (device, DType::I32)),
        Tensor::from_data(TensorData::new(factors, [n, 1]), (device, DType::F32)),
    )
}

pub(super) fn forward(inputs: EmbedInputs<Reference>) -> Tensor<2> {
    let EmbedInputs { shard, base, tokens, first, period } = inputs;
    let [rows, c] = shard.dims();
    let n = tokens.len();
    let (places, factors) = places(&tokens, &(first..first + rows), &shard.device());
    let x = (shard.select(0, places) * factors).reshape([n / period, period, c]);
    let x = x + base.narrow(0, 0, period).unsqueeze::<3>();
    x.reshape([n, c])
}

pub(super) fn by_token(inputs: TokenGradientInputs<Reference>) -> Tensor<2> {
    let TokenGradientInputs { dy, into, tokens, shard } = inputs;
    let (places, factors) = places(&tokens, &shard, &dy.device());
    into.select_assign(0, places, dy * factors, IndexingUpdateOp::Add)
}

pub(super) fn by_position(inputs: PositionGradientInputs<Reference>) -> Tensor<2> {
    let PositionGradientInputs { dy, time, positions } = inputs;
    let [n, c] = dy.dims();
    let device = dy.device();
    let sums = dy.reshape([n / time, time, c]).sum_dim(0).reshape([time, c]);
    if time == positions {
        return sums;
    }
    let unused = Tensor::zeros([positions - time, c], (&device, DType::F32));
    Tensor::cat(vec![sums, unused], 0)
}
