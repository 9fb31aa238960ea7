use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, AdamWInputs, Updated, Weight};
use crate::ops::shared::cube::{CubeKernels, Gpu, cover, elem, launch};
use crate::ops::shared::kernels::{contiguous, elements, owned};

/// One update in place, element by element, if `control[1]` is not 0. `half` is the copy of `w`, if any.
#[cube(launch_unchecked)]
fn update_element<H: Float>(
    w: &mut [f32],
    half: &mut [H],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    control: &[f32],
    elements: usize,
    decay: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    #[comptime] has_half: bool,
    #[define(H)] _copy: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i < elements && control[1] != 0.0f32 {
        let g = grad[i] * control[0];
        let first = beta1 * m[i] + (1.0f32 - beta1) * g;
        let second = beta2 * v[i] + (1.0f32 - beta2) * g * g;
        m[i] = first;
        v[i] = second;
        let next = decay * w[i] - control[2] * first / (second.sqrt() * control[3] + eps);
        w[i] = next;
        if comptime!(has_half) {
            half[i] = H::cast_from(next);
        }
    }
}

pub(super) fn update(kernels: &CubeKernels, inputs: AdamWInputs<Gpu>) -> Vec<Updated<CubeTensor>> {
    let AdamWInputs { weights, control, scalars } = inputs;
    let own = |(w, half, grad, (m, v), decays): Weight<CubeTensor>| {
        let [w, m, v] = [w, m, v].map(owned);
        (w, half.map(owned), contiguous(grad), (m, v), decays)
    };
    let weights: Vec<Weight<CubeTensor>> = weights.into_iter().map(own).collect();
    #[cfg(feature = "cuda")]
    let is_done = super::cuda::update(kernels, &weights, &control, scalars);
    #[cfg(not(feature = "cuda"))]
    let is_done = false;
    if !is_done {
        weights.iter().for_each(|weight| launch(kernels, weight, &control, scalars));
    }
    weights.into_iter().map(|(w, half, _, moments, _)| (w, half, moments)).collect()
}

fn launch(
    kernels: &CubeKernels,
    weight: &Weight<CubeTensor>,
    control: &CubeTensor,
    scalars: AdamW,
) {
    let AdamW { beta1, beta2, eps, .. } = scalars;
    let (w, half, grad, (m, v), decays) = weight;
    launch!(
        kernels,
        cover(elements(w)),
        update_element(
            &[w, half.as_ref(), grad, m, v, control],
            elements(w),
            scalars.decay_of(*decays),
            beta1,
            beta2,
            eps,
            half.is_some(),
            half.as_ref().map_or_else(f32::elem_type_native, elem),
        )
    );
}
