use burn_cubecl::tensor::CubeTensor;

use super::{GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_SPAN, UpdateSettings};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::kernels::elements;
use crate::ops::shared::wgsl::tensors::{Segment, SegmentParams};
use crate::ops::shared::wgsl::{ELEMENTWISE, WgslKernels};

params! {
    struct SquaresParams {
        divisor: f32,
        tensors: Vec<SegmentParams>,
    }

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

static SQUARES: Shader = shader!(
    "update_control_squares",
    SquaresParams,
    ["reduce", "segments", "update_control_squares"]
);
static DECISION: Shader =
    shader!("update_control_decision", DecisionParams, ["reduce", "update_control_decision"]);

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
    let squares = [1, 4].map(|pack| squares_spec(pack).with("SPAN", 64).with("TENSORS", 6));
    squares.into_iter().chain([false, true].map(decision_spec)).collect()
}

pub(super) fn sum_squares(
    kernels: &WgslKernels,
    grads: Vec<CubeTensor>,
    loss_scale: CubeTensor,
    divisor: f32,
) -> CubeTensor {
    let (mut count, mut firsts) = (0, Vec::new());
    for grad in &grads {
        firsts.push(count);
        count += elements(grad).div_ceil(NORM_SPAN);
    }
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
        let (span, shared) = (NORM_SPAN / pack as usize, [&sums, &loss_scale]);
        let params = |tensors| SquaresParams { divisor, tensors };
        kernels.launch_on_tensors(squares_spec(pack), span, &shared, &segments, params);
    }
    sums
}

pub(super) fn decide(
    kernels: &WgslKernels,
    sums: CubeTensor,
    loss_scale: CubeTensor,
    settings: UpdateSettings,
) -> (CubeTensor, CubeTensor, CubeTensor) {
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
