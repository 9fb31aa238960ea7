use burn::tensor::{DType, Tensor};

use super::{DequantizeInputs, QUANTIZED_BLOCK};
use crate::ops::shared::dispatch::Reference;

pub(super) fn forward(inputs: DequantizeInputs<Reference>) -> Tensor<2> {
    let DequantizeInputs { codes, scales, dtype } = inputs;
    let [words, out] = codes.dims();
    let blocks = scales.dims()[0];
    let bytes = (0..4).map(|byte| {
        let bits = codes.clone().bitwise_right_shift_scalar(8 * byte).bitwise_and_scalar(0xff);
        // Of two's complement, by the sign bit.
        let sign = bits.clone().bitwise_right_shift_scalar(7);
        (bits - sign * 256).unsqueeze_dim::<3>(1)
    });
    let codes = Tensor::cat(bytes.collect(), 1).reshape([blocks, QUANTIZED_BLOCK, out]);
    let scales = scales.cast(DType::F32).unsqueeze_dim::<3>(1);
    let weights = codes.float().cast(DType::F32) * scales;
    weights.reshape([4 * words, out]).cast(dtype)
}
