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

/// The invocations of such kernels' largest workgroup.
const INVOCATIONS: u32 = 256;

/// Returns the largest square matrices of float16 with float32 sums that an adapter lists. wgpt's
/// kernels multiply only these, and an adapter with the feature may have none: Intel's are 8 x 16.
pub fn listed(adapter: &wgpu::Adapter) -> Option<Matrices> {
    if !adapter.features().contains(FEATURES) || !has_room(&adapter.limits()) {
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

/// Returns true if such kernels' largest workgroup fits the limits.
fn has_room(limits: &wgpu::Limits) -> bool {
    let invocations =
        limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
    limits.max_compute_workgroup_storage_size >= WORKGROUP_MEMORY && invocations >= INVOCATIONS
}

#[allow(unsafe_code, reason = "wgpu's experimental features need a token that is unsafe to create")]
pub fn experimental() -> wgpu::ExperimentalFeatures {
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
    fn workgroups_of_256_invocations_with_32_kib_are_large_enough() {
        let limits = |invocations, size_x, memory| wgpu::Limits {
            max_compute_invocations_per_workgroup: invocations,
            max_compute_workgroup_size_x: size_x,
            max_compute_workgroup_storage_size: memory,
            ..wgpu::Limits::default()
        };
        assert!(has_room(&limits(256, 256, 32 << 10)));
        assert!(!has_room(&limits(128, 1024, 32 << 10)));
        assert!(!has_room(&limits(1024, 128, 32 << 10)));
        assert!(!has_room(&limits(1024, 1024, 16 << 10)));
    }
}
