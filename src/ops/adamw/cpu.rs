use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::FloatDType;
use rayon::prelude::*;

use super::{AdamW, AdamWInputs, Updated, Weight};
use crate::ops::shared::cpu::{CpuTensor, contiguous, memory, values, values_mut, vectorised};

/// Elements per task.
const CHUNK: usize = 16 * 1024;

pub(super) fn update(inputs: AdamWInputs<Flex>) -> Vec<Updated<CpuTensor>> {
    let AdamWInputs { weights, control, scalars } = inputs;
    let control = contiguous(control);
    let [factor, applied, step_size, second_correction] = [0, 1, 2, 3].map(|i| values(&control)[i]);
    let update = |(w, half, grad, (m, v), decays): Weight<CpuTensor>| {
        if applied == 0.0 {
            return (w, half, (m, v));
        }
        let scalars = AdamW { decay: scalars.decay_of(decays), ..scalars };
        let [mut w, grad, mut m, mut v] = [w, grad, m, v].map(contiguous);
        values_mut(&mut w)
            .par_chunks_mut(CHUNK)
            .zip(values(&grad).par_chunks(CHUNK))
            .zip(values_mut(&mut m).par_chunks_mut(CHUNK))
            .zip(values_mut(&mut v).par_chunks_mut(CHUNK))
            .for_each(|(((w, grad), m), v)| {
                update_elements(w, grad, (m, v), scalars, (factor, step_size, second_correction));
            });
        memory::recycle([grad]);
        let half = half.map(|old| Flex::float_cast(w.clone(), FloatDType::from(old.dtype())));
        (w, half, (m, v))
    };
    weights.into_iter().map(update).collect()
}

vectorised! {
    fn update_elements<S>(_simd;
        w: &mut [f32],
        grad: &[f32],
        moments: (&mut [f32], &mut [f32]),
        scalars: AdamW,
        control: (f32, f32, f32),
    ) {
        let (factor, step_size, second_correction) = control;
        let elements = w.iter_mut().zip(grad).zip(moments.0.iter_mut().zip(moments.1));
        for ((w, grad), (m, v)) in elements {
            let grad = grad * factor;
            *m = *m * scalars.beta1 + grad * (1.0 - scalars.beta1);
            *v = *v * scalars.beta2 + grad * grad * (1.0 - scalars.beta2);
            let root = v.sqrt() * second_correction + scalars.eps;
            *w = *w * scalars.decay - *m * step_size / root;
        }
    }
}
