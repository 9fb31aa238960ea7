use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{DequantizeInputs, WORDS};
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};

/// Decodes four rows of a vector of columns per invocation; a row has `width` vectors.
#[cube(launch_unchecked)]
fn decode<S: Float, T: Float, N: Size>(
    codes: &[Vector<u32, N>],
    scales: &[Vector<S, N>],
    weights: &mut [Vector<T, N>],
    vectors: usize,
    width: usize,
    #[define(S, T)] _elems: [ElemType; 2],
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let row = i / width;
        let column = i - row * width;
        let words = codes[i];
        let scale = Vector::<f32, N>::cast_from(scales[row / WORDS * width + column]);
        #[unroll]
        for byte in 0..4usize {
            let mut code = Vector::<f32, N>::new(0.0f32);
            #[unroll]
            for j in 0..N::value() {
                let bits = (words.extract(j) >> (8 * byte) as u32) & 255u32;
                // Of two's complement.
                let offset = select(bits > 127u32, 256.0f32, 0.0f32);
                code.insert(j, f32::cast_from(bits) - offset);
            }
            weights[(4 * row + byte) * width + column] = Vector::cast_from(code * scale);
        }
    }
}

pub(super) fn forward(kernels: &CubeKernels, inputs: DequantizeInputs<Gpu>) -> CubeTensor {
    let DequantizeInputs { codes, scales, dtype } = inputs;
    let [words, out] = codes.shape().dims();
    let weights = kernels.queue.empty_of([4 * words, out], dtype);
    // Of words, which are the widest elements.
    let vector = kernels.vector(DType::I32, out);
    let width = out / vector;
    let vectors = words * width;
    launch!(
        kernels,
        cover(vectors),
        decode(
            vector,
            &[&codes, &scales, &weights],
            vectors,
            width,
            [elem(&scales), elem(&weights)],
        )
    );
    weights
}
