use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::DequantizeInputs;
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, WgslKernels};

params! {
    struct Params {
        packs: usize,
        width: usize,
    }
}

static DEQUANTIZE: Shader = shader!("dequantize", Params, ["dequantize"]);

fn spec(out: usize, [scale, weight]: [Element; 2]) -> Spec {
    let spec = Spec::new(&DEQUANTIZE, ELEMENTWISE).packed(pack_of(&[out]));
    spec.storing("stored_scale", scale).storing("weight", weight)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let of = |out| Element::ALL.map(|scale| Element::ALL.map(|weight| spec(out, [scale, weight])));
    [39, 768].into_iter().flat_map(of).flatten().collect()
}

pub(super) fn forward(kernels: &WgslKernels, inputs: DequantizeInputs<Gpu>) -> CubeTensor {
    let DequantizeInputs { codes, scales, dtype } = inputs;
    let [words, out] = codes.shape().dims();
    let weights = kernels.queue.empty_of([4 * words, out], dtype);
    let spec = spec(out, [&scales, &weights].map(Element::of));
    let width = out / spec.pack as usize;
    let packs = words * width;
    kernels.queue.launch(
        spec,
        Workgroups::cover(packs, ELEMENTWISE),
        &[&codes, &scales, &weights].map(Some),
        &Params { packs, width },
    );
    weights
}
