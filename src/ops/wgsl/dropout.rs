//! Dropout.

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn_cubecl::CubeBackend;

use super::{ELEMENTWISE, Kernels, contiguous};
use crate::gpu::kernel::{Shader, Spec, Workgroups, wgsl};
use crate::ops::dropout::{DropoutAdd, reference};
use crate::ops::{Dropout, OpsMode, Optional};

static DROPOUT: Shader = Shader { name: "dropout", parts: &[wgsl!("hash"), wgsl!("dropout")] };

fn spec(residual: bool) -> Spec {
    Spec::new(&DROPOUT, ELEMENTWISE).with("RESIDUAL", residual)
}

pub(super) fn variants() -> Vec<Spec> {
    vec![spec(false), spec(true)]
}

/// `Mask` of hash.wgsl.
pub(super) fn mask(dropout: &Dropout) -> [u32; 5] {
    let [key0, key1] = dropout.key;
    [key0, key1, dropout.first_sequence, dropout.threshold(), dropout.scale().to_bits()]
}

impl DropoutAdd for CubeBackend {
    fn dropout(
        x: FloatTensor<Self>,
        residual: Optional<Self>,
        time: usize,
        dropout: Dropout,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let residual = residual.into_option();
        let Some(kernels) = Kernels::of(&x, mode) else {
            return reference::<Self>(x, residual, time, &dropout);
        };
        let [n, c] = x.shape().dims();
        let (x, residual) = (contiguous(x), residual.map(contiguous));
        let y = kernels.queue.empty([n, c]);
        // A struct within uniforms begins at a multiple of 16 bytes.
        let mut params = vec![(n * c) as u32, (time * c) as u32, 0, 0];
        params.extend(mask(&dropout));
        kernels.queue.launch(
            spec(residual.is_some()),
            Workgroups::cover(n * c, ELEMENTWISE),
            [x.handle.binding(), kernels.optional(residual.as_ref()), y.handle.clone().binding()],
            &params,
        );
        y
    }
}
