//! AdamW by the kernel of `shaders/`.

use burn_cubecl::tensor::CubeTensor;

use super::AdamW;
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::shared::kernels::{contiguous, elements, owned};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

static ADAMW: Shader = Shader { name: "adamw", parts: &[wgsl!("adamw")] };

fn spec(pack: u32) -> Spec {
    Spec::new(&ADAMW, ELEMENTWISE).packed(pack)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    vec![spec(1), spec(4)]
}

pub(super) fn update(
    kernels: &WgslKernels,
    w: CubeTensor,
    grad: CubeTensor,
    m: CubeTensor,
    v: CubeTensor,
    clip: CubeTensor,
    scalars: AdamW,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [w, m, v] = [w, m, v].map(owned);
    let (grad, clip) = (contiguous(grad), contiguous(clip));
    let pack = pack_of(&[elements(&w)]);
    let packs = elements(&w) / pack as usize;
    let AdamW { decay, beta1, beta2, step_size, second_correction, eps } = scalars;
    let mut params = vec![packs as u32];
    params.extend([decay, beta1, beta2, step_size, second_correction, eps].map(f32::to_bits));
    kernels.queue.launch(
        spec(pack),
        Workgroups::cover(packs, ELEMENTWISE),
        [&w, &grad, &m, &v, &clip].map(|tensor| tensor.handle.clone().binding()),
        &params,
    );
    (w, m, v)
}
