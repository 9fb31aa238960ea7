//! The limits and features that an adapter reports, for bug reports.

use super::AdapterReport;

/// Formats PCI numbers, which have 16 bits. Vendors without one, like Mesa's software renderers, use
/// larger numbers assigned by Khronos, and some backends report 0.
fn pci_numbers(vendor: u32, device: u32) -> Option<String> {
    let is_pci = (1..=0xffff).contains(&vendor);
    is_pci.then(|| format!("{vendor:04x}:{device:04x}"))
}

pub(super) fn report(adapter: &wgpu::Adapter) -> AdapterReport {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let wgpu::AdapterInfo { vendor, device, subgroup_min_size, subgroup_max_size, .. } = info;
    let has_matrices = features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let matrices = has_matrices.then(|| adapter.cooperative_matrix_properties());
    let shape = |matrix: &wgpu::CooperativeMatrixProperties| {
        let wgpu::CooperativeMatrixProperties { m_size, n_size, k_size, ab_type, cr_type, .. } =
            matrix;
        format!("{m_size}x{n_size}x{k_size} {ab_type:?}, sums in {cr_type:?}")
    };
    AdapterReport {
        ids: pci_numbers(vendor, device),
        max_buffer_bytes: limits.max_buffer_size,
        max_storage_buffers: limits.max_storage_buffers_per_shader_stage,
        max_workgroup_invocations: limits.max_compute_invocations_per_workgroup,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        subgroup_sizes: features
            .contains(wgpu::Features::SUBGROUP)
            .then_some([subgroup_min_size, subgroup_max_size]),
        #[cfg(any(windows, target_os = "linux", target_os = "freebsd"))]
        multiprocessors: super::vulkan::multiprocessors(adapter),
        #[cfg(not(any(windows, target_os = "linux", target_os = "freebsd")))]
        multiprocessors: None,
        matrices: matrices.iter().flatten().map(shape).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pci_numbers_are_shown_as_such() {
        assert_eq!(pci_numbers(0x10de, 0x2504).as_deref(), Some("10de:2504"));
        assert_eq!(pci_numbers(0x10005, 0), None);
        assert_eq!(pci_numbers(0, 0), None);
    }
}
