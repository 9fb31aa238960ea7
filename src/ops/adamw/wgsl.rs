//! AdamW by the kernel of `shaders/`.

use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, Lists, Weight, into_lists};
use crate::gpu::kernel::{Element, Shader, Spec, pack_of, wgsl};
use crate::ops::shared::kernels::{contiguous, elements, owned};
use crate::ops::shared::wgsl::tensors::Segment;
use crate::ops::shared::wgsl::{ELEMENTWISE, TENSOR_SPAN, WgslKernels};

static WEIGHTS: Shader = Shader { name: "adamw", parts: &[wgsl!("adamw_weights"), wgsl!("adamw")] };
static HALF_WEIGHTS: Shader =
    Shader { name: "adamw with copies", parts: &[wgsl!("adamw_half_weights"), wgsl!("adamw")] };

fn spec(pack: u32, has_half: bool) -> Spec {
    match has_half {
        true => Spec::new(&HALF_WEIGHTS, ELEMENTWISE).storing("half_weight", Element::F16),
        false => Spec::new(&WEIGHTS, ELEMENTWISE),
    }
    .packed(pack)
}

pub(in crate::ops) fn variants() -> Vec<Spec> {
    let of_pack = |pack| [spec(pack, false), spec(pack, true)];
    let specs = [1, 4].into_iter().flat_map(of_pack);
    specs.map(|spec| spec.with("SPAN", 64).on_tensors(1)).collect()
}

pub(super) fn update(
    kernels: &WgslKernels,
    weights: Vec<Weight<CubeBackend>>,
    control: CubeTensor,
    scalars: AdamW,
) -> Lists<CubeBackend> {
    let control = contiguous(control);
    let own = |weight: Weight<CubeBackend>| {
        let Weight { w, half, grad, m, v, decays } = weight;
        let [w, m, v] = [w, m, v].map(owned);
        let (half, grad) = (half.map(owned), contiguous(grad));
        Weight::<CubeBackend> { w, half, grad, m, v, decays }
    };
    let weights: Vec<_> = weights.into_iter().map(own).collect();
    let header = [scalars.beta1, scalars.beta2, scalars.eps].map(f32::to_bits);
    for (pack, has_half) in [(4, true), (4, false), (1, true), (1, false)] {
        let of_kind = weights.iter().filter(|weight| {
            pack_of(&[elements(&weight.w)]) == pack && weight.half.is_some() == has_half
        });
        let segments = of_kind.map(|weight| {
            let Weight { w, half, grad, m, v, decays } = weight;
            Segment {
                buffers: [w, grad, m, v].into_iter().chain(half).collect(),
                packs: elements(w) / pack as usize,
                word: scalars.decay_of(*decays).to_bits(),
            }
        });
        let segments: Vec<Segment> = segments.collect();
        let span = TENSOR_SPAN / pack as usize;
        kernels.launch_on_tensors(spec(pack, has_half), span, &[&control], &header, &segments);
    }
    into_lists::<CubeBackend>(weights.into_iter().map(Weight::into_updated))
}
