//! Vulkan devices whose kernels on cooperative matrices reach the driver with marked memory accesses
//! (`spirv_memory_model`) and without checks of bounds.
//!
//! cubecl gives wgpu a kernel as WGSL, and wgpu gives the driver the SPIR-V that naga compiles. Neither has a
//! hook in between. So the device's table of functions, which wgpu-hal takes from its caller, has
//! [`create_shader_module`] and [`create_compute_pipelines`] in place of the driver's.
//!
//! wgpu asks drivers to check every access to a buffer. On an H200, NVIDIA's code without these checks
//! took a tenth less time for a step in float16, and as long in float32. wgpt's kernels check by themselves
//! what may be out of bounds, because on CUDA nothing else does.
#![allow(
    unsafe_code,
    reason = "wgpu takes a device with other functions only through wgpu-hal, and Vulkan calls them with pointers"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;
use wgpu::hal::api::Vulkan;
use wgpu::hal::{DeviceError, OpenDevice, vulkan};

use super::spirv_memory_model::with_memory_model;

/// The driver's functions for each open device, whose handle is unique until it is closed.
type Drivers = BTreeMap<vk::Device, Driver>;

#[derive(Clone, Copy)]
struct Driver {
    create_shader_module: vk::PFN_vkCreateShaderModule,
    create_compute_pipelines: vk::PFN_vkCreateComputePipelines,
    /// True if the driver can leave out the checks of a pipeline.
    can_omit_checks: bool,
}

/// Global, because nothing that Vulkan passes to our function leads to its driver.
static DRIVERS: Mutex<Drivers> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The last module of this thread, if its kernel uses cooperative matrices. wgpu makes the pipeline next.
    static WITH_MATRICES: Cell<vk::ShaderModule> = const { Cell::new(vk::ShaderModule::null()) };
}

fn drivers() -> MutexGuard<'static, Drivers> {
    DRIVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a device as `wgpu::Adapter::request_device` does; `None` if the adapter is not one of Vulkan, or
/// lacks a feature, which that function reports.
pub fn request(
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
    let features = descriptor.required_features;
    let limits = &descriptor.required_limits;
    let hints = &descriptor.memory_hints;
    let extension = ash::ext::pipeline_robustness::NAME;
    let can_omit_checks = adapter.physical_device_capabilities().supports_extension(extension);
    let mut feature =
        vk::PhysicalDevicePipelineRobustnessFeaturesEXT::default().pipeline_robustness(true);
    let add: Box<vulkan::CreateDeviceCallback<'_>> = Box::new(|device| {
        if can_omit_checks {
            device.extensions.push(extension);
            *device.create_info = device.create_info.push_next(&mut feature);
        }
    });
    // SAFETY: the adapter has these features and limits, and what `add` adds.
    let opened = unsafe { adapter.open_with_callback(features, limits, hints, Some(add)) }?;
    let driver = opened.device.raw_device();
    let handle = driver.handle();
    let functions = ash::Device::from_parts_1_3(
        handle,
        ash::DeviceFnV1_0 {
            create_shader_module,
            create_compute_pipelines,
            ..driver.fp_v1_0().clone()
        },
        driver.fp_v1_1().clone(),
        driver.fp_v1_2().clone(),
        driver.fp_v1_3().clone(),
    );
    let ash::DeviceFnV1_0 { create_shader_module, create_compute_pipelines, .. } =
        *driver.fp_v1_0();
    let of_driver = Driver { create_shader_module, create_compute_pipelines, can_omit_checks };
    drivers().insert(handle, of_driver);
    let extensions = opened.device.enabled_device_extensions().to_vec();
    let family = opened.device.queue_family_index();
    let queue = opened.device.queue_index();
    // The first of the two devices owns the driver's, and does nothing else.
    let close = Box::new(move || {
        drivers().remove(&handle);
        drop(opened);
    });
    // SAFETY: wgpu-hal has made the driver's device from this adapter, with these extensions and
    // features, and this queue. It stays open until `close`. All functions are the driver's, except
    // for two that keep their contracts.
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
    let Some(driver) = drivers().get(&device).copied() else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: the caller's pointers are valid. Code is whole words, and its size is in bytes.
    let (info, words) = unsafe {
        let info = *info;
        (info, std::slice::from_raw_parts(info.p_code, info.code_size / size_of::<u32>()))
    };
    let marked = with_memory_model(words);
    // SAFETY: this is the driver's function for this device, with the caller's arguments and other code.
    let result =
        unsafe { (driver.create_shader_module)(device, &info.code(&marked), allocator, module) };
    if result == vk::Result::SUCCESS {
        // Only kernels with matrices declare Vulkan's memory model.
        let has_matrices = marked != words;
        // SAFETY: the driver has written the handle.
        let handle = unsafe { *module };
        WITH_MATRICES.set(if has_matrices { handle } else { vk::ShaderModule::null() });
    }
    result
}

/// `vkCreateComputePipelines` of the devices in [`DRIVERS`].
///
/// # Safety
/// As Vulkan says: the pointers are valid, and there are `count` descriptions and handles.
unsafe extern "system" fn create_compute_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let Some(driver) = drivers().get(&device).copied() else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    // SAFETY: there are `count` of them.
    let infos = unsafe { std::slice::from_raw_parts(infos, count as usize) };
    let unchecked = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
    let omitted = || {
        vk::PipelineRobustnessCreateInfoEXT::default()
            .storage_buffers(unchecked)
            .uniform_buffers(unchecked)
    };
    let mut omitted: Vec<_> = infos.iter().map(|_| omitted()).collect();
    let with_matrices = WITH_MATRICES.get();
    let infos: Vec<_> = std::iter::zip(infos, &mut omitted)
        .map(|(&info, omitted)| {
            let has_matrices = info.stage.module == with_matrices;
            if driver.can_omit_checks && has_matrices { info.push_next(omitted) } else { info }
        })
        .collect();
    let infos = infos.as_ptr();
    // SAFETY: this is the driver's function for this device, with the caller's arguments. What some
    // descriptions have in addition is of an extension that the device has, and lives until the end.
    unsafe { (driver.create_compute_pipelines)(device, cache, count, infos, allocator, pipelines) }
}
