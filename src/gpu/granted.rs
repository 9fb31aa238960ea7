//! The memory that the system grants this process on a GPU, which wgpu does not tell.

#![allow(unsafe_code, reason = "wgpu hands out its handles to the graphics APIs as unsafe")]
#![cfg_attr(
    any(not(feature = "wgpu"), target_arch = "wasm32"),
    allow(dead_code, reason = "CUDA and browsers have no such handles")
)]

/// The handle that the memory of a device is read from, if wgpu has opened it.
#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub type Adapter = wgpu::Adapter;
#[cfg(not(all(feature = "wgpu", not(target_arch = "wasm32"))))]
pub type Adapter = std::convert::Infallible;

/// The memory of a GPU that buffers are allocated from, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub total: u64,
    /// The most that this process can hold before the system moves memory elsewhere or refuses it.
    /// It changes with what other programs hold. `None` if nothing reports it.
    pub budget: Option<u64>,
    /// The part that this process holds; 0 if nothing reports it.
    pub used: u64,
}

/// Returns what the graphics API of `adapter` reports; `None` for OpenGL, which reports nothing.
pub(super) fn granted(adapter: &Adapter) -> Option<Granted> {
    #[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
    if let Some(granted) = vulkan(adapter) {
        return Some(granted);
    }
    #[cfg(all(feature = "wgpu", windows))]
    if let Some(granted) = directx(adapter) {
        return Some(granted);
    }
    #[cfg(all(feature = "wgpu", target_os = "macos"))]
    if let Some(granted) = metal(adapter) {
        return Some(granted);
    }
    let _ = adapter;
    None
}

/// Reads `VK_EXT_memory_budget`, or only the size of the heap where that is missing.
#[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
fn vulkan(adapter: &wgpu::Adapter) -> Option<Granted> {
    use ash::vk;

    // SAFETY: the handle is used within this function and not destroyed.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::vulkan::Api>() }?;
    let (instance, device) = (adapter.shared_instance(), adapter.raw_physical_device());
    let capabilities = adapter.physical_device_capabilities();
    let version = instance.instance_api_version().min(capabilities.properties().api_version);
    let reports_budget = version >= vk::API_VERSION_1_1
        && capabilities.supports_extension(ash::ext::memory_budget::NAME);
    if !reports_budget {
        // SAFETY: the device is of this instance, which `adapter` keeps alive.
        let memory =
            unsafe { instance.raw_instance().get_physical_device_memory_properties(device) };
        let heap = heap_of_buffers(&memory)?;
        return Some(Granted { total: memory.memory_heaps[heap].size, budget: None, used: 0 });
    }
    let mut heaps = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut heaps);
    // SAFETY: as above. The function is of Vulkan 1.1, and the device has the extension of `heaps`.
    unsafe {
        instance.raw_instance().get_physical_device_memory_properties2(device, &mut memory);
    }
    let memory = memory.memory_properties;
    let heap = heap_of_buffers(&memory)?;
    Some(Granted {
        total: memory.memory_heaps[heap].size,
        budget: Some(heaps.heap_budget[heap]),
        used: heaps.heap_usage[heap],
    })
}

/// Returns the index of the heap that buffers of a run are allocated from. wgpu takes the first type of
/// memory on the device. GPUs may have a second heap, the part of their memory that the CPU reaches
/// (256 MiB without resizable BAR), which no buffer of a run is in.
#[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
fn heap_of_buffers(memory: &ash::vk::PhysicalDeviceMemoryProperties) -> Option<usize> {
    let on_device = ash::vk::MemoryPropertyFlags::DEVICE_LOCAL;
    let types = memory.memory_types_as_slice();
    let first = types.iter().find(|kind| kind.property_flags.contains(on_device))?;
    let heap = first.heap_index as usize;
    (heap < memory.memory_heaps.len()).then_some(heap)
}

#[cfg(all(feature = "wgpu", windows))]
fn directx(adapter: &wgpu::Adapter) -> Option<Granted> {
    // SAFETY: the handle is used within this function and not released.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::dx12::Api>() }?;
    let adapter = adapter.raw_adapter();
    // The default group of segments is the local one: the memory of the GPU itself.
    let local = adapter.query_video_memory_info(Default::default()).ok()?;
    // SAFETY: a call without arguments on a valid interface.
    let description = unsafe { adapter.GetDesc1() }.ok()?;
    Some(Granted {
        total: description.DedicatedVideoMemory as u64,
        budget: Some(local.Budget),
        used: local.CurrentUsage,
    })
}

#[cfg(all(feature = "wgpu", target_os = "macos"))]
fn metal(adapter: &wgpu::Adapter) -> Option<Granted> {
    use objc2_metal::MTLDevice;

    // SAFETY: the handle is used within this function and not released.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::metal::Api>() }?;
    let device = adapter.raw_device();
    let recommended = device.recommendedMaxWorkingSetSize();
    let used = device.currentAllocatedSize() as u64;
    Some(Granted { total: recommended, budget: Some(recommended), used })
}

#[cfg(all(test, feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
mod tests {
    use ash::vk::{
        MemoryHeap, MemoryPropertyFlags, MemoryType, PhysicalDeviceMemoryProperties as Properties,
    };

    use super::*;

    #[test]
    fn buffers_are_in_the_heap_of_the_first_type_on_the_device() {
        let on_device = MemoryPropertyFlags::DEVICE_LOCAL;
        let visible = MemoryPropertyFlags::HOST_VISIBLE;
        let heap_of = |types: &[(MemoryPropertyFlags, u32)]| {
            let mut memory =
                Properties { memory_type_count: types.len() as u32, ..Properties::default() };
            for (slot, (property_flags, heap_index)) in memory.memory_types.iter_mut().zip(types) {
                *slot = MemoryType { property_flags: *property_flags, heap_index: *heap_index };
            }
            memory.memory_heaps[0] = MemoryHeap { size: 1, ..MemoryHeap::default() };
            heap_of_buffers(&memory)
        };
        // An NVIDIA GPU without resizable BAR: its heap 2 is small.
        let nvidia = [(visible, 1), (on_device, 0), (visible, 1), (on_device | visible, 2)];
        assert_eq!(heap_of(&nvidia), Some(0));
        assert_eq!(heap_of(&[(visible, 0), (on_device | visible, 1)]), Some(1));
        assert_eq!(heap_of(&[(visible, 0)]), None);
    }
}
