use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{FrozenBackwardInputs, LinearBackwardInputs, LinearInputs};
use crate::ops::shared::wgsl::gemm::{Fusion, GemmLayout, Matrix};
use crate::ops::shared::wgsl::{Gpu, WgslKernels};

/// Returns an input, or its gradient, as one matrix, or as the first of two side by side.
fn input(x: &CubeTensor) -> Matrix<'_> {
    Matrix { tensor: x, offset: 0, stride: Some(x.shape()[1]) }
}

pub(super) fn forward(kernels: &WgslKernels, inputs: LinearInputs<Gpu>) -> CubeTensor {
    let LinearInputs { x, w, b, residual, activation } = inputs;
    let ([m, _], [k, n]) = (x.shape().dims(), w.shape().dims());
    let y = kernels.queue.empty_of([m, n], x.dtype);
    let fusion =
        Fusion { activation, bias: b.as_ref(), residual: residual.as_ref(), ..Fusion::default() };
    kernels.gemm(GemmLayout::Nn, [m, n, k], input(&x), &w, &y, fusion);
    y
}

pub(super) fn backward(
    kernels: &WgslKernels,
    inputs: LinearBackwardInputs<Gpu>,
) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
    let LinearBackwardInputs { dy, x, w, activation, bias } = inputs;
    let ([m, _], [k, n]) = (x.shape().dims(), w.shape().dims());
    let dw = kernels.queue.empty([k, n]);
    let db = bias.then(|| kernels.queue.empty([n]));
    let fusion = Fusion { activation, bias_gradient: db.as_ref(), ..Fusion::default() };
    kernels.gemm(GemmLayout::Tn, [k, n, m], input(&x), &dy, &dw, fusion);
    let dx = kernels.queue.empty_of(x.shape(), x.dtype);
    let derivative = activation.map(|form| (form, &x));
    let fusion = Fusion { derivative, ..Fusion::default() };
    kernels.gemm(GemmLayout::Nt, [m, k, n], &dy, &w, input(&dx), fusion);
    (dx, dw, db)
}

pub(super) fn frozen_backward(
    kernels: &WgslKernels,
    inputs: FrozenBackwardInputs<Gpu>,
) -> (CubeTensor, Option<CubeTensor>) {
    let FrozenBackwardInputs { dy, x, w, adapter, activation } = inputs;
    let ([m, _], [k, n]) = (x.shape().dims(), w.shape().dims());
    let dx = kernels.queue.empty_of(x.shape(), x.dtype);
    let derivative = activation.map(|form| (form, &x));
    let mut fusion = Fusion { derivative, ..Fusion::default() };
    let da = adapter.map(|(du, a)| {
        let rank = a.shape()[1];
        kernels.gemm(GemmLayout::Nt, [m, k, rank], &du, &a, input(&dx), fusion);
        // The other gradient is added to this one.
        fusion.accumulate = true;
        let da = kernels.queue.empty([k, rank]);
        let activated = Fusion { activation, ..Fusion::default() };
        kernels.gemm(GemmLayout::Tn, [k, rank, m], input(&x), &du, &da, activated);
        da
    });
    kernels.gemm(GemmLayout::Nt, [m, k, n], &dy, &w, input(&dx), fusion);
    (dx, da)
}
