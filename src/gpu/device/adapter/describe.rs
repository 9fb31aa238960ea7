//! Describes wgpu's adapters.

use super::{matrices, vulkan};
use crate::config::Abilities;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::DeviceId;
use crate::protocol::{AdapterReport, DeviceInfo};

pub fn describe(id: DeviceId, adapter: &wgpu::Adapter) -> DeviceInfo {
    let info = adapter.get_info();
    let limits = adapter.limits();
    let kind = kind(&info);
    let matrices = matrices::listed(adapter);
    DeviceInfo {
        id,
        kind,
        name: if info.name.is_empty() { "WebGPU".into() } else { info.name },
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
        pci: Some(info.device_pci_bus_id).filter(|pci| !pci.is_empty()),
        max_binding: Some(limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)),
        abilities: Abilities {
            float16: adapter.features().contains(wgpu::Features::SHADER_F16),
            matrices,
            emulated: matrices.is_some() && kind == DeviceKind::Software,
            ..Abilities::default()
        },
        adapter: Some(report(adapter)),
    }
}

/// Returns the backend for an API of wgpu; `None` for one that wgpt does not use.
pub fn backend(backend: wgpu::Backend) -> Option<Backend> {
    match backend {
        wgpu::Backend::Vulkan => Some(Backend::Vulkan),
        wgpu::Backend::Dx12 => Some(Backend::Dx12),
        wgpu::Backend::Metal => Some(Backend::Metal),
        wgpu::Backend::Gl => Some(Backend::Gl),
        wgpu::Backend::BrowserWebGpu => Some(Backend::WebGpu),
        _ => None,
    }
}

fn kind(info: &wgpu::AdapterInfo) -> DeviceKind {
    // Browsers do not report the type of every software adapter.
    let name = info.name.to_lowercase();
    if ["swiftshader", "llvmpipe", "basic render"].iter().any(|part| name.contains(part)) {
        return DeviceKind::Software;
    }
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
        wgpu::DeviceType::Other => DeviceKind::Unknown,
    }
}

/// Formats PCI numbers, which have 16 bits. Vendors without one, like Mesa's software renderers, use
/// larger numbers assigned by Khronos, and some backends report 0.
fn pci_numbers(vendor: u32, device: u32) -> Option<String> {
    let is_pci = (1..=0xffff).contains(&vendor);
    is_pci.then(|| format!("{vendor:04x}:{device:04x}"))
}

fn report(adapter: &wgpu::Adapter) -> AdapterReport {
    let limits = adapter.limits();
    let features = adapter.features();
    let wgpu::AdapterInfo { vendor, device, subgroup_min_size, subgroup_max_size, .. } =
        adapter.get_info();
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
        multiprocessors: vulkan::multiprocessors(adapter),
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
