//! The optimizer's passes.

use burn_cubecl::tensor::CubeTensor;

use super::{ELEMENTWISE, Kernels, contiguous, elements, owned};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::AdamW;
use crate::ops::adamw::NORM_SPAN;

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

impl Kernels {
    pub fn sum_squares(&self, x: CubeTensor, sums: CubeTensor, first: usize) -> CubeTensor {
        let (x, sums) = (contiguous(x), owned(sums));
        let spec = sum_squares(pack_of(&[elements(&x)]));
        let packs = elements(&x) / spec.pack() as usize;
        let spans = elements(&x).div_ceil(NORM_SPAN);
        self.queue.launch(
            spec,
            Workgroups::Line(spans),
            [&x, &sums].map(|tensor| tensor.handle.clone().binding()),
            &[packs, first, spans].map(|number| number as u32),
        );
        sums
    }

    pub fn clip(&self, sums: CubeTensor, limit: f32) -> (CubeTensor, CubeTensor) {
        let sums = contiguous(sums);
        let [norm, clip] = [(); 2].map(|()| self.queue.empty([1]));
        self.queue.launch(
            clip_factor(),
            Workgroups::Plane(1, 1),
            [&sums, &norm, &clip].map(|tensor| tensor.handle.clone().binding()),
            &[elements(&sums) as u32, limit.to_bits()],
        );
        (norm, clip)
    }

    pub fn adamw(
        &self,
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
        self.queue.launch(
            adamw(pack),
            Workgroups::cover(packs, ELEMENTWISE),
            [&w, &grad, &m, &v, &clip].map(|tensor| tensor.handle.clone().binding()),
            &params,
        );
        (w, m, v)
    }
}
