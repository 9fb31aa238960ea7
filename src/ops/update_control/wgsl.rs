use burn_cubecl::tensor::CubeTensor;

use super::{
    GROWTH_INTERVAL, MAX_GROWN_SCALE, MIN_SCALE, NORM_SPAN, UpdateControlInputs, UpdateSettings,
};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::kernels::elements;
use crate::ops::shared::wgsl::tensors::{LaunchedTensor, SegmentParams};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, WgslKernels};

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

fn decision_spec(scales_loss: bool) -> Spec {
    Spec::new(&DECISION, ELEMENTWISE)
        .flag("SCALES_LOSS", scales_loss)
        .with("GROWTH_INTERVAL", GROWTH_INTERVAL)
        .with("MAX_GROWN_SCALE", MAX_GROWN_SCALE)
        .with("MIN_SCALE", MIN_SCALE)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let squares = Spec::new(&SQUARES, ELEMENTWISE).with("SPAN", 64).with("TENSORS", 6);
    let squares = [1, 4].map(|pack| squares.clone().packed(pack));
    squares.into_iter().chain([false, true].map(decision_spec)).collect()
}

fn sum_squares(
    kernels: &WgslKernels,
    grads: &[CubeTensor],
    loss_scale: &CubeTensor,
    divisor: f32,
) -> CubeTensor {
    let mut count = 0;
    let mut firsts = Vec::new();
    for grad in grads {
        firsts.push(count);
        count += elements(grad).div_ceil(NORM_SPAN);
    }
    let sums = kernels.queue.empty([count]);
    for pack in [4, 1] {
        let of_pack = |(grad, _): &(&CubeTensor, &usize)| pack_of(&[elements(grad)]) == pack;
        let tensor = |(grad, &first): (_, &usize)| LaunchedTensor {
            buffers: vec![grad],
            packs: elements(grad) / pack as usize,
            word: first as u32,
        };
        let tensors = grads.iter().zip(&firsts).filter(of_pack).map(tensor);
        let span = NORM_SPAN / pack as usize;
        let shared = [&sums, loss_scale];
        let params = |tensors| SquaresParams { divisor, tensors };
        let spec = Spec::new(&SQUARES, ELEMENTWISE).packed(pack);
        kernels.launch_on_tensors(spec, span, &shared, tensors, params);
    }
    sums
}

pub(super) fn decide(
    kernels: &WgslKernels,
    inputs: UpdateControlInputs<Gpu>,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let UpdateControlInputs { grads, loss_scale, settings } = inputs;
    let sums = sum_squares(kernels, &grads, &loss_scale, settings.divisor);
    let [norm, control, next] = [1, 4, 4].map(|len| kernels.queue.empty([len]));
    let [log_beta1, log_beta2] = settings.log_betas();
    let UpdateSettings { grad_clip, divisor, step, learning_rate, scales_loss, .. } = settings;
    let elements = elements(&sums);
    let step = step as f32;
    let learning_rate = learning_rate as f32;
    kernels.queue.launch(
        decision_spec(scales_loss),
        Workgroups::Plane(1, 1),
        &[&sums, &loss_scale, &norm, &control, &next].map(Some),
        &DecisionParams { elements, grad_clip, divisor, step, learning_rate, log_beta1, log_beta2 },
    );
    (norm, control, next)
}
