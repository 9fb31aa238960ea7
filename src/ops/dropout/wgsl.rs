//! Dropout by the kernel of `shaders/`.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::Dropout;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, wgsl};
use crate::ops::shared::kernels::contiguous;
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

static DROPOUT: Shader =
    Shader { name: "dropout", parts: &[wgsl!("dropout_mask"), wgsl!("dropout")] };

fn spec(activation: Element, residual: bool) -> Spec {
    Spec::new(&DROPOUT, ELEMENTWISE).storing("activation", activation).with("RESIDUAL", residual)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let both = |activation| [false, true].map(|residual| spec(activation, residual));
    Element::ALL.into_iter().flat_map(both).collect()
}

/// The fields of `Mask` in dropout_mask.wgsl.
pub(in crate::ops) fn mask(dropout: &Dropout) -> [u32; 5] {
    let [key0, key1] = dropout.key;
    [key0, key1, dropout.first_sequence, dropout.threshold(), dropout.scale().to_bits()]
}

pub(super) fn forward(
    kernels: &WgslKernels,
    x: CubeTensor,
    residual: Option<CubeTensor>,
    time: usize,
    dropout: Dropout,
) -> CubeTensor {
    let [n, c] = x.shape().dims();
    let (x, residual) = (contiguous(x), residual.map(contiguous));
    let y = kernels.queue.empty_of([n, c], x.dtype);
    // A struct within uniforms begins at a multiple of 16 bytes.
    let mut params = vec![(n * c) as u32, (time * c) as u32, 0, 0];
    params.extend(mask(&dropout));
    kernels.queue.launch(
        spec(Element::of(&x), residual.is_some()),
        Workgroups::cover(n * c, ELEMENTWISE),
        [x.handle.binding(), kernels.optional(residual.as_ref()), y.handle.clone().binding()],
        &params,
    );
    y
}
