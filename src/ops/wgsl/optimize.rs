//! The optimizer's passes.

use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::{ELEMENTWISE, Kernels, contiguous, elements, owned};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::adamw::{
    NORM_SPAN, Optimize, reference_adamw, reference_clip, reference_sum_squares,
};
use crate::ops::{AdamW, OpsMode};

static ADAMW: Shader = Shader { name: "adamw", parts: &[wgsl!("adamw")] };
static SUM_SQUARES: Shader =
    Shader { name: "sum_squares", parts: &[wgsl!("reduce"), wgsl!("sum_squares")] };
static GRADIENT_NORM: Shader =
    Shader { name: "gradient_norm", parts: &[wgsl!("reduce"), wgsl!("gradient_norm")] };

fn adamw(pack: u32) -> Spec {
    Spec::new(&ADAMW, ELEMENTWISE).packed(pack)
}

fn sum_squares(pack: u32) -> Spec {
    Spec::new(&SUM_SQUARES, ELEMENTWISE).packed(pack).with("SPAN", NORM_SPAN as u32 / pack)
}

fn clip_factor() -> Spec {
    Spec::new(&GRADIENT_NORM, ELEMENTWISE)
}

pub(super) fn variants() -> Vec<Spec> {
    vec![adamw(1), adamw(4), sum_squares(1), sum_squares(4), clip_factor()]
}

impl Optimize for CubeBackend {
    fn sum_squares(
        x: FloatTensor<Self>,
        sums: FloatTensor<Self>,
        first: usize,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference_sum_squares::<Self>(x, sums, first);
        };
        let (x, sums) = (contiguous(x), owned(sums));
        let spec = sum_squares(pack_of(&[elements(&x)]));
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

    fn clip(
        sums: FloatTensor<Self>,
        limit: f32,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let Some(kernels) = Kernels::of(&sums, mode) else {
            return reference_clip::<Self>(sums, limit);
        };
        let sums = contiguous(sums);
        let [norm, clip] = [(); 2].map(|()| kernels.queue.empty([1]));
        kernels.queue.launch(
            clip_factor(),
            Workgroups::Plane(1, 1),
            [&sums, &norm, &clip].map(|tensor| tensor.handle.clone().binding()),
            &[elements(&sums) as u32, limit.to_bits()],
        );
        (norm, clip)
    }

    fn adamw(
        w: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        m: FloatTensor<Self>,
        v: FloatTensor<Self>,
        clip: FloatTensor<Self>,
        scalars: AdamW,
        mode: OpsMode,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let Some(kernels) = Kernels::of(&w, mode) else {
            return reference_adamw::<Self>(w, grad, m, v, clip, &scalars);
        };
        let [w, m, v] = [w, m, v].map(owned);
        let (grad, clip) = (contiguous(grad), contiguous(clip));
        let pack = pack_of(&[elements(&w)]);
        let packs = elements(&w) / pack as usize;
        let AdamW { decay, beta1, beta2, step_size, second_correction, eps } = scalars;
        let mut params = vec![packs as u32];
        params.extend([decay, beta1, beta2, step_size, second_correction, eps].map(f32::to_bits));
        kernels.queue.launch(
            adamw(pack),
            Workgroups::cover(packs, ELEMENTWISE),
            [&w, &grad, &m, &v, &clip].map(|tensor| tensor.handle.clone().binding()),
            &params,
        );
        (w, m, v)
    }
}
