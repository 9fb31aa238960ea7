//! Layer normalisation by tensor operations.

use burn::backend::{Backend, tensor::FloatTensor};
use burn::tensor::Slice;

use super::EPS;
use crate::ops::shared::shape;

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let mean = B::float_mean_dim(x.clone(), 1);
    let centred = B::float_sub(x, mean.clone());
    let variance = B::float_mean_dim(B::float_mul(centred.clone(), centred.clone()), 1);
    let rstd = B::float_recip(B::float_sqrt(B::float_add_scalar(variance, EPS.into())));
    let scaled = B::float_mul(B::float_mul(centred, rstd.clone()), row::<B>(gamma));
    let y = match beta {
        Some(beta) => B::float_add(scaled, row::<B>(beta)),
        None => scaled,
    };
    (y, mean, rstd)
}

/// `dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat))` with `g = dy * gamma`. The weights' gradients
/// are whole sums, `[1, 2, c]`.
pub(super) fn backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    mean: FloatTensor<B>,
    rstd: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let c = shape::<B>(&gamma).num_elements();
    let x_hat = B::float_mul(B::float_sub(x, mean), rstd.clone());
    let dgamma = B::float_sum_dim(B::float_mul(dy.clone(), x_hat.clone()), 0);
    let dbeta = B::float_sum_dim(dy.clone(), 0);
    let sums = B::float_reshape(B::float_cat(vec![dgamma, dbeta], 0), [1, 2, c].into());
    let g = B::float_mul(dy, row::<B>(gamma));
    let mean_g = B::float_mean_dim(g.clone(), 1);
    let mean_gx = B::float_mean_dim(B::float_mul(g.clone(), x_hat.clone()), 1);
    let dx = B::float_sub(B::float_sub(g, mean_g), B::float_mul(x_hat, mean_gx));
    let dx = B::float_mul(dx, rstd);
    let dx = match residual {
        Some(residual) => B::float_add(residual, dx),
        None => dx,
    };
    (dx, sums)
}

pub(super) fn weight_gradients<B: Backend>(
    partial: Vec<FloatTensor<B>>,
) -> (Vec<FloatTensor<B>>, Vec<FloatTensor<B>>) {
    let both = partial.into_iter().map(|partial| {
        let [_, _, c] = shape::<B>(&partial).dims();
        let sums = B::float_reshape(B::float_sum_dim(partial, 0), [2 * c].into());
        let of = |first| B::float_slice(sums.clone(), &[Slice::from(first..first + c)]);
        (of(0), of(c))
    });
    both.unzip()
}

/// `[c]` seen as `[1, c]`, to broadcast over rows.
fn row<B: Backend>(vector: FloatTensor<B>) -> FloatTensor<B> {
    let c = shape::<B>(&vector).num_elements();
    B::float_reshape(vector, [1, c].into())
}
