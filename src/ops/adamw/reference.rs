//! AdamW by tensor operations.

use burn::backend::{Backend, tensor::FloatTensor};

use super::AdamW;

pub(super) fn update<B: Backend>(
    w: FloatTensor<B>,
    grad: FloatTensor<B>,
    m: FloatTensor<B>,
    v: FloatTensor<B>,
    clip: FloatTensor<B>,
    scalars: AdamW,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let blend = |mean: FloatTensor<B>, new: FloatTensor<B>, beta: f32| {
        B::float_add(
            B::float_mul_scalar(mean, beta.into()),
            B::float_mul_scalar(new, (1.0 - beta).into()),
        )
    };
    let grad = B::float_mul(grad, clip);
    let m = blend(m, grad.clone(), scalars.beta1);
    let v = blend(v, B::float_mul(grad.clone(), grad), scalars.beta2);
    let root = B::float_mul_scalar(B::float_sqrt(v.clone()), scalars.second_correction.into());
    let update = B::float_div(
        B::float_mul_scalar(m.clone(), scalars.step_size.into()),
        B::float_add_scalar(root, scalars.eps.into()),
    );
    let w = B::float_sub(B::float_mul_scalar(w, scalars.decay.into()), update);
    (w, m, v)
}
