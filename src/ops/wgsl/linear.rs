//! The linear layer.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::gemm::{Around, Layout};
use super::{Kernels, contiguous};
use crate::ops::Activation;

impl Kernels {
    pub fn linear(
        &self,
        x: CubeTensor,
        w: CubeTensor,
        b: Option<CubeTensor>,
        residual: Option<CubeTensor>,
        activation: Activation,
    ) -> CubeTensor {
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let (x, w) = (contiguous(x), contiguous(w));
        let (b, residual) = (b.map(contiguous), residual.map(contiguous));
        let y = self.queue.empty([m, n]);
        let around = Around {
            activation: activation.form(),
            bias: b.as_ref(),
            residual: residual.as_ref(),
            ..Around::default()
        };
        self.gemm(Layout::Nn, [m, n, k], &x, &w, &y, around);
        y
    }

    pub fn linear_backward(
        &self,
        dy: CubeTensor,
        x: CubeTensor,
        w: CubeTensor,
        activation: Activation,
        bias: bool,
    ) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let [dy, x, w] = [dy, x, w].map(contiguous);
        let dw = self.queue.empty([k, n]);
        let db = bias.then(|| self.queue.empty([n]));
        let around = Around {
            activation: activation.form(),
            bias_gradient: db.as_ref(),
            ..Around::default()
        };
        self.gemm(Layout::Tn, [k, n, m], &x, &dy, &dw, around);
        let dx = self.queue.empty([m, k]);
        let derivative = activation.form().map(|form| (form, &x));
        let around = Around { derivative, ..Around::default() };
        self.gemm(Layout::Nt, [m, k, n], &dy, &w, &dx, around);
        (dx, dw, db)
    }
}
