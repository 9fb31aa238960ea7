use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use crate::config::Gelu;
use crate::ops::shared::wgsl::WgslKernels;
use crate::ops::shared::wgsl::gemm::{Fusion, GemmLayout};

pub(super) fn forward(
    kernels: &WgslKernels,
    x: CubeTensor,
    w: CubeTensor,
    b: Option<CubeTensor>,
    residual: Option<CubeTensor>,
    activation: Option<Gelu>,
) -> CubeTensor {
    let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
    let y = kernels.queue.empty_of([m, n], x.dtype);
    let fusion =
        Fusion { activation, bias: b.as_ref(), residual: residual.as_ref(), ..Fusion::default() };
    kernels.gemm(GemmLayout::Nn, [m, n, k], &x, &w, &y, fusion);
    y
}

pub(super) fn backward(
    kernels: &WgslKernels,
    dy: CubeTensor,
    x: CubeTensor,
    w: CubeTensor,
    activation: Option<Gelu>,
    bias: bool,
) -> (CubeTensor, CubeTensor, Option<CubeTensor>) {
    let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
    let dw = kernels.queue.empty([k, n]);
    let db = bias.then(|| kernels.queue.empty([n]));
    let fusion = Fusion { activation, bias_gradient: db.as_ref(), ..Fusion::default() };
    kernels.gemm(GemmLayout::Tn, [k, n, m], &x, &dy, &dw, fusion);
    let dx = kernels.queue.empty_of([m, k], x.dtype);
    let derivative = activation.map(|form| (form, &x));
    let fusion = Fusion { derivative, ..Fusion::default() };
    kernels.gemm(GemmLayout::Nt, [m, k, n], &dy, &w, &dx, fusion);
    (dx, dw, db)
}
