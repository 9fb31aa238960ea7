//! macOS and browsers have no Vulkan.

pub fn request(
    _: &wgpu::Adapter,
    _: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    None
}

#[cfg(not(target_arch = "wasm32"))]
pub fn granted_memory(_: &wgpu::Adapter) -> Option<crate::gpu::memory::GrantedMemory> {
    None
}

pub fn multiprocessors(_: &wgpu::Adapter) -> Option<u32> {
    None
}
