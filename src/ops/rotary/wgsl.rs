use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{RotaryBackwardInputs, RotaryInputs, RotaryShape};
use crate::gpu::kernel::{Element, Shader, Spec, Workgroups, pack_of, params, shader};
use crate::ops::shared::kernels::{in_place, owned};
use crate::ops::shared::wgsl::{Gpu, WgslKernels};
use crate::plan::NORM_GROUPS;

params! {
    /// The turns of four pairs of elements.
    struct Turns {
        x: u32,
        y: u32,
        z: u32,
        w: u32,
    }

    struct Params {
        rows: usize,
        rows_per_group: usize,
        time: usize,
        heads: usize,
        kv_heads: usize,
        eps: f32,
        direction: f32,
        turns: Vec<Turns>,
    }
}

static ROTARY: Shader = shader!("rotary", Params, ["rotary_angles", "rotary"]);
static BACKWARD: Shader = shader!("rotary_backward", Params, ["rotary_angles", "rotary_backward"]);

/// Invocations in a workgroup: several of the largest heads.
const WORKGROUP: u32 = 128;

fn spec(shader: &'static Shader, activation: Element, size: usize) -> Spec {
    let pack = pack_of(&[size / 2]);
    Spec::new(shader, WORKGROUP)
        .packed(pack)
        .storing("activation", activation)
        .with("SIZE", size as u32 / pack)
        .with("QUADS", size.div_ceil(8) as u32)
}

fn forward_spec(activation: Element, size: usize, in_place: bool, normed: bool) -> Spec {
    spec(&ROTARY, activation, size).flag("IN_PLACE", in_place).flag("NORMED", normed)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let mut specs = Vec::new();
    for size in [2, 6, 64, 80, 128] {
        for activation in Element::ALL {
            specs.push(spec(&BACKWARD, activation, size));
            for normed in [false, true] {
                let variant = |in_place| forward_spec(activation, size, in_place, normed);
                specs.extend([false, true].map(variant));
            }
        }
    }
    specs
}

/// Returns the parameters for `rows` rows, and the heads of a workgroup.
fn params(spec: &Spec, shape: RotaryShape, [rows, size]: [usize; 2]) -> (Params, usize) {
    let RotaryShape { time, heads, kv_heads, eps, .. } = shape;
    let turns = shape.turns(size);
    let quad = |turns: &[u32]| {
        let at = |i: usize| turns.get(i).copied().unwrap_or_default();
        Turns { x: at(0), y: at(1), z: at(2), w: at(3) }
    };
    let turns = turns.chunks(4).map(quad).collect();
    let params =
        Params { rows, rows_per_group: rows, time, heads, kv_heads, eps, direction: 1.0, turns };
    (params, WORKGROUP as usize / (size / 2 / spec.pack as usize))
}

pub(super) fn forward(kernels: &WgslKernels, inputs: RotaryInputs<Gpu>) -> CubeTensor {
    let RotaryInputs { qkv, norms, shape } = inputs;
    let (source, rotated) = in_place(&kernels.queue, qkv);
    let (q_norm, k_norm) = norms.unzip();
    rotate(kernels, source, &rotated, [q_norm, k_norm], shape, 1.0);
    rotated
}

fn rotate(
    kernels: &WgslKernels,
    source: Option<CubeTensor>,
    rotated: &CubeTensor,
    [q_norm, k_norm]: [Option<CubeTensor>; 2],
    shape: RotaryShape,
    direction: f32,
) {
    let [n, width] = rotated.shape().dims();
    let in_place = source.is_none();
    let size = shape.size(width);
    let spec = forward_spec(Element::of(rotated), size, in_place, q_norm.is_some());
    let (params, of_workgroup) = params(&spec, shape, [n, size]);
    let heads = if in_place { shape.rotated() } else { width / size };
    kernels.queue.launch(
        spec,
        Workgroups::Line((n * heads).div_ceil(of_workgroup)),
        &[source.as_ref(), Some(rotated), q_norm.as_ref(), k_norm.as_ref()],
        &Params { direction, ..params },
    );
}

pub(super) fn backward(
    kernels: &WgslKernels,
    inputs: RotaryBackwardInputs<Gpu>,
) -> (CubeTensor, Option<CubeTensor>) {
    let RotaryBackwardInputs { dqkv, qkv, norms, shape } = inputs;
    let dqkv = owned(dqkv);
    let [n, width] = dqkv.shape().dims();
    let Some((q_norm, k_norm)) = norms else {
        rotate(kernels, None, &dqkv, [None, None], shape, -1.0);
        return (dqkv, None);
    };
    let qkv = qkv.expect("qkv as the op took it");
    let size = shape.size(width);
    let rows_per_group = n.div_ceil(NORM_GROUPS);
    let groups = n.div_ceil(rows_per_group);
    let partial = kernels.queue.empty([groups, 2, size]);
    let spec = spec(&BACKWARD, Element::of(&dqkv), size);
    let (params, _) = params(&spec, shape, [n, size]);
    kernels.queue.launch(
        spec,
        Workgroups::Plane(groups, 1),
        &[&dqkv, &qkv, &q_norm, &k_norm, &partial].map(Some),
        &Params { direction: -1.0, rows_per_group, ..params },
    );
    (dqkv, Some(partial))
}
