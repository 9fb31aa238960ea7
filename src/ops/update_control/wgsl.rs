//! The control of an update by the kernels of `shaders/`.

use burn_cubecl::tensor::CubeTensor;

use super::{GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_SPAN, UpdateSettings};
use crate::gpu::kernel::{Param, Shader, Spec, Workgroups, pack_of, params, wgsl};
use crate::ops::shared::kernels::{contiguous, elements};
use crate::ops::shared::wgsl::tensors::{Segment, SegmentParams};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

params! {
    struct SquaresParams {
        divisor: f32,
        tensors: Vec<SegmentParams>,
    }
}

params! {
    struct DecisionParams {
        elements: usize,
        grad_clip: f32,
        divisor: f32,
        step: f32,
        learning_rate: f32,
        log_beta1: f32,
        log_beta2: f32,
    }
}

static SQUARES: Shader = Shader {
    name: "update_control_squares",
    parts: &[wgsl!("reduce"), wgsl!("segments"), wgsl!("update_control_squares")],
    params: SquaresParams::TYPE,
};
static DECISION: Shader = Shader {
    name: "update_control_decision",
    parts: &[wgsl!("reduce"), wgsl!("update_control_decision")],
    params: DecisionParams::TYPE,
};

fn squares_spec(pack: u32) -> Spec {
    Spec::new(&SQUARES, ELEMENTWISE).packed(pack)
}

fn decision_spec(scales_loss: bool) -> Spec {
    Spec::new(&DECISION, ELEMENTWISE)
        .with("SCALES_LOSS", scales_loss)
        .with("GROWTH_INTERVAL", GROWTH_INTERVAL)
        .with("MAX_GROWN_SCALE", MAX_GROWN_SCALE)
        .with("MIN_SCALE", MIN_SCALE)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let squares = [1, 4].map(|pack| squares_spec(pack).with("SPAN", 64).on_tensors(6));
    squares.into_iter().chain([false, true].map(decision_spec)).collect()
}

pub(super) fn sum_squares(
    kernels: &WgslKernels,
    grads: Vec<CubeTensor>,
    loss_scale: CubeTensor,
    divisor: f32,
) -> CubeTensor {
    let loss_scale = contiguous(loss_scale);
    let grads: Vec<CubeTensor> = grads.into_iter().map(contiguous).collect();
    let mut count = 0;
    // The index of its first sum, for each.
    let first = |grad: &CubeTensor| {
        count += elements(grad).div_ceil(NORM_SPAN);
        count - elements(grad).div_ceil(NORM_SPAN)
    };
    let firsts: Vec<usize> = grads.iter().map(first).collect();
    let sums = kernels.queue.empty([count]);
    for pack in [4, 1] {
        let of_pack = |(grad, _): &(&CubeTensor, &usize)| pack_of(&[elements(grad)]) == pack;
        let segment = |(grad, &first): (_, &usize)| Segment {
            buffers: vec![grad],
            packs: elements(grad) / pack as usize,
            word: first as u32,
        };
        let segments: Vec<Segment> =
            grads.iter().zip(&firsts).filter(of_pack).map(segment).collect();
        let (spec, span, shared) =
            (squares_spec(pack), NORM_SPAN / pack as usize, [&sums, &loss_scale]);
        let params = |tensors| SquaresParams { divisor, tensors };
        kernels.launch_on_tensors(spec, span, &shared, &segments, params);
    }
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
    let params = DecisionParams {
        elements: elements(&sums),
        grad_clip,
        divisor,
        step: step as f32,
        learning_rate: learning_rate as f32,
        log_beta1,
        log_beta2,
    };
    kernels.queue.launch(
        decision_spec(scales_loss),
        Workgroups::Plane(1, 1),
        &[&sums, &loss_scale, &norm, &control, &next].map(Some),
        &params,
    );
    (norm, control, next)
}
