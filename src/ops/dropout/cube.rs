use burn::backend::TensorMetadata;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{Dropout, DropoutInputs, MIX};
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};

#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(in crate::ops) struct Mask {
    key0: u32,
    key1: u32,
    /// The index of the micro-batch's first sequence in the global batch.
    first_sequence: u32,
    /// An element is dropped if the upper 24 bits of its hash are below this.
    threshold: u32,
    /// The factor of a kept element.
    pub scale: f32,
}

/// Returns the mask of a dropout; without dropout, a placeholder that no kernel reads.
pub(in crate::ops) fn mask(dropout: Option<&Dropout>) -> MaskLaunch {
    let Some(dropout) = dropout else { return MaskLaunch::new(0, 0, 0, 0, 1.0) };
    let [key0, key1, first_sequence, threshold] = dropout.words();
    MaskLaunch::new(key0, key1, first_sequence, threshold, dropout.scale())
}

#[cube]
fn mix32(seed: u32) -> u32 {
    let first = (seed ^ (seed >> 16u32)) * MIX[0];
    let second = (first ^ (first >> 15u32)) * MIX[1];
    second ^ (second >> 16u32)
}

#[cube]
pub(in crate::ops) fn sequence_key(mask: &Mask, sequence: usize) -> u32 {
    mix32(mix32((mask.first_sequence + sequence as u32) ^ mask.key0) ^ mask.key1)
}

/// Zero or the scale, for element `index` of the sequence with this key.
#[cube]
pub(in crate::ops) fn keep(mask: &Mask, key: u32, index: usize) -> f32 {
    let hash = mix32(mix32(index as u32 ^ key) ^ mask.key1) >> 8u32;
    select(hash >= mask.threshold, mask.scale, 0.0f32)
}

/// `y = dropout(x) + residual`, an invocation for each vector.
#[cube(launch_unchecked)]
fn drop_out<T: Float, N: Size>(
    x: &[Vector<T, N>],
    residual: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    mask: Mask,
    vectors: usize,
    per_sequence: usize,
    #[comptime] has_residual: bool,
    #[define(T)] _elem: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < vectors {
        let sequence = i / per_sequence;
        let key = sequence_key(&mask, sequence);
        let first = (i - sequence * per_sequence) * N::value();
        let mut factor = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..N::value() {
            factor.insert(j, keep(&mask, key, first + j));
        }
        let mut value = Vector::<f32, N>::cast_from(x[i]) * factor;
        if comptime!(has_residual) {
            value += Vector::cast_from(residual[i]);
        }
        y[i] = Vector::cast_from(value);
    }
}

pub(super) fn forward(kernels: &CubeKernels, inputs: DropoutInputs<Gpu>) -> CubeTensor {
    let DropoutInputs { x, residual, time, dropout } = inputs;
    let [n, c] = x.shape().dims();
    let y = kernels.queue.empty_of([n, c], x.dtype);
    // A vector belongs to one sequence.
    let vector = kernels.vector(x.dtype, time * c);
    let vectors = n * c / vector;
    launch!(
        kernels,
        cover(vectors),
        drop_out(
            vector,
            &[&x, residual.as_ref(), &y],
            mask(Some(&dropout)),
            vectors,
            time * c / vector,
            residual.is_some(),
            elem(&x),
        )
    );
    y
}
