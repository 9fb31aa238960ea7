//! The memory that the graphics APIs grant this process on a GPU, which wgpu does not report.

#![allow(unsafe_code, reason = "wgpu hands out its handles to the graphics APIs as unsafe")]

use super::vulkan;
use crate::gpu::memory::GrantedMemory;

/// Returns the memory that the graphics API of `adapter` reports; `None` for OpenGL, which reports nothing.
pub fn granted_memory(adapter: &wgpu::Adapter) -> Option<GrantedMemory> {
    #[cfg(windows)]
    let of_system = directx;
    #[cfg(target_os = "macos")]
    let of_system = metal;
    #[cfg(not(any(windows, target_os = "macos")))]
    let of_system = |_: &wgpu::Adapter| None;
    vulkan::granted_memory(adapter).or_else(|| of_system(adapter))
}

#[cfg(windows)]
fn directx(adapter: &wgpu::Adapter) -> Option<GrantedMemory> {
    // SAFETY: the handle is used within this function and not released.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::dx12::Api>() }?;
    let adapter = adapter.raw_adapter();
    // The default group of segments is the local one: the memory of the GPU itself.
    let local = adapter.query_video_memory_info(Default::default()).ok()?;
    // SAFETY: a call without arguments on a valid interface.
    let description = unsafe { adapter.GetDesc1() }.ok()?;
    Some(GrantedMemory {
        total: description.DedicatedVideoMemory as u64,
        budget: Some(local.Budget),
        used: local.CurrentUsage,
    })
}

#[cfg(target_os = "macos")]
fn metal(adapter: &wgpu::Adapter) -> Option<GrantedMemory> {
    use objc2_metal::MTLDevice;

    // SAFETY: the handle is used within this function and not released.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::metal::Api>() }?;
    let device = adapter.raw_device();
    let recommended = device.recommendedMaxWorkingSetSize();
    let used = device.currentAllocatedSize() as u64;
    Some(GrantedMemory { total: recommended, budget: Some(recommended), used })
}
