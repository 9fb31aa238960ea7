//! The dtype of tensors in memory.

use burn::tensor::DType;

use crate::config::Dtype;

/// Returns the dtype in which a run in `dtype` stores its activations.
pub(crate) fn stored(dtype: Dtype) -> DType {
    match dtype {
        Dtype::Auto | Dtype::Float32 | Dtype::Tf32 => DType::F32,
        Dtype::Bfloat16 => DType::BF16,
        Dtype::Float16 => DType::F16,
    }
}
