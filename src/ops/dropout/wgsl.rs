use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{Dropout, DropoutInputs};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, params, shader};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, WgslKernels};

params! {
    /// `Mask` of `shaders/dropout_mask.wgsl`.
    pub(in crate::ops) struct Mask {
        key0: u32,
        key1: u32,
        first_sequence: u32,
        threshold: u32,
        scale: f32,
    }

    struct Params {
        elements: usize,
        per_sequence: usize,
        mask: Mask,
    }
}

impl From<&Dropout> for Mask {
    fn from(dropout: &Dropout) -> Self {
        let Dropout { key: [key0, key1], first_sequence, .. } = *dropout;
        let threshold = dropout.threshold();
        let scale = dropout.scale();
        Self { key0, key1, first_sequence, threshold, scale }
    }
}

static DROPOUT: Shader = shader!("dropout", Params, ["dropout_mask", "dropout"]);

fn spec(activation: Element, residual: bool) -> Spec {
    Spec::new(&DROPOUT, ELEMENTWISE).storing("activation", activation).flag("RESIDUAL", residual)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let both = |activation| [false, true].map(|residual| spec(activation, residual));
    Element::ALL.into_iter().flat_map(both).collect()
}

pub(super) fn forward(kernels: &WgslKernels, inputs: DropoutInputs<Gpu>) -> CubeTensor {
    let DropoutInputs { x, residual, time, dropout } = inputs;
    let [n, c] = x.shape().dims();
    let y = kernels.queue.empty_of([n, c], x.dtype);
    kernels.queue.launch(
        spec(Element::of(&x), residual.is_some()),
        Workgroups::cover(n * c, ELEMENTWISE),
        &[Some(&x), residual.as_ref(), Some(&y)],
        &Params { elements: n * c, per_sequence: time * c, mask: Mask::from(&dropout) },
    );
    y
}
