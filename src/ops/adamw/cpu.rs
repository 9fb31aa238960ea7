//! AdamW as one loop.

use rayon::prelude::*;

use super::AdamW;
use crate::ops::shared::cpu::{CpuTensor, contiguous, values, values_mut, vectorised};

/// Elements per task.
const CHUNK: usize = 16 * 1024;

pub(super) fn update(
    w: CpuTensor,
    grad: CpuTensor,
    m: CpuTensor,
    v: CpuTensor,
    clip: CpuTensor,
    scalars: AdamW,
) -> (CpuTensor, CpuTensor, CpuTensor) {
    let clip = values(&clip)[0];
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
