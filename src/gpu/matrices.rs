//! Cooperative matrices: which of them an adapter lists, and a check that it multiplies them.
//!
//! wgpu's support is an experiment, and some drivers' support is too: one lists the matrices and then
//! refuses to open. So we multiply two matrices on a separate device before a run relies on them.

use crate::config::Matrices;

/// The features that kernels with cooperative matrices need.
const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP);

/// The bytes of workgroup memory that such kernels need, twice what WebGPU guarantees.
const WORKGROUP_MEMORY: u32 = 32 << 10;

/// The most subgroups of such kernels' workgroups, and their lanes where the driver chooses them.
const SUBGROUPS: u32 = 8;
const MOST_LANES: u32 = 64;

/// Returns the largest square matrices of float16 with float32 sums that an adapter lists. wgpt's
/// kernels multiply only these, and an adapter with the feature may have none: Intel's are 8 x 16.
pub(super) fn listed(adapter: &wgpu::Adapter) -> Option<Matrices> {
    let wgpu::AdapterInfo { subgroup_min_size, subgroup_max_size, .. } = adapter.get_info();
    let fits = has_room(&adapter.limits(), [subgroup_min_size, subgroup_max_size]);
    if !adapter.features().contains(FEATURES) || !fits {
        return None;
    }
    let listed = adapter.cooperative_matrix_properties();
    let has = |side: u32| {
        listed.iter().any(|shape| {
            [shape.m_size, shape.n_size, shape.k_size] == [side; 3]
                && shape.ab_type == wgpu::CooperativeScalarType::F16
                && shape.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    [Matrices::Sixteen, Matrices::Eight].into_iter().find(|matrices| has(matrices.side()))
}

/// Returns true if such kernels' largest workgroup, of subgroups of `[min, max]`, fits the limits.
fn has_room(limits: &wgpu::Limits, [min, max]: [u32; 2]) -> bool {
    let lanes = if min == max { max.min(MOST_LANES) } else { MOST_LANES };
    let invocations =
        limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
    limits.max_compute_workgroup_storage_size >= WORKGROUP_MEMORY
        && invocations >= SUBGROUPS * lanes
}

#[allow(unsafe_code, reason = "wgpu's experimental features need a token that is unsafe to create")]
pub(super) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: wgpu asks to acknowledge that these features may have bugs that are undefined
    // behaviour. The one in use is `EXPERIMENTAL_COOPERATIVE_MATRIX`. Its kernels are wgpt's own,
    // load and store within their buffers, and are validated by the tests, whose device runs them
    // all; a device computes a product first (`confirm`), and `--ops wide` trains without them.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

#[cfg(not(target_arch = "wasm32"))]
pub(super) use probe::{confirm, variants};

#[cfg(not(target_arch = "wasm32"))]
mod probe {
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use half::f16;
    use wgpu::BufferUsages as Usages;
    use wgpu::util::{BufferInitDescriptor, DeviceExt};

    use crate::config::Matrices;
    use crate::gpu::kernel::{Shader, Spec, shader};
    use crate::gpu::{PROBE_THREAD, webgpu};

    static PRODUCT: Shader = shader!("probe_matrices", (), ["probe_matrices"]);

    /// The time that a product may take. Software renderers compile it for up to 15 seconds.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The characters of a driver's message that a warning quotes.
    const LONGEST_REASON: usize = 200;

    /// Matrices belong to whole subgroups, of up to 64 invocations.
    fn product(matrices: Matrices) -> Spec {
        Spec::new(&PRODUCT, 64).multiplying(matrices, None)
    }

    pub fn variants() -> Vec<Spec> {
        [Matrices::Eight, Matrices::Sixteen].map(product).to_vec()
    }

    /// Multiplies two matrices on a separate device.
    ///
    /// # Errors
    /// If the driver refuses or panics, or if the product is wrong; says which.
    pub fn confirm(adapter: &wgpu::Adapter, matrices: Matrices) -> Result<(), String> {
        let (a, b, expected) = factors(matrices.side() as usize);
        let adapter = adapter.clone();
        let run = move || pollster::block_on(multiply(&adapter, matrices, [&a, &b]));
        let thread = std::thread::Builder::new().name(PROBE_THREAD.into()).spawn(run);
        match thread.map_err(|error| error.to_string())?.join() {
            Ok(Ok(out)) if out == expected => Ok(()),
            Ok(Ok(_)) => Err("their product is wrong".into()),
            Ok(Err(reason)) => Err(shortened(&reason)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                Err(shortened(text.unwrap_or("a panic")))
            }
        }
    }

    fn shortened(text: &str) -> String {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ").chars().take(LONGEST_REASON).collect()
    }

    /// Returns two square matrices of small integers and their product, which is exact in float16.
    /// They are not symmetric, so that a transposed factor gives another product.
    fn factors(side: usize) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
        let element = |row: usize, column: usize| ((5 * row + 3 * column) % 7) as f32 - 3.0;
        let a = |row, k| element(row, 2 * k);
        let b = |k, column| element(3 * k, column);
        let indices = || (0..side * side).map(|index| (index / side, index % side));
        let bytes = |matrix: &dyn Fn(usize, usize) -> f32| {
            let halves = indices().map(|(row, column)| f16::from_f32(matrix(row, column)));
            halves.flat_map(f16::to_le_bytes).collect()
        };
        let sum = |(row, column)| (0..side).map(|k| a(row, k) * b(k, column)).sum::<f32>();
        (bytes(&a), bytes(&b), indices().map(sum).collect())
    }

    /// Runs the kernel. Returns the first error that wgpu reports.
    async fn multiply(
        adapter: &wgpu::Adapter,
        matrices: Matrices,
        factors: [&[u8]; 2],
    ) -> Result<Vec<f32>, String> {
        let (device, queue) = webgpu::request(adapter, true).await?;
        // wgpu's own handler would panic.
        let reported = Arc::new(OnceLock::new());
        let first = reported.clone();
        device.on_uncaptured_error(Arc::new(move |error| {
            let _ = first.set(error.to_string());
        }));
        let check = || reported.get().map_or(Ok(()), |reason: &String| Err(reason.clone()));
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(product(matrices).source().into()),
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        check()?;
        let size = 2 * factors[0].len() as u64;
        let buffer = |usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        let out = buffer(Usages::STORAGE | Usages::COPY_SRC);
        let read = buffer(Usages::MAP_READ | Usages::COPY_DST);
        let [a, b] = factors.map(|contents| {
            let usage = Usages::STORAGE;
            device.create_buffer_init(&BufferInitDescriptor { label: None, contents, usage })
        });
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[
                wgpu::BindGroupEntry { binding: 0, resource: a.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 1, resource: b.as_entire_binding() },
                wgpu::BindGroupEntry { binding: 2, resource: out.as_entire_binding() },
            ],
        });
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
        drop(pass);
        encoder.copy_buffer_to_buffer(&out, 0, &read, 0, size);
        queue.submit([encoder.finish()]);
        // If mapping fails, `get_mapped_range` returns the error.
        read.slice(..).map_async(wgpu::MapMode::Read, |_| {});
        let wait = wgpu::PollType::Wait { submission_index: None, timeout: Some(TIMEOUT) };
        device.poll(wait).map_err(|error| error.to_string())?;
        check()?;
        let mapped = read.slice(..).get_mapped_range().map_err(|error| error.to_string())?;
        Ok(mapped.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_product_is_exact_and_a_transposed_factor_shows() {
            for side in [8, 16] {
                let (a, b, product) = factors(side);
                let [a, b] = [a, b].map(|bytes| -> Vec<f32> {
                    let halves = bytes.as_chunks::<2>().0.iter();
                    halves.map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
                });
                for (at, &value) in product.iter().enumerate() {
                    let (row, column) = (at / side, at % side);
                    let terms = (0..side).map(|k| a[row * side + k] * b[k * side + column]);
                    assert_eq!(value, terms.sum::<f32>());
                }
                let transposed = |at: usize| at % side * side + at / side;
                for factor in [a, b] {
                    assert!((0..side * side).any(|at| factor[at] != factor[transposed(at)]));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroups_of_256_invocations_are_too_small_for_subgroups_of_64() {
        let limits = |max_compute_invocations_per_workgroup, max_compute_workgroup_storage_size| {
            wgpu::Limits {
                max_compute_invocations_per_workgroup,
                max_compute_workgroup_size_x: 1024,
                max_compute_workgroup_storage_size,
                ..wgpu::Limits::default()
            }
        };
        for (invocations, memory, subgroup, fits) in [
            (1024, 32 << 10, [32, 64], true),
            (256, 32 << 10, [32, 32], true),
            (256, 32 << 10, [64, 64], false),
            (256, 32 << 10, [32, 64], false),
            (64, 32 << 10, [8, 8], true),
            (1024, 16 << 10, [32, 32], false),
        ] {
            assert_eq!(has_room(&limits(invocations, memory), subgroup), fits, "{subgroup:?}");
        }
        let narrow = wgpu::Limits { max_compute_workgroup_size_x: 256, ..limits(1024, 32 << 10) };
        assert!(!has_room(&narrow, [64, 64]));
    }
}
