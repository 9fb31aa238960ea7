//! Layer normalisation over the last dimension (Ba, Kiros and Hinton 2016, arXiv:1607.06450).

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::{Backend, Dispatch, backend_extension, tensor::FloatTensor};
use burn::tensor::Tensor;

use super::{OpsMode, Optional, split};

/// GPT-2's epsilon, added to the variance.
pub(super) const EPS: f32 = 1e-5;

/// `y = (x - mean) * rstd * gamma + beta`, row by row.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait LayerNorm: Backend {
    /// The differentiable op: `x` is `[n, c]`, `gamma` and `beta` are `[c]`; gives `[n, c]`.
    fn layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Optional<Self>,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        Self::layer_norm_forward(x, gamma, beta, mode).0
    }

    /// Gives `y` `[n, c]`, and `mean` and `rstd` `[n, 1]` for the backward pass.
    fn layer_norm_forward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Optional<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_forward::<Self>(x, gamma, beta.into_option())
    }

    /// From `dy` `[n, c]` gives `dx` `[n, c]`, `dgamma` `[c]` and `dbeta` `[c]`.
    fn layer_norm_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        rstd: FloatTensor<Self>,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let _ = mode;
        reference_backward::<Self>(dy, x, gamma, mean, rstd)
    }
}

/// Layer normalisation of the rows of `x` `[n, c]`, eps 1e-5.
pub fn layer_norm(
    x: Tensor<2>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    mode: OpsMode,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::layer_norm(
        x.into_dispatch(),
        gamma.into_dispatch(),
        beta.map(Tensor::into_dispatch).into(),
        mode,
    ))
}

#[derive(Debug)]
struct LayerNormBackward;

/// `x`, `gamma`, `mean`, `rstd`: the row statistics are 2 of c + 2 numbers a row, cheaper to keep
/// than to compute again.
type Saved<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, FloatTensor<B>, OpsMode);

impl<B: LayerNorm> Backward<B, 3> for LayerNormBackward {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (x, gamma, mean, rstd, mode) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let (dx, dgamma, dbeta) = B::layer_norm_backward(dy, x, gamma, mean, rstd, mode);
        for (parent, grad) in ops.parents.into_iter().zip([dx, dgamma, dbeta]) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, grad);
            }
        }
    }
}

impl<B: LayerNorm, C: CheckpointStrategy> LayerNorm for Autodiff<B, C> {
    fn layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (beta, beta_node) = split::<B, C>(beta, &gamma);
        let nodes = [x.node(), gamma.node(), beta_node];
        let x = x.into_primitive();
        let gamma = gamma.into_primitive();
        let (y, mean, rstd) = B::layer_norm_forward(x.clone(), gamma.clone(), beta, mode);
        match LayerNormBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, gamma, mean, rstd, mode), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

pub(super) fn reference_forward<B: Backend>(
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

/// `dx = rstd * (g - mean(g) - x_hat * mean(g * x_hat))` with `g = dy * gamma`.
pub(super) fn reference_backward<B: Backend>(
    dy: FloatTensor<B>,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    mean: FloatTensor<B>,
    rstd: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let shape = super::shape::<B>(&gamma);
    let x_hat = B::float_mul(B::float_sub(x, mean), rstd.clone());
    let dgamma = B::float_sum_dim(B::float_mul(dy.clone(), x_hat.clone()), 0);
    let dbeta = B::float_sum_dim(dy.clone(), 0);
    let g = B::float_mul(dy, row::<B>(gamma));
    let mean_g = B::float_mean_dim(g.clone(), 1);
    let mean_gx = B::float_mean_dim(B::float_mul(g.clone(), x_hat.clone()), 1);
    let dx = B::float_sub(B::float_sub(g, mean_g), B::float_mul(x_hat, mean_gx));
    (
        B::float_mul(dx, rstd),
        B::float_reshape(dgamma, shape.clone()),
        B::float_reshape(dbeta, shape),
    )
}

/// `[c]` seen as `[1, c]`, to broadcast over rows.
fn row<B: Backend>(vector: FloatTensor<B>) -> FloatTensor<B> {
    let c = super::shape::<B>(&vector).num_elements();
    B::float_reshape(vector, [1, c].into())
}
