use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{LayerNormBackwardInputs, LayerNormInputs, WeightGradientsInputs};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::kernels::owned;
use crate::ops::shared::wgsl::tensors::{LaunchedTensor, SegmentParams};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, Tier, WgslKernels};
use crate::plan::NORM_GROUPS;

params! {
    struct ForwardParams {
        rows: usize,
        eps: f32,
    }

    struct BackwardParams {
        rows: usize,
        rows_per_group: usize,
        accumulates: u32,
    }

    struct WeightsParams {
        tensors: Vec<SegmentParams>,
    }
}

static FORWARD: Shader =
    shader!("layer_norm_forward", ForwardParams, ["reduce", "layer_norm_forward"]);
static BACKWARD: Shader =
    shader!("layer_norm_backward", BackwardParams, ["reduce", "layer_norm_backward"]);
static WEIGHTS: Shader = shader!(
    "layer_norm_backward_weights",
    WeightsParams,
    ["segments", "layer_norm_backward_weights"]
);

fn rows_spec(
    shader: &'static Shader,
    tier: Tier,
    activation: Element,
    width: usize,
    rms: bool,
) -> Spec {
    let pack = pack_of(&[width]);
    Spec::new(shader, tier.row_workgroup())
        .packed(pack)
        .storing("activation", activation)
        .with("WIDTH", width as u32 / pack)
        .flag("RMS", rms)
}

fn forward_spec(tier: Tier, activation: Element, width: usize, beta: bool, rms: bool) -> Spec {
    rows_spec(&FORWARD, tier, activation, width, rms).flag("BETA", beta)
}

fn weights_spec(width: usize) -> Spec {
    Spec::new(&WEIGHTS, ELEMENTWISE).packed(pack_of(&[width]))
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    for width in [1, 39, 384, 768, 1600] {
        specs.push(weights_spec(width).with("SPAN", ELEMENTWISE).with("TENSORS", 2));
        for activation in Element::ALL {
            let forward = |beta, rms| forward_spec(tier, activation, width, beta, rms);
            specs.extend([forward(false, false), forward(true, false), forward(false, true)]);
            let backward = |rms| rows_spec(&BACKWARD, tier, activation, width, rms);
            specs.extend([false, true].map(backward));
        }
    }
    specs
}

pub(super) fn forward(
    kernels: &WgslKernels,
    inputs: LayerNormInputs<Gpu>,
) -> (CubeTensor, (Option<CubeTensor>, CubeTensor)) {
    let LayerNormInputs { x, gamma, beta, form } = inputs;
    let [n, c] = x.shape().dims();
    let y = kernels.queue.empty_of([n, c], x.dtype);
    let mean = (!form.is_rms()).then(|| kernels.queue.empty([n, 1]));
    let rstd = kernels.queue.empty([n, 1]);
    kernels.queue.launch(
        forward_spec(kernels.tier, Element::of(&x), c, beta.is_some(), form.is_rms()),
        Workgroups::Line(n),
        &[Some(&x), Some(&gamma), beta.as_ref(), Some(&y), mean.as_ref(), Some(&rstd)],
        &ForwardParams { rows: n, eps: form.eps() },
    );
    (y, (mean, rstd))
}

pub(super) fn backward(
    kernels: &WgslKernels,
    inputs: LayerNormBackwardInputs<Gpu>,
) -> (CubeTensor, CubeTensor) {
    let LayerNormBackwardInputs { dy, x, gamma, statistics, residual, form } = inputs;
    let (mean, rstd) = statistics;
    let [n, c] = x.shape().dims();
    let spec = rows_spec(&BACKWARD, kernels.tier, Element::of(&x), c, form.is_rms());
    let rows_per_group = n.div_ceil(NORM_GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let accumulates = u32::from(residual.is_some());
    let dx = residual.map_or_else(|| kernels.queue.empty_of([n, c], x.dtype), owned);
    let partial = kernels.queue.empty([groups, 2, c]);
    kernels.queue.launch(
        spec,
        Workgroups::Plane(groups, 1),
        &[Some(&dy), Some(&x), Some(&gamma), mean.as_ref(), Some(&rstd), Some(&dx), Some(&partial)],
        &BackwardParams { rows: n, rows_per_group, accumulates },
    );
    (dx, partial)
}

pub(super) fn weight_gradients(
    kernels: &WgslKernels,
    inputs: WeightGradientsInputs<Gpu>,
) -> Vec<(CubeTensor, CubeTensor)> {
    let partial = inputs.partial;
    // All layers of a model have one width.
    let spec = weights_spec(partial[0].shape()[2]);
    let pack = spec.pack as usize;
    let vectors = |partial: &CubeTensor| {
        let [gamma, beta] = [(); 2].map(|()| kernels.queue.empty([partial.shape()[2]]));
        (gamma, beta)
    };
    let gradients: Vec<_> = partial.iter().map(vectors).collect();
    let tensors = partial.iter().zip(&gradients).map(|(partial, (gamma, beta))| {
        let [groups, _, c] = partial.shape().dims();
        let buffers = vec![partial, gamma, beta];
        LaunchedTensor { buffers, packs: 2 * c / pack, word: groups as u32 }
    });
    let params = |tensors| WeightsParams { tensors };
    kernels.launch_on_tensors(spec, ELEMENTWISE as usize, &[], tensors, params);
    gradients
}
