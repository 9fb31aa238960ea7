//! AdamW by tensor operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, get_or_init_device_settings};
use burn::tensor::{FloatDType, Slice};

use super::{AdamW, Lists, Updated, Weight, into_lists};
use crate::ops::shared::{device, shape};

pub(super) fn update<B: Backend>(
    weights: Vec<Weight<B>>,
    control: FloatTensor<B>,
    scalars: AdamW,
) -> Lists<B> {
    let updated = weights.into_iter().map(|weight| update_weight::<B>(weight, &control, scalars));
    into_lists::<B>(updated)
}

fn update_weight<B: Backend>(
    weight: Weight<B>,
    control: &FloatTensor<B>,
    scalars: AdamW,
) -> Updated<B> {
    let Weight { w, half, grad, m, v, decays } = weight;
    let scalar = |i: usize| B::float_slice(control.clone(), &[Slice::from(i..i + 1)]);
    let blend = |mean: FloatTensor<B>, new: FloatTensor<B>, beta: f32| {
        B::float_add(
            B::float_mul_scalar(mean, beta.into()),
            B::float_mul_scalar(new, (1.0 - beta).into()),
        )
    };
    let grad = B::float_mul(grad, scalar(0));
    let new_m = blend(m.clone(), grad.clone(), scalars.beta1);
    let new_v = blend(v.clone(), B::float_mul(grad.clone(), grad), scalars.beta2);
    let root = B::float_mul(B::float_sqrt(new_v.clone()), scalar(3));
    let step = B::float_div(
        B::float_mul(new_m.clone(), scalar(2)),
        B::float_add_scalar(root, scalars.eps.into()),
    );
    let new_w = B::float_sub(B::float_mul_scalar(w.clone(), scalars.decay_of(decays).into()), step);

    let bools = get_or_init_device_settings::<B>(&device::<B>(&w)).bool_dtype;
    let applied = B::float_greater_elem(scalar(1), 0f32.into(), bools);
    let applied = B::bool_expand(applied, shape::<B>(&w));
    let choose = |old, new| B::float_mask_where(old, applied.clone(), new);
    let w = choose(w, new_w);
    let half = half.map(|old| B::float_cast(w.clone(), FloatDType::from(old.dtype())));
    (w, half, choose(m, new_m), choose(v, new_v))
}
