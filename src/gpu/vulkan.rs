//! Vulkan devices whose kernels reach the driver with marked memory accesses (`memory_model`).
//!
//! cubecl gives wgpu a kernel as WGSL, and wgpu gives the driver what naga makes of it. Neither has a
//! hook in between. So the device's table of functions, which wgpu-hal takes from its caller, has
//! [`create_shader_module`] in place of the driver's.
#![allow(
    unsafe_code,
    reason = "wgpu takes a device with other functions only through wgpu-hal, and Vulkan calls them with pointers"
)]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;
use wgpu::hal::api::Vulkan;
use wgpu::hal::{DeviceError, OpenDevice, vulkan};

use super::memory_model::with_memory_model;

/// The driver's function for each open device, whose handle is unique until it is closed.
type Drivers = BTreeMap<vk::Device, vk::PFN_vkCreateShaderModule>;

/// Global, because Vulkan calls our function with nothing else that tells its driver.
static DRIVERS: Mutex<Drivers> = Mutex::new(BTreeMap::new());

fn drivers() -> MutexGuard<'static, Drivers> {
    DRIVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a device as `wgpu::Adapter::request_device` does; `None` if the adapter is not one of Vulkan, or
/// lacks a feature, which that function reports.
pub(super) fn request(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    if !adapter.features().contains(descriptor.required_features) {
        return None;
    }
    // SAFETY: nothing here destroys the adapter.
    let hal = unsafe { adapter.as_hal::<Vulkan>() }?;
    let opened = open(&hal, descriptor).map_err(|error| error.to_string());
    // SAFETY: the device is from this adapter and has the features of the descriptor.
    let create = |device| unsafe { adapter.create_device_from_hal::<Vulkan>(device, descriptor) };
    Some(opened.and_then(|device| create(device).map_err(|error| error.to_string())))
}

fn open(
    adapter: &vulkan::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<OpenDevice<Vulkan>, DeviceError> {
    let (features, limits) = (descriptor.required_features, &descriptor.required_limits);
    let hints = &descriptor.memory_hints;
    // SAFETY: the adapter has these features and limits.
    let opened = unsafe { adapter.open_with_callback(features, limits, hints, None) }?;
    let driver = opened.device.raw_device();
    let handle = driver.handle();
    let functions = ash::Device::from_parts_1_3(
        handle,
        ash::DeviceFnV1_0 { create_shader_module, ..driver.fp_v1_0().clone() },
        driver.fp_v1_1().clone(),
        driver.fp_v1_2().clone(),
        driver.fp_v1_3().clone(),
    );
    drivers().insert(handle, driver.fp_v1_0().create_shader_module);
    let extensions = opened.device.enabled_device_extensions().to_vec();
    let (family, queue) = (opened.device.queue_family_index(), opened.device.queue_index());
    // The first of the two devices owns the driver's, and does nothing else.
    let close = Box::new(move || {
        drivers().remove(&handle);
        drop(opened);
    });
    // SAFETY: wgpu-hal has made the driver's device from this adapter, with these extensions and
    // features, and this queue. It stays open until `close`. All functions are the driver's, except
    // for one that keeps its contract.
    unsafe {
        adapter.device_from_raw(
            functions,
            Some(close),
            &extensions,
            features,
            limits,
            hints,
            family,
            queue,
        )
    }
}

/// `vkCreateShaderModule` of the devices in [`DRIVERS`].
///
/// # Safety
/// As Vulkan says: the pointers are valid, and the code is of the given size.
unsafe extern "system" fn create_shader_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    let Some(create) = drivers().get(&device).copied() else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: the caller's pointers are valid. Code is whole words, and its size is in bytes.
    let (info, words) = unsafe {
        let info = *info;
        (info, std::slice::from_raw_parts(info.p_code, info.code_size / size_of::<u32>()))
    };
    let words = with_memory_model(words);
    // SAFETY: this is the driver's function for this device, with the caller's arguments and other code.
    unsafe { create(device, &info.code(&words), allocator, module) }
}
