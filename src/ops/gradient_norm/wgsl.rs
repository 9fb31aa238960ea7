//! The gradient norm by the kernels of `shaders/`.

use burn_cubecl::tensor::CubeTensor;

use super::NORM_SPAN;
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::shared::kernels::{contiguous, elements, owned};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

static SQUARES: Shader = Shader {
    name: "gradient_norm_squares",
    parts: &[wgsl!("reduce"), wgsl!("gradient_norm_squares")],
};
static CLIP: Shader =
    Shader { name: "gradient_norm_clip", parts: &[wgsl!("reduce"), wgsl!("gradient_norm_clip")] };

fn squares_spec(pack: u32) -> Spec {
    Spec::new(&SQUARES, ELEMENTWISE).packed(pack).with("SPAN", NORM_SPAN as u32 / pack)
}

fn clip_spec() -> Spec {
    Spec::new(&CLIP, ELEMENTWISE)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    vec![squares_spec(1), squares_spec(4), clip_spec()]
}

pub(super) fn sum_squares(
    kernels: &WgslKernels,
    x: CubeTensor,
    sums: CubeTensor,
    first: usize,
) -> CubeTensor {
    let (x, sums) = (contiguous(x), owned(sums));
    let spec = squares_spec(pack_of(&[elements(&x)]));
    let packs = elements(&x) / spec.pack() as usize;
    let spans = elements(&x).div_ceil(NORM_SPAN);
    kernels.queue.launch(
        spec,
        Workgroups::Line(spans),
        [&x, &sums].map(|tensor| tensor.handle.clone().binding()),
        &[packs, first, spans].map(|number| number as u32),
    );
    sums
}

pub(super) fn clip_factor(
    kernels: &WgslKernels,
    sums: CubeTensor,
    limit: f32,
) -> (CubeTensor, CubeTensor) {
    let sums = contiguous(sums);
    let [norm, clip] = [(); 2].map(|()| kernels.queue.empty([1]));
    kernels.queue.launch(
        clip_spec(),
        Workgroups::Plane(1, 1),
        [&sums, &norm, &clip].map(|tensor| tensor.handle.clone().binding()),
        &[elements(&sums) as u32, limit.to_bits()],
    );
    (norm, clip)
}
