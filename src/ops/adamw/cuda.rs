//! AdamW by `shaders/cuda/weights.cu`.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::{AdamW, Weight};
use crate::gpu::cuda::{Arguments, Pointer};
use crate::ops::shared::cube::CubeKernels;
use crate::ops::shared::cube::weights::{Spans, padded};
use crate::ops::shared::kernels::elements;

/// The weights of a launch, and the elements of a workgroup.
pub(in crate::ops) const TENSORS: usize = 64;
pub(in crate::ops) const SPAN: usize = 4096;

/// Updates weights in place, all in row-major order, whose copies have one dtype. Returns false, and launches
/// nothing, if the device is not CUDA's.
pub(super) fn update(
    kernels: &CubeKernels,
    weights: &[Weight<CubeTensor>],
    control: &CubeTensor,
    scalars: AdamW,
) -> bool {
    if !kernels.queue.is_cuda() {
        return false;
    }
    let AdamW { beta1, beta2, eps, .. } = scalars;
    for weights in weights.chunks(TENSORS) {
        let all = |pointer: fn(&Weight<CubeTensor>) -> Pointer<'_>| {
            padded(weights.iter().map(pointer), TENSORS)
        };
        let mut pointers = vec![Pointer::Read(control)];
        pointers.extend(all(|(w, ..)| Pointer::Write(w)));
        pointers.extend(all(|(_, half, ..)| half.as_ref().map_or(Pointer::Null, Pointer::Write)));
        pointers.extend(all(|(_, _, grad, ..)| Pointer::Read(grad)));
        pointers.extend(all(|(_, _, _, (m, _), _)| Pointer::Write(m)));
        pointers.extend(all(|(_, _, _, (_, v), _)| Pointer::Write(v)));
        let spans = Spans::of(weights.iter().map(|(w, ..)| elements(w)), SPAN, TENSORS);
        let mut decays =
            weights.iter().map(|weight| scalars.decay_of(weight.4).to_bits()).collect::<Vec<_>>();
        decays.resize(TENSORS, 0);
        let is_f16 = weights
            .iter()
            .any(|(_, half, ..)| half.as_ref().is_some_and(|half| half.dtype == DType::F16));
        let scalars =
            [weights.len() as u32, beta1.to_bits(), beta2.to_bits(), eps.to_bits(), is_f16.into()];
        let values = [&spans.values[..], &decays, &scalars].concat();
        let arguments = Arguments { pointers: &pointers, values: &values };
        kernels.queue.launch_ptx("update_weights", [spans.count, 1], arguments);
    }
    true
}
