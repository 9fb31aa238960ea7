//! AdamW in cubecl's language.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::FloatDType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, Lists, Updated, Weight, into_lists};
use crate::ops::shared::cube::{CubeKernels, argument, cover, launch};
use crate::ops::shared::kernels::{contiguous, elements, owned};

/// One update in place, element by element, if `control[1]` is not 0.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "one for each buffer and scalar")]
fn update_element(
    w: &mut [f32],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
    control: &[f32],
    elements: usize,
    decay: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
) {
    let i = ABSOLUTE_POS;
    if i < elements && control[1] != 0.0f32 {
        let g = grad[i] * control[0];
        let first = beta1 * m[i] + (1.0f32 - beta1) * g;
        let second = beta2 * v[i] + (1.0f32 - beta2) * g * g;
        m[i] = first;
        v[i] = second;
        w[i] = decay * w[i] - control[2] * first / (second.sqrt() * control[3] + eps);
    }
}

pub(super) fn update(
    kernels: &CubeKernels,
    weights: Vec<Weight<CubeBackend>>,
    control: CubeTensor,
    scalars: AdamW,
) -> Lists<CubeBackend> {
    let control = contiguous(control);
    let updated =
        weights.into_iter().map(|weight| update_weight(kernels, weight, &control, scalars));
    into_lists::<CubeBackend>(updated)
}

fn update_weight(
    kernels: &CubeKernels,
    weight: Weight<CubeBackend>,
    control: &CubeTensor,
    scalars: AdamW,
) -> Updated<CubeBackend> {
    let Weight { w, half, grad, m, v, decays } = weight;
    let [w, m, v] = [w, m, v].map(owned);
    let grad = contiguous(grad);
    let AdamW { beta1, beta2, eps, .. } = scalars;
    let (count, dim) = cover(elements(&w));
    launch!(update_element(
        kernels.client(),
        count,
        dim,
        argument(&w),
        argument(&grad),
        argument(&m),
        argument(&v),
        argument(control),
        elements(&w),
        scalars.decay_of(decays),
        beta1,
        beta2,
        eps,
    ));
    // No run on these kernels keeps copies: their products cast a weight where they use it.
    let half = half.map(|_| CubeBackend::float_cast(w.clone(), FloatDType::F16));
    (w, half, m, v)
}
