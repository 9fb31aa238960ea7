//! AdamW in cubecl's language.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::AdamW;
use crate::ops::shared::cube::{CubeKernels, argument, cover, launch};
use crate::ops::shared::kernels::{contiguous, elements, owned};

/// One update in place, element by element.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer and scalar")]
fn update_element(
    w: &mut [f32],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    clip: &[f32],
    elements: usize,
    decay: f32,
    beta1: f32,
    beta2: f32,
    step_size: f32,
    second_correction: f32,
    eps: f32,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let g = grad[i] * clip[0];
        let first = beta1 * m[i] + (1.0f32 - beta1) * g;
        let second = beta2 * v[i] + (1.0f32 - beta2) * g * g;
        m[i] = first;
        v[i] = second;
        w[i] = decay * w[i] - step_size * first / (second.sqrt() * second_correction + eps);
    }
}

pub(super) fn update(
    kernels: &CubeKernels,
    w: CubeTensor,
    grad: CubeTensor,
    m: CubeTensor,
    v: CubeTensor,
    clip: CubeTensor,
    scalars: AdamW,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [w, m, v] = [w, m, v].map(owned);
    let (grad, clip) = (contiguous(grad), contiguous(clip));
    let AdamW { decay, beta1, beta2, step_size, second_correction, eps } = scalars;
    let (count, dim) = cover(elements(&w));
    launch!(update_element(
        kernels.client(),
        count,
        dim,
        argument(&w),
        argument(&grad),
        argument(&m),
        argument(&v),
        argument(&clip),
        elements(&w),
        decay,
        beta1,
        beta2,
        step_size,
        second_correction,
        eps,
    ));
    (w, m, v)
}
