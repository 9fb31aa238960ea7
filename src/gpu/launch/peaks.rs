//! Measures a device's peaks, against which `wgpt bench` compares every kernel.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// The rate of a copy in GB/s, bytes read plus bytes written.
    pub copy_gb_per_s: f64,
    /// The rate of f32 multiply-adds in GFLOP/s, each counted as two.
    pub multiply_add_gflop_per_s: f64,
}

#[cfg(feature = "wgpu")]
mod kernels {
    use std::time::Instant;

    use burn::tensor::Device;

    use super::Peaks;
    use crate::gpu::error::DeviceError;
    use crate::gpu::launch::kernel::{Queue, Shader, Spec, Workgroups, params, shader};
    use crate::gpu::memory::{cube, wait};

    params! {
        struct CopyParams {
            packs: usize,
        }

        struct MultiplyAddParams {
            packs: usize,
            rounds: usize,
            factor: f32,
            summand: f32,
        }
    }

    static COPY: Shader = shader!("probe_copy", CopyParams, ["probe_copy"]);
    static MULTIPLY_ADD: Shader =
        shader!("probe_multiply_add", MultiplyAddParams, ["probe_multiply_add"]);

    /// Independent chains of packs per invocation of `probe_multiply_add.wgsl`.
    const CHAINS: usize = 8;

    const PACK: usize = 4;
    const WORKGROUP: u32 = 256;

    fn spec(shader: &'static Shader) -> Spec {
        Spec::new(shader, WORKGROUP).packed(PACK as u32)
    }

    pub fn probe_variants() -> Vec<Spec> {
        [&COPY, &MULTIPLY_ADD].map(spec).to_vec()
    }

    /// Measures the peaks of `device`, with less work if it is `slow`; `None` if it does not run WGSL.
    pub fn peaks(device: &Device, slow: bool) -> Result<Option<Peaks>, DeviceError> {
        let Some(queue) = cube(device).map(Queue::on).filter(Queue::runs_wgsl) else {
            return Ok(None);
        };
        // Larger than the caches, smaller than every device's binding limit.
        let elements = if slow { 8 << 20 } else { 32 << 20 };
        let x = queue.empty([elements]);
        let y = queue.empty([elements]);
        let packs = elements / PACK;
        let seconds = best(device, || {
            queue.launch(
                spec(&COPY),
                Workgroups::cover(packs, WORKGROUP),
                &[Some(&x), Some(&y)],
                &CopyParams { packs },
            );
        })?;
        let copy_gb_per_s = 8.0 * elements as f64 / seconds * 1e-9;

        // About 10^9 operations on a slow device, 3 x 10^11 on a fast one.
        let packs = if slow { 16 * 256 } else { 4096 * 256 };
        let rounds = 4096;
        let seconds = best(device, || {
            queue.launch(
                spec(&MULTIPLY_ADD),
                Workgroups::Plane(packs / WORKGROUP as usize, 1),
                &[Some(&y)],
                &MultiplyAddParams { packs, rounds, factor: 0.999, summand: 0.001 },
            );
        })?;
        let operations = 2 * packs * PACK * CHAINS * rounds;
        let multiply_add_gflop_per_s = operations as f64 / seconds * 1e-9;
        Ok(Some(Peaks { copy_gb_per_s, multiply_add_gflop_per_s }))
    }

    /// Returns the seconds of the fastest of five runs, after one that compiles.
    fn best(device: &Device, mut launch: impl FnMut()) -> Result<f64, DeviceError> {
        let mut run = || {
            let start = Instant::now();
            launch();
            wait(device).map(|()| start.elapsed().as_secs_f64())
        };
        run()?;
        (0..5).try_fold(f64::INFINITY, |best, _| Ok(best.min(run()?)))
    }
}

#[cfg(feature = "wgpu")]
pub use kernels::{peaks, probe_variants};

/// Returns `None`: this build runs no WGSL.
#[cfg(not(feature = "wgpu"))]
pub fn peaks(
    _device: &burn::tensor::Device,
    _slow: bool,
) -> Result<Option<Peaks>, crate::gpu::DeviceError> {
    Ok(None)
}
