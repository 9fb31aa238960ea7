//! The linear layer.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::gemm::{Around, Layout};
use super::{Kernels, contiguous};
use crate::ops::linear::{Linear, reference_backward, reference_forward};
use crate::ops::{Activation, OpsMode, Optional};

impl Linear for CubeBackend {
    fn linear(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (b, residual) = (b.into_option(), residual.into_option());
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_forward::<Self>(x, w, b, residual, activation);
        };
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let (x, w) = (contiguous(x), contiguous(w));
        let (b, residual) = (b.map(contiguous), residual.map(contiguous));
        let y = kernels.queue.empty([m, n]);
        let around = Around {
            activation: activation.form(),
            bias: b.as_ref(),
            residual: residual.as_ref(),
            ..Around::default()
        };
        kernels.gemm(Layout::Nn, [m, n, k], &x, &w, &y, around);
        y
    }

    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_backward::<Self>(dy, x, w, activation, bias);
        };
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let [dy, x, w] = [dy, x, w].map(contiguous);
        let dw = kernels.queue.empty([k, n]);
        let db = bias.then(|| kernels.queue.empty([n]));
        let around = Around {
            activation: activation.form(),
            bias_gradient: db.as_ref(),
            ..Around::default()
        };
        kernels.gemm(Layout::Tn, [k, n, m], &x, &dy, &dw, around);
        let dx = kernels.queue.empty([m, k]);
        let derivative = activation.form().map(|form| (form, &x));
        let around = Around { derivative, ..Around::default() };
        kernels.gemm(Layout::Nt, [m, k, n], &dy, &w, &dx, around);
        (dx, dw, db)
    }
}
