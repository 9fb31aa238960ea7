use burn::tensor::{FloatDType, Tensor};

use super::{AdamWInputs, Moments, UpdatedWeight, WeightUpdate};
use crate::ops::shared::dispatch::Reference;

pub(super) fn update(inputs: AdamWInputs<Reference>) -> Vec<UpdatedWeight> {
    let AdamWInputs { weights, control, scalars } = inputs;
    let scalar = |i: usize| control.clone().narrow(0, i, 1);
    let blend =
        |mean: &Tensor<1>, new: Tensor<1>, beta: f32| mean.clone() * beta + new * (1.0 - beta);
    let update = |weight| {
        let WeightUpdate { w, half, grad, moments: Moments { m, v }, decays } = weight;
        let grad = grad * scalar(0);
        let new_m = blend(&m, grad.clone(), scalars.beta1);
        let new_v = blend(&v, grad.clone() * grad, scalars.beta2);
        let root = new_v.clone().sqrt() * scalar(3);
        let step = new_m.clone() * scalar(2) / (root + scalars.eps);
        let new_w = w.clone() * scalars.decay_of(decays) - step;

        let applied = scalar(1).greater_elem(0.0).expand(w.dims());
        let choose = |old: Tensor<1>, new| old.mask_where(applied.clone(), new);
        let w = choose(w, new_w);
        let half = half.map(|old| w.clone().cast(FloatDType::from(old.dtype())));
        (w, half, Moments { m: choose(m, new_m), v: choose(v, new_v) })
    };
    weights.into_iter().map(update).collect()
}
