//! AdamW by the kernel of `shaders/`.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, Updated, Weight};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::shared::kernels::{contiguous, elements, owned};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

static ADAMW: Shader = Shader { name: "adamw", parts: &[wgsl!("adamw")] };

fn spec(pack: u32, half: Option<Element>) -> Spec {
    Spec::new(&ADAMW, ELEMENTWISE)
        .packed(pack)
        .storing("half_weight", half.unwrap_or(Element::F32))
        .with("HALF", half.is_some())
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    [None, Some(Element::F16)].into_iter().flat_map(|half| [spec(1, half), spec(4, half)]).collect()
}

pub(super) fn update(
    kernels: &WgslKernels,
    weight: Weight<CubeBackend>,
    grad: CubeTensor,
    control: CubeTensor,
    scalars: AdamW,
) -> Updated<CubeBackend> {
    let Weight { w, half, m, v } = weight;
    let [w, m, v] = [w, m, v].map(owned);
    let half = half.into_option().map(owned);
    let (grad, control) = (contiguous(grad), contiguous(control));
    let pack = pack_of(&[elements(&w)]);
    let packs = elements(&w) / pack as usize;
    let AdamW { decay, beta1, beta2, eps } = scalars;
    let mut params = vec![packs as u32];
    params.extend([decay, beta1, beta2, eps].map(f32::to_bits));
    let buffers = [&w, &grad, &m, &v, &control].map(|tensor| tensor.handle.clone().binding());
    kernels.queue.launch(
        spec(pack, half.as_ref().map(Element::of)),
        Workgroups::cover(packs, ELEMENTWISE),
        buffers.into_iter().chain([kernels.optional(half.as_ref())]),
        &params,
    );
    (w, half, m, v)
}
