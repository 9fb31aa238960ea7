//! Layer normalisation.

use burn::backend::TensorMetadata;
use burn_cubecl::tensor::CubeTensor;

use super::{ELEMENTWISE, Kernels, Tier, contiguous, row_workgroup};
use crate::gpu::kernel::{Shader, Spec, Workgroups, pack_of, wgsl};
use crate::ops::layer_norm::EPS;

static FORWARD: Shader =
    Shader { name: "layer_norm_forward", parts: &[wgsl!("reduce"), wgsl!("layer_norm_forward")] };
static BACKWARD: Shader =
    Shader { name: "layer_norm_backward", parts: &[wgsl!("reduce"), wgsl!("layer_norm_backward")] };
static WEIGHTS: Shader =
    Shader { name: "layer_norm_weights", parts: &[wgsl!("layer_norm_weights")] };

/// Workgroups that share the rows of the backward pass. Each leaves its own sums for the second
/// stage, which costs as much memory as so many rows.
const GROUPS: usize = 128;

fn forward(tier: Tier, width: usize, beta: bool) -> Spec {
    let pack = pack_of(&[width]);
    Spec::new(&FORWARD, row_workgroup(tier))
        .packed(pack)
        .with("WIDTH", width as u32 / pack)
        .with("BETA", beta)
}

fn backward(tier: Tier, width: usize) -> Spec {
    let pack = pack_of(&[width]);
    Spec::new(&BACKWARD, row_workgroup(tier)).packed(pack).with("WIDTH", width as u32 / pack)
}

fn weights(width: usize) -> Spec {
    Spec::new(&WEIGHTS, ELEMENTWISE).packed(pack_of(&[width]))
}

pub(super) fn variants(tier: Tier) -> Vec<Spec> {
    let widths = [1, 39, 384, 768, 1600];
    let specs = widths.into_iter().flat_map(|width| {
        [
            forward(tier, width, false),
            forward(tier, width, true),
            backward(tier, width),
            weights(width),
        ]
    });
    specs.collect()
}

impl Kernels {
    pub fn layer_norm_forward(
        &self,
        x: CubeTensor,
        gamma: CubeTensor,
        beta: Option<CubeTensor>,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [n, c] = x.shape().dims();
        let (x, gamma, beta) = (contiguous(x), contiguous(gamma), beta.map(contiguous));
        let y = self.queue.empty([n, c]);
        let [mean, rstd] = [(); 2].map(|()| self.queue.empty([n, 1]));
        self.queue.launch(
            forward(self.tier, c, beta.is_some()),
            Workgroups::Line(n),
            [
                x.handle.binding(),
                gamma.handle.binding(),
                self.optional(beta.as_ref()),
                y.handle.clone().binding(),
                mean.handle.clone().binding(),
                rstd.handle.clone().binding(),
            ],
            &[n as u32, EPS.to_bits()],
        );
        (y, mean, rstd)
    }

    pub fn layer_norm_backward(
        &self,
        dy: CubeTensor,
        x: CubeTensor,
        gamma: CubeTensor,
        mean: CubeTensor,
        rstd: CubeTensor,
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let [n, c] = x.shape().dims();
        let inputs = [dy, x, gamma, mean, rstd].map(contiguous);
        let rows_per_group = n.div_ceil(GROUPS);
        let groups = n.div_ceil(rows_per_group);
        let dx = self.queue.empty([n, c]);
        let partial = self.queue.empty([groups, 2, c]);
        let outputs = [&dx, &partial].map(|tensor| tensor.handle.clone().binding());
        self.queue.launch(
            backward(self.tier, c),
            Workgroups::Plane(groups, 1),
            inputs.map(|tensor| tensor.handle.binding()).into_iter().chain(outputs),
            &[n as u32, rows_per_group as u32],
        );
        let [dgamma, dbeta] = [(); 2].map(|()| self.queue.empty([c]));
        let spec = weights(c);
        let width = c / spec.pack() as usize;
        self.queue.launch(
            spec,
            Workgroups::Plane((2 * width).div_ceil(ELEMENTWISE as usize), 1),
            [&partial, &dgamma, &dbeta].map(|tensor| tensor.handle.clone().binding()),
            &[groups as u32, width as u32],
        );
        (dx, dgamma, dbeta)
    }
}
