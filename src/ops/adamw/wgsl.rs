use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, AdamWInputs, Updated, Weight};
use crate::gpu::kernel::{Element, Shader, Spec, pack_of, params, shader};
use crate::ops::shared::kernels::{elements, owned};
use crate::ops::shared::wgsl::tensors::{LaunchedTensor, SegmentParams};
use crate::ops::shared::wgsl::{ELEMENTWISE, Gpu, TENSOR_SPAN, WgslKernels};

params! {
    struct Params {
        beta1: f32,
        beta2: f32,
        eps: f32,
        tensors: Vec<SegmentParams>,
    }
}

static WEIGHTS: Shader = shader!("adamw", Params, ["segments", "adamw_weights", "adamw"]);
static HALF_WEIGHTS: Shader =
    shader!("adamw with copies", Params, ["segments", "adamw_half_weights", "adamw"]);

fn spec(pack: u32, has_half: bool) -> Spec {
    let spec = if has_half {
        Spec::new(&HALF_WEIGHTS, ELEMENTWISE).storing("half_weight", Element::F16)
    } else {
        Spec::new(&WEIGHTS, ELEMENTWISE)
    };
    spec.packed(pack)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let of_pack = |pack| [spec(pack, false), spec(pack, true)];
    let specs = [1, 4].into_iter().flat_map(of_pack);
    specs.map(|spec| spec.with("SPAN", 64).with("TENSORS", 1)).collect()
}

pub(super) fn update(kernels: &WgslKernels, inputs: AdamWInputs<Gpu>) -> Vec<Updated<CubeTensor>> {
    let AdamWInputs { weights, control, scalars } = inputs;
    let own = |(w, half, grad, (m, v), decays): Weight<CubeTensor>| {
        let [w, m, v] = [w, m, v].map(owned);
        (w, half.map(owned), grad, (m, v), decays)
    };
    let weights: Vec<Weight<CubeTensor>> = weights.into_iter().map(own).collect();
    for (pack, has_half) in [(4, true), (4, false), (1, true), (1, false)] {
        let of_kind = weights
            .iter()
            .filter(|(w, half, ..)| pack_of(&[elements(w)]) == pack && half.is_some() == has_half);
        let tensors = of_kind.map(|(w, half, grad, (m, v), decays)| LaunchedTensor {
            buffers: [w, grad, m, v].into_iter().chain(half).collect(),
            packs: elements(w) / pack as usize,
            word: scalars.decay_of(*decays).to_bits(),
        });
        let spec = spec(pack, has_half);
        let span = TENSOR_SPAN / pack as usize;
        let AdamW { beta1, beta2, eps, .. } = scalars;
        let params = |tensors| Params { beta1, beta2, eps, tensors };
        kernels.launch_on_tensors(spec, span, &[&control], tensors, params);
    }
    weights.into_iter().map(|(w, half, _, moments, _)| (w, half, moments)).collect()
}
