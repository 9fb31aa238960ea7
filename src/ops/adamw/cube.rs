use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, AdamWInputs, Updated, Weight};
use crate::ops::shared::cube::{CubeKernels, ELEMENTWISE, Gpu, each, elem, launch};
use crate::ops::shared::kernels::{elements, owned};

/// Vectors that a workgroup updates, `ELEMENTWISE` at a time.
const SPAN: usize = 4 * ELEMENTWISE as usize;

/// One update of several weights in place, element by element, if `control[1]` is not 0. `half` has the
/// copies of the weights, or nothing. Each workgroup takes a span of one weight.
#[cube(launch_unchecked)]
fn update_weights<H: Float, N: Size>(
    control: &[f32],
    w: &mut Sequence<Box<[Vector<f32, N>]>>,
    half: &mut Sequence<Box<[Vector<H, N>]>>,
    grad: &Sequence<Box<[Vector<f32, N>]>>,
    m: &mut Sequence<Box<[Vector<f32, N>]>>,
    v: &mut Sequence<Box<[Vector<f32, N>]>>,
    vectors: &Sequence<usize>,
    decay: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    #[comptime] has_half: bool,
    #[define(H)] _copy: ElemType,
) {
    if control[1] == 0.0f32 {
        terminate!();
    }
    let factor = Vector::<f32, N>::new(control[0]);
    let rate = Vector::<f32, N>::new(control[2]);
    let correction = Vector::<f32, N>::new(control[3]);
    let mut first = 0usize.runtime();
    #[unroll]
    for k in 0..w.len() {
        let next = first + vectors[k].div_ceil(SPAN);
        if CUBE_POS >= first && CUBE_POS < next {
            let begin = (CUBE_POS - first) * SPAN;
            let end = min(begin + SPAN, vectors[k]);
            let mut i = begin + UNIT_POS as usize;
            while i < end {
                let g = grad[k][i] * factor;
                let one = Vector::<f32, N>::new(beta1) * m[k][i] + Vector::new(1.0f32 - beta1) * g;
                let two =
                    Vector::<f32, N>::new(beta2) * v[k][i] + Vector::new(1.0f32 - beta2) * g * g;
                m.index_mut(k)[i] = one;
                v.index_mut(k)[i] = two;
                let step = rate * one / (two.sqrt() * correction + Vector::new(eps));
                let updated = Vector::<f32, N>::new(decay) * w[k][i] - step;
                w.index_mut(k)[i] = updated;
                if comptime!(has_half) {
                    half.index_mut(k)[i] = Vector::cast_from(updated);
                }
                i += ELEMENTWISE as usize;
            }
        }
        first = next;
    }
}

/// The weights that can share a launch.
#[derive(Clone, Copy, PartialEq)]
struct Kind {
    vector: usize,
    copy: Option<DType>,
    decays: bool,
}

pub(super) fn update(kernels: &CubeKernels, inputs: AdamWInputs<Gpu>) -> Vec<Updated<CubeTensor>> {
    let AdamWInputs { weights, control, scalars } = inputs;
    let own = |(w, half, grad, (m, v), decays): Weight<CubeTensor>| {
        let [w, m, v] = [w, m, v].map(owned);
        (w, half.map(owned), grad, (m, v), decays)
    };
    let weights: Vec<Weight<CubeTensor>> = weights.into_iter().map(own).collect();
    let kind_of = |(w, half, _, _, decays): &Weight<CubeTensor>| Kind {
        vector: kernels.vector(DType::F32, elements(w)),
        copy: half.as_ref().map(|half| half.dtype),
        decays: *decays,
    };
    let mut kinds: Vec<Kind> = Vec::new();
    for kind in weights.iter().map(kind_of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let of_kind: Vec<_> = weights.iter().filter(|weight| kind_of(weight) == kind).collect();
        let buffers = 4 + usize::from(kind.copy.is_some());
        let most = kernels.tensors_per_launch(of_kind.len(), buffers, 1);
        of_kind.chunks(most).for_each(|weights| launch(kernels, kind, weights, &control, scalars));
    }
    weights.into_iter().map(|(w, half, _, moments, _)| (w, half, moments)).collect()
}

fn launch(
    kernels: &CubeKernels,
    kind: Kind,
    weights: &[&Weight<CubeTensor>],
    control: &CubeTensor,
    scalars: AdamW,
) {
    let AdamW { beta1, beta2, eps, .. } = scalars;
    let vector = kind.vector;
    let vectors = |(w, ..): &Weight<CubeTensor>| elements(w) / vector;
    let spans = weights.iter().map(|weight| vectors(weight).div_ceil(SPAN)).sum();
    let halves = || weights.iter().filter_map(|(_, half, ..)| half.as_ref());
    launch!(
        kernels,
        each(spans, ELEMENTWISE),
        update_weights(
            vector,
            &[control],
            weights.iter().map(|(w, ..)| kernels.argument(w)).collect(),
            halves().map(|half| kernels.argument(half)).collect(),
            weights.iter().map(|(_, _, grad, ..)| kernels.argument(grad)).collect(),
            weights.iter().map(|(_, _, _, (m, _), _)| kernels.argument(m)).collect(),
            weights.iter().map(|(_, _, _, (_, v), _)| kernels.argument(v)).collect(),
            weights.iter().map(|weight| vectors(weight)).collect(),
            scalars.decay_of(kind.decays),
            beta1,
            beta2,
            eps,
            kind.copy.is_some(),
            halves().next().map_or_else(f32::elem_type_native, elem),
        )
    );
}
