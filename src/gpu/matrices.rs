//! Cooperative matrices: which of them an adapter lists.
//!
//! wgpu's support is an experiment, and some drivers' support is too: one lists the matrices and then
//! refuses to open. So a run tests its kernels before it relies on them (`ops/self_test`).

use crate::config::Matrices;

/// The features that kernels with cooperative matrices need.
const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(wgpu::Features::SHADER_F16)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::SUBGROUP_BARRIER);

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
    // all; another process tests them before a run, and `--ops wide` trains without them.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
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
