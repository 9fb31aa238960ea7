//! The linear layer.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::gemm::{Epilogue, Layout};
use super::{ELEMENTWISE, Kernels, contiguous, elements};
use crate::config::Gelu;
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::linear::{Linear, reference_backward, reference_forward};
use crate::ops::{Activation, OpsMode, Optional};

static GELU_BACKWARD: Shader =
    Shader { name: "gelu_backward", parts: &[wgsl!("gelu"), wgsl!("gelu_backward")] };

fn gelu_backward(form: Gelu, pack: u32) -> Spec {
    Spec::new(&GELU_BACKWARD, ELEMENTWISE).packed(pack).with("ERF", form == Gelu::Erf)
}

pub(super) fn variants() -> Vec<Spec> {
    let forms = [Gelu::Tanh, Gelu::Erf];
    forms.iter().flat_map(|&form| [1, 4].map(|pack| gelu_backward(form, pack))).collect()
}

impl Linear for CubeBackend {
    fn linear_forward(
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        b: Optional<Self>,
        residual: Optional<Self>,
        activation: Activation,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let (b, residual) = (b.into_option(), residual.into_option());
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_forward::<Self>(x, w, b, residual, activation);
        };
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let (x, w) = (contiguous(x), contiguous(w));
        let (b, residual) = (b.map(contiguous), residual.map(contiguous));
        let y = kernels.queue.empty([m, n]);
        let pre = match activation {
            Activation::Identity => None,
            Activation::Gelu(form) => Some((form, kernels.queue.empty([m, n]))),
        };
        let epilogue = Epilogue {
            bias: b.as_ref(),
            gelu: pre.as_ref().map(|(form, pre)| (*form, pre)),
            residual: residual.as_ref(),
            ..Epilogue::default()
        };
        kernels.gemm(Layout::Nn, [m, n, k], &x, &w, &y, epilogue);
        (y, pre.map(|(_, pre)| pre))
    }

    fn linear_backward(
        dy: FloatTensor<Self>,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
        pre: Optional<Self>,
        activation: Activation,
        bias: bool,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, Option<FloatTensor<Self>>) {
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_backward::<Self>(dy, x, w, pre.into_option(), activation, bias);
        };
        let ([m, k], [_, n]) = (x.shape().dims(), w.shape().dims());
        let (dy, x, w) = (contiguous(dy), contiguous(x), contiguous(w));
        let d = match (activation, pre.into_option()) {
            (Activation::Gelu(form), Some(pre)) => {
                let pre = contiguous(pre);
                let d = kernels.queue.empty([m, n]);
                let pack = pack_of(&[m * n]);
                let packs = elements(&d) / pack as usize;
                kernels.queue.launch(
                    gelu_backward(form, pack),
                    Workgroups::cover(packs, ELEMENTWISE),
                    [&dy, &pre, &d].map(|tensor| tensor.handle.clone().binding()),
                    &[packs as u32],
                );
                d
            }
            _ => dy,
        };
        let dw = kernels.queue.empty([k, n]);
        let db = bias.then(|| kernels.queue.empty([n]));
        let epilogue = Epilogue { bias_gradient: db.as_ref(), ..Epilogue::default() };
        kernels.gemm(Layout::Tn, [k, n, m], &x, &d, &dw, epilogue);
        let dx = kernels.queue.empty([m, k]);
        kernels.gemm(Layout::Nt, [m, k, n], &d, &w, &dx, Epilogue::default());
        (dx, dw, db)
    }
}
