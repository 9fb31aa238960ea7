use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{ActivationBackwardInputs, ActivationInputs};
use crate::config::Gelu;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, WgslKernels};
use crate::protocol::Activation;

params! {
    struct Params {
        packs: usize,
        width: usize,
    }
}

static ACTIVATION: Shader = shader!("activation", Params, ["gelu", "swiglu", "activation"]);

fn spec(width: usize, activation: Activation, element: Element, backward: bool) -> Spec {
    Spec::new(&ACTIVATION, ELEMENTWISE)
        .packed(pack_of(&[width]))
        .storing("activation", element)
        .flag("BACKWARD", backward)
        .flag("GATED", activation == Activation::SwiGlu)
        .flag("ERF", activation == Activation::Gelu(Gelu::Erf))
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let gelus = [Gelu::Tanh, Gelu::Erf].map(Activation::Gelu);
    let mut specs = Vec::new();
    for activation in gelus.into_iter().chain([Activation::SwiGlu]) {
        for width in [39, 768] {
            for element in Element::ALL {
                specs.extend([false, true].map(|back| spec(width, activation, element, back)));
            }
        }
    }
    specs
}

/// Computes the activation of `x`, or with its gradient `dy` that of `x`, into a tensor of the width `c`.
fn launch(
    kernels: &WgslKernels,
    x: &CubeTensor,
    dy: Option<&CubeTensor>,
    activation: Activation,
) -> CubeTensor {
    let [n, c] = x.shape().dims();
    let inner = if activation == Activation::SwiGlu { c / 2 } else { c };
    let out = if dy.is_some() { c } else { inner };
    let y = kernels.queue.empty_of([n, out], x.dtype);
    let spec = spec(inner, activation, Element::of(x), dy.is_some());
    let width = inner / spec.pack as usize;
    kernels.queue.launch(
        spec,
        Workgroups::cover(n * width, ELEMENTWISE),
        &[Some(x), dy, Some(&y)],
        &Params { packs: n * width, width },
    );
    y
}

pub(super) fn forward(kernels: &WgslKernels, inputs: ActivationInputs<Gpu>) -> CubeTensor {
    launch(kernels, &inputs.x, None, inputs.activation)
}

pub(super) fn backward(kernels: &WgslKernels, inputs: ActivationBackwardInputs<Gpu>) -> CubeTensor {
    launch(kernels, &inputs.x, Some(&inputs.dy), inputs.activation)
}
