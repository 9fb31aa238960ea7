//! Memory and multiprocessors, which Vulkan reports and wgpu does not.

#![allow(unsafe_code, reason = "wgpu hands out its handles to the graphics APIs as unsafe")]

use std::ffi::CStr;

use ash::{amd, ext, nv, vk};
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::Adapter;

use crate::gpu::memory::GrantedMemory;

/// Returns true if an extension of Vulkan 1.1 can be queried.
fn has(adapter: &Adapter, extension: &CStr) -> bool {
    let capabilities = adapter.physical_device_capabilities();
    let instance = adapter.shared_instance().instance_api_version();
    instance.min(capabilities.properties().api_version) >= vk::API_VERSION_1_1
        && capabilities.supports_extension(extension)
}

/// Reads `VK_EXT_memory_budget`, or only the size of the heap where that is missing.
pub fn granted_memory(adapter: &wgpu::Adapter) -> Option<GrantedMemory> {
    // SAFETY: the handle is used within this function and not destroyed.
    let adapter = unsafe { adapter.as_hal::<Vulkan>() }?;
    let device = adapter.raw_physical_device();
    let instance = adapter.shared_instance().raw_instance();
    if !has(&adapter, ext::memory_budget::NAME) {
        // SAFETY: the device is of this instance, which `adapter` keeps alive.
        let memory = unsafe { instance.get_physical_device_memory_properties(device) };
        let heap = heap_of_buffers(&memory)?;
        return Some(GrantedMemory {
            total: memory.memory_heaps[heap].size,
            budget: None,
            used: 0,
        });
    }
    let mut heaps = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut heaps);
    // SAFETY: as above. The function is of Vulkan 1.1, and the device has the extension of `heaps`.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut memory) };
    let memory = memory.memory_properties;
    let heap = heap_of_buffers(&memory)?;
    Some(GrantedMemory {
        total: memory.memory_heaps[heap].size,
        budget: Some(heaps.heap_budget[heap]),
        used: heaps.heap_usage[heap],
    })
}

/// Returns the index of the heap that buffers of a run are allocated from. wgpu takes the first type of
/// memory on the device. GPUs may have a second heap, the part of their memory that the CPU reaches
/// (256 MiB without resizable BAR), which no buffer of a run is in.
fn heap_of_buffers(memory: &vk::PhysicalDeviceMemoryProperties) -> Option<usize> {
    let on_device = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    let types = memory.memory_types_as_slice();
    let first = types.iter().find(|kind| kind.property_flags.contains(on_device))?;
    let heap = first.heap_index as usize;
    (heap < memory.memory_heaps.len()).then_some(heap)
}

/// Asks NVIDIA's driver for its multiprocessors, and AMD's for its compute units. RDNA GPUs run a
/// workgroup on a pair of those, which the table of GPUs counts, so AMD's number is halved.
pub fn multiprocessors(adapter: &wgpu::Adapter) -> Option<u32> {
    // SAFETY: the handle is used within this function and not destroyed.
    let adapter = unsafe { adapter.as_hal::<Vulkan>() }?;
    let mut of_nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
    let mut of_amd = vk::PhysicalDeviceShaderCoreProperties2AMD::default();
    let mut properties = vk::PhysicalDeviceProperties2::default();
    if has(&adapter, nv::shader_sm_builtins::NAME) {
        properties = properties.push_next(&mut of_nvidia);
    } else if has(&adapter, amd::shader_core_properties2::NAME) {
        properties = properties.push_next(&mut of_amd);
    } else {
        return None;
    }
    let device = adapter.raw_physical_device();
    let instance = adapter.shared_instance().raw_instance();
    // SAFETY: the device is of this instance, which `adapter` keeps alive. It has the extension whose
    // properties are queried, and the function is of Vulkan 1.1.
    unsafe { instance.get_physical_device_properties2(device, &mut properties) };
    let count = of_nvidia.shader_sm_count.max(of_amd.active_compute_unit_count / 2);
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use ash::vk::{
        MemoryHeap, MemoryPropertyFlags, MemoryType, PhysicalDeviceMemoryProperties as Properties,
    };

    use super::heap_of_buffers;

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
