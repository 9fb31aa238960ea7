//! Code that several ops use: the way from burn's tensors to an implementation, and for each kind of
//! device the launch, the matrix products and the reductions.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};

#[cfg(not(target_arch = "wasm32"))]
pub(super) mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod cube;
pub(super) mod dispatch;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod kernels;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// Joins the shards of a matrix, which copies if there are several. Returns each shard's rows, too.
pub(super) fn join<B: Backend>(mut shards: Vec<FloatTensor<B>>) -> (FloatTensor<B>, Vec<usize>) {
    let rows = shards.iter().map(|shard| shard.shape()[0]).collect();
    let whole = if shards.len() == 1 { shards.remove(0) } else { B::float_cat(shards, 0) };
    (whole, rows)
}

/// Splits a matrix into shards of `rows` rows each.
pub(super) fn split<B: Backend>(whole: FloatTensor<B>, rows: &[usize]) -> Vec<FloatTensor<B>> {
    use burn::tensor::Slice;
    if rows.len() == 1 {
        return vec![whole];
    }
    let mut first = 0;
    let shard = |&rows: &usize| {
        let range = first..first + rows;
        first += rows;
        B::float_slice(whole.clone(), &[Slice::from(range)])
    };
    rows.iter().map(shard).collect()
}

/// ln 2 in two parts, the first short enough that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// `sqrt(2 / pi)` in the tanh form of GELU.
pub(super) const TANH_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient in the tanh form of GELU.
pub(super) const TANH_CUBIC: f32 = 0.044_715;
/// `1 / sqrt(2 pi)`, the peak of the normal density, in the derivative of the exact GELU.
pub(super) const NORMAL_PEAK: f32 = 0.398_942_3;
