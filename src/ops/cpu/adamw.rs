use rayon::prelude::*;

use super::{CpuTensor, contiguous, math, values, values_mut, vectorised};
use crate::ops::AdamW;
use crate::ops::adamw::NORM_SPAN;

/// Elements that one task handles.
const CHUNK: usize = 16 * 1024;

pub(in crate::ops) fn sum_squares(x: CpuTensor, sums: CpuTensor, first: usize) -> CpuTensor {
    let [x, mut sums] = [x, sums].map(contiguous);
    values(&x)
        .par_chunks(NORM_SPAN)
        .zip(&mut values_mut(&mut sums)[first..])
        .for_each(|(span, sum)| *sum = vectorised(|| math::dot(span, span)));
    sums
}

pub(in crate::ops) fn update(
    w: CpuTensor,
    grad: CpuTensor,
    m: CpuTensor,
    v: CpuTensor,
    clip: &CpuTensor,
    scalars: &AdamW,
) -> (CpuTensor, CpuTensor, CpuTensor) {
    let clip = values(clip)[0];
    let grad = contiguous(grad);
    let [mut w, mut m, mut v] = [w, m, v].map(contiguous);
    values_mut(&mut w)
        .par_chunks_mut(CHUNK)
        .zip(values(&grad).par_chunks(CHUNK))
        .zip(values_mut(&mut m).par_chunks_mut(CHUNK))
        .zip(values_mut(&mut v).par_chunks_mut(CHUNK))
        .for_each(|(((w, grad), m), v)| {
            vectorised(|| {
                let elements = w.iter_mut().zip(grad).zip(m.iter_mut().zip(v.iter_mut()));
                for ((w, grad), (m, v)) in elements {
                    let grad = grad * clip;
                    *m = *m * scalars.beta1 + grad * (1.0 - scalars.beta1);
                    *v = *v * scalars.beta2 + grad * grad * (1.0 - scalars.beta2);
                    let root = v.sqrt() * scalars.second_correction + scalars.eps;
                    *w = *w * scalars.decay - *m * scalars.step_size / root;
                }
            });
        });
    (w, m, v)
}
