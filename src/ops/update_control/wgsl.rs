//! The control of an update by the kernels of `shaders/`.

use burn_cubecl::tensor::CubeTensor;

use super::{GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_SPAN, UpdateSettings};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::shared::kernels::{contiguous, elements, owned};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

static SQUARES: Shader = Shader {
    name: "update_control_squares",
    parts: &[wgsl!("reduce"), wgsl!("update_control_squares")],
};
static DECISION: Shader = Shader {
    name: "update_control_decision",
    parts: &[wgsl!("reduce"), wgsl!("update_control_decision")],
};

fn squares_spec(pack: u32) -> Spec {
    Spec::new(&SQUARES, ELEMENTWISE).packed(pack).with("SPAN", NORM_SPAN as u32 / pack)
}

fn decision_spec(scales_loss: bool) -> Spec {
    Spec::new(&DECISION, ELEMENTWISE)
        .with("SCALES_LOSS", scales_loss)
        .with("GROWTH_INTERVAL", GROWTH_INTERVAL)
        .with("MAX_GROWN_SCALE", MAX_GROWN_SCALE)
        .with("MIN_SCALE", MIN_SCALE)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    vec![squares_spec(1), squares_spec(4), decision_spec(false), decision_spec(true)]
}

pub(super) fn sum_squares(
    kernels: &WgslKernels,
    x: CubeTensor,
    sums: CubeTensor,
    loss_scale: CubeTensor,
    divisor: f32,
    first: usize,
) -> CubeTensor {
    let (x, sums, loss_scale) = (contiguous(x), owned(sums), contiguous(loss_scale));
    let spec = squares_spec(pack_of(&[elements(&x)]));
    let packs = elements(&x) / spec.pack() as usize;
    let spans = elements(&x).div_ceil(NORM_SPAN);
    kernels.queue.launch(
        spec,
        Workgroups::Line(spans),
        [&x, &sums, &loss_scale].map(|tensor| tensor.handle.clone().binding()),
        &[packs as u32, first as u32, spans as u32, divisor.to_bits()],
    );
    sums
}

pub(super) fn decide(
    kernels: &WgslKernels,
    sums: CubeTensor,
    loss_scale: CubeTensor,
    settings: UpdateSettings,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (sums, loss_scale) = (contiguous(sums), contiguous(loss_scale));
    let [norm, control, next] = [1, 4, 4].map(|len| kernels.queue.empty([len]));
    let [log_beta1, log_beta2] = settings.log_betas();
    let UpdateSettings { grad_clip, divisor, step, learning_rate, scales_loss, .. } = settings;
    let floats = [grad_clip, divisor, step as f32, learning_rate as f32, log_beta1, log_beta2];
    let mut params = vec![elements(&sums) as u32];
    params.extend(floats.map(f32::to_bits));
    kernels.queue.launch(
        decision_spec(scales_loss),
        Workgroups::Plane(1, 1),
        [&sums, &loss_scale, &norm, &control, &next].map(|tensor| tensor.handle.clone().binding()),
        &params,
    );
    (norm, control, next)
}
