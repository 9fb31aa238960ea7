use burn::tensor::Tensor;

use super::{LayerNormBackwardInputs, LayerNormInputs, LayerNormStatistics, WeightGradientsInputs};
use crate::ops::shared::dispatch::Reference;

pub(super) fn forward(inputs: LayerNormInputs<Reference>) -> (Tensor<2>, LayerNormStatistics) {
    let LayerNormInputs { x, gamma, beta, form } = inputs;
    let mean = (!form.is_rms()).then(|| x.clone().mean_dim(1));
    let centred = centre(x, mean.clone());
    let variance = (centred.clone() * centred.clone()).mean_dim(1);
    let rstd = (variance + form.eps()).sqrt().recip();
    let mut y = centred * rstd.clone() * gamma.unsqueeze();
    if let Some(beta) = beta {
        y = y + beta.unsqueeze();
    }
    (y, LayerNormStatistics { mean, rstd })
}

/// `dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat))` with `g = dy * gamma`, and sums `[1, 2, c]`.
/// An RMS norm's input is not centred, so its gradient has no `mean(g)`.
pub(super) fn backward(inputs: LayerNormBackwardInputs<Reference>) -> (Tensor<2>, Tensor<3>) {
    let LayerNormBackwardInputs { dy, x, gamma, statistics, residual, form } = inputs;
    let LayerNormStatistics { mean, rstd } = statistics;
    let x_hat = centre(x, mean) * rstd.clone();
    let dgamma = (dy.clone() * x_hat.clone()).sum_dim(0);
    let dbeta = dy.clone().sum_dim(0);
    let sums = Tensor::cat(vec![dgamma, dbeta], 0).unsqueeze();
    let g = dy * gamma.unsqueeze();
    let mean_g = (!form.is_rms()).then(|| g.clone().mean_dim(1));
    let mean_gx = (g.clone() * x_hat.clone()).mean_dim(1);
    let mut dx = (centre(g, mean_g) - x_hat * mean_gx) * rstd;
    if let Some(residual) = residual {
        dx = residual + dx;
    }
    (dx, sums)
}

fn centre(x: Tensor<2>, mean: Option<Tensor<2>>) -> Tensor<2> {
    match mean {
        Some(mean) => x - mean,
        None => x,
    }
}

pub(super) fn weight_gradients(
    inputs: WeightGradientsInputs<Reference>,
) -> Vec<(Tensor<1>, Tensor<1>)> {
    let both = inputs.partial.into_iter().map(|partial| {
        let c = partial.dims()[2];
        let sums = partial.sum_dim(0).reshape([2 * c]);
        (sums.clone().narrow(0, 0, c), sums.narrow(0, c, c))
    });
    both.collect()
}
