use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{LayerNormBackwardInputs, LayerNormInputs, WeightGradientsInputs};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::cube::rows::{ELEMENTS, RowLayout, UNITS};
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

/// A kernel on rows, in two forms.
struct Kernel {
    of_workgroups: Shader,
    of_teams: Shader,
    /// The elements of a row for which an invocation of a team has registers.
    elements: usize,
}

static FORWARD: Kernel = Kernel {
    of_workgroups: shader!(
        "layer_norm_forward",
        ForwardParams,
        ["reduce", "rows_of_workgroups", "layer_norm_rows", "layer_norm_forward"]
    ),
    of_teams: shader!(
        "layer_norm_forward of teams",
        ForwardParams,
        ["rows_of_teams", "layer_norm_rows", "layer_norm_forward"]
    ),
    elements: ELEMENTS,
};
static BACKWARD: Kernel = Kernel {
    of_workgroups: shader!(
        "layer_norm_backward",
        BackwardParams,
        ["reduce", "rows_of_workgroups", "layer_norm_rows", "layer_norm_backward"]
    ),
    of_teams: shader!(
        "layer_norm_backward of teams",
        BackwardParams,
        ["rows_of_teams", "sums_of_teams", "layer_norm_rows", "layer_norm_backward"]
    ),
    // Each takes up to nine registers in f32.
    elements: 24,
};
static WEIGHTS: Shader = shader!(
    "layer_norm_backward_weights",
    WeightsParams,
    ["segments", "layer_norm_backward_weights"]
);

/// Returns the variant for rows of workgroups or, where `lanes` invocations exchange values by shuffles,
/// for rows of teams, and the number of teams of a workgroup.
fn rows_spec(
    kernel: &'static Kernel,
    (tier, lanes): (Tier, Option<u32>),
    activation: Element,
    width: usize,
    rms: bool,
) -> (Spec, usize) {
    let pack = pack_of(&[width]);
    let (spec, teams) = match lanes {
        None => (Spec::new(&kernel.of_workgroups, tier.row_workgroup()), 1),
        Some(lanes) => {
            let layout = RowLayout::on(Some(lanes), width, pack as usize, kernel.elements);
            let spec = Spec::new(&kernel.of_teams, UNITS as u32)
                .with("TEAM", layout.team as u32)
                .with("PART", lanes)
                .with("LEVELS", lanes.ilog2())
                .with("COLUMNS", layout.own() as u32);
            (spec, layout.teams())
        }
    };
    let spec = spec
        .packed(pack)
        .storing("activation", activation)
        .with("WIDTH", width as u32 / pack)
        .flag("RMS", rms);
    (spec, teams)
}

fn weights_spec(width: usize) -> Spec {
    Spec::new(&WEIGHTS, ELEMENTWISE).packed(pack_of(&[width]))
}

pub(in crate::ops) fn variants(tier: Tier) -> Vec<Spec> {
    let mut specs = Vec::new();
    let lanes = [None, Some(8), Some(32)];
    let forms = &lanes[..if tier == Tier::Wide { lanes.len() } else { 1 }];
    for width in [1, 39, 384, 768, 1600] {
        specs.push(weights_spec(width).with("SPAN", ELEMENTWISE).with("TENSORS", 2));
        for activation in Element::ALL {
            for &lanes in forms {
                let rows = |shader, rms| rows_spec(shader, (tier, lanes), activation, width, rms).0;
                let forward = |(beta, rms)| rows(&FORWARD, rms).flag("BETA", beta);
                specs.extend([(false, false), (true, false), (false, true)].map(forward));
                for whole in [false, true].into_iter().filter(|whole| lanes.is_some() || !whole) {
                    let backward = |rms| rows(&BACKWARD, rms).flag("WHOLE", whole);
                    specs.extend([false, true].map(backward));
                }
            }
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
    let (spec, teams) = rows_spec(&FORWARD, kernels.rows(), Element::of(&x), c, form.is_rms());
    kernels.queue.launch(
        spec.flag("BETA", beta.is_some()),
        Workgroups::Line(n.div_ceil(teams)),
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
    let (spec, teams) = rows_spec(&BACKWARD, kernels.rows(), Element::of(&x), c, form.is_rms());
    // As many rows for each team of a workgroup.
    let rows_per_group = n.div_ceil(NORM_GROUPS).next_multiple_of(teams);
    let groups = n.div_ceil(rows_per_group);
    let whole = teams > 1 && n.is_multiple_of(rows_per_group);
    let accumulates = u32::from(residual.is_some());
    let dx = residual.map_or_else(|| kernels.queue.empty_of([n, c], x.dtype), owned);
    let partial = kernels.queue.empty([groups, 2, c]);
    kernels.queue.launch(
        spec.flag("WHOLE", whole),
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
