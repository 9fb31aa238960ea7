//! Adapters through wgpu: listing and opening them.

use std::sync::Arc;

use burn::tensor::Device;
use burn_wgpu::WgpuSetup;

use self::describe::{backend, describe};
use super::driver::DriverTraits;
use crate::config::Precision;
use crate::gpu::error::DeviceError;
use crate::gpu::watchdog::Watchdog;
use crate::plan::Backend;
use crate::protocol::DeviceId;
use crate::protocol::DeviceInfo;

mod describe;
mod instance;
mod matrices;
#[cfg(not(target_arch = "wasm32"))]
mod query;
#[cfg(any(windows, target_os = "linux", target_os = "freebsd"))]
mod vulkan;
#[cfg(not(any(windows, target_os = "linux", target_os = "freebsd")))]
#[path = "no_vulkan.rs"]
mod vulkan;

#[cfg(not(target_arch = "wasm32"))]
pub use query::granted_memory;
#[cfg(any(windows, target_os = "linux", target_os = "freebsd"))]
pub use vulkan::spirv_memory_model;
pub use wgpu::Adapter;

#[cfg(not(target_arch = "wasm32"))]
async fn list(instance: &wgpu::Instance) -> Vec<Adapter> {
    instance.enumerate_adapters(wgpu::Backends::all()).await
}

/// Returns the adapter that the browser offers: it lists none.
#[cfg(target_arch = "wasm32")]
async fn list(instance: &wgpu::Instance) -> Vec<Adapter> {
    let fastest = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    instance.request_adapter(&fastest).await.into_iter().collect()
}

struct Listed {
    info: DeviceInfo,
    instance: wgpu::Instance,
    adapter: Adapter,
}

/// Returns wgpu's names of `backends`.
pub fn apis(backends: &[Backend]) -> wgpu::Backends {
    let is_wanted = |api: &wgpu::Backend| backend(*api).is_some_and(|own| backends.contains(&own));
    wgpu::Backend::ALL.into_iter().filter(is_wanted).map(wgpu::Backends::from).collect()
}

/// Lists the adapters of `backends` that have compute shaders.
async fn adapters(backends: &[Backend]) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for instance in instance::instances(apis(backends)) {
        for adapter in list(&instance).await {
            let flags = adapter.get_downlevel_capabilities().flags;
            if !flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
                continue;
            }
            let Some(backend) = backend(adapter.get_info().backend) else { continue };
            let index = listed.iter().filter(|other| other.info.id.backend == backend).count();
            let info = describe(DeviceId { backend, index }, &adapter);
            listed.push(Listed { info, instance: instance.clone(), adapter });
        }
    }
    listed
}

/// The size in bytes of the blocks that wgpu allocates from the driver. burn's pools already batch small
/// buffers into pages, so wgpu allocates each page by itself, and holds one block more than the pools.
const DRIVER_BLOCK: u64 = 4 << 20;

pub async fn devices(backends: &[Backend]) -> Vec<DeviceInfo> {
    adapters(backends).await.into_iter().map(|listed| listed.info).collect()
}

/// Returns the adapter of a device that [`devices`] listed; `None` if it is gone.
async fn find(id: DeviceId) -> Option<Listed> {
    adapters(&[id.backend]).await.into_iter().find(|listed| listed.info.id == id)
}

/// Opens a wgpu device with all limits of the adapter: WebGPU's default binding limit is smaller than
/// GPT-2's embedding. Enables cooperative matrices, an experiment of wgpu, only for runs that use them.
///
/// # Errors
/// If the driver refuses, with its reason.
async fn request(
    adapter: &Adapter,
    uses_matrices: bool,
) -> Result<(wgpu::Device, wgpu::Queue), String> {
    let mut features = adapter
        .features()
        .difference(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
        .difference(wgpu::Features::all_experimental_mask());
    let mut experimental_features = wgpu::ExperimentalFeatures::default();
    if uses_matrices {
        features |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        experimental_features = matrices::experimental();
    }
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("wgpt"),
        required_features: features,
        required_limits: adapter.limits(),
        experimental_features,
        memory_hints: wgpu::MemoryHints::Manual {
            suballocated_device_memory_block_size: DRIVER_BLOCK..DRIVER_BLOCK,
        },
        ..Default::default()
    };
    if let Some(opened) = uses_matrices.then(|| vulkan::request(adapter, &descriptor)).flatten() {
        return opened;
    }
    adapter.request_device(&descriptor).await.map_err(|error| error.to_string())
}

/// Returns the adapter that reports the memory of a device: of a GPU with separate memory, or through Metal,
/// which limits the GPU's part of the machine's.
#[cfg(not(target_arch = "wasm32"))]
pub fn memory_adapter(info: &DeviceInfo) -> Option<Adapter> {
    let reports = match info.id.backend {
        Backend::Vulkan | Backend::Dx12 => !info.kind.shares_memory(),
        Backend::Metal => true,
        _ => false,
    };
    let listed = reports.then(|| pollster::block_on(find(info.id)))??;
    Some(listed.adapter)
}

/// Opens a device that [`devices`] listed, for a run in this precision. Also returns its adapter, which
/// reports its memory.
///
/// # Errors
/// If the device is gone, its limits are too small for the kernels, or its driver refuses.
pub async fn open(
    info: &DeviceInfo,
    precision: Precision,
    driver: DriverTraits,
    watchdog: &Watchdog,
) -> Result<(Device, Adapter), DeviceError> {
    let failed =
        |reason: String| DeviceError::Open { id: info.id, name: info.name.clone(), reason };
    let gone = || failed("it is no longer available".into());
    let Listed { instance, adapter, .. } = find(info.id).await.ok_or_else(gone)?;
    if let Some(what) = too_small(&adapter.limits()).filter(|_| cfg!(target_arch = "wasm32")) {
        return Err(DeviceError::TooSmall { name: info.name.clone(), what });
    }
    let opened = request(&adapter, precision.matrices().is_some()).await;
    let (device, queue) = opened.map_err(failed)?;
    let backend = adapter.get_info().backend;
    let reporting = device.clone();
    let setup = WgpuSetup { instance, adapter: adapter.clone(), device, queue, backend };
    let opened = Device::wgpu_options()
        .setup(setup)
        .tasks_max(driver.dispatches)
        .init()
        .map_err(|error| failed(error.to_string()))?;
    // Replaces cubecl's handlers, which panic on whatever thread the driver calls them.
    report_errors(&reporting, info.name.clone(), watchdog);
    Ok((opened, adapter))
}

/// Describes the first limit of an adapter that is below what WebGPU guarantees and the kernels need.
fn too_small(limits: &wgpu::Limits) -> Option<String> {
    let of = |limits: &wgpu::Limits| {
        [
            ("invocations per workgroup", limits.max_compute_invocations_per_workgroup),
            ("storage buffers per kernel", limits.max_storage_buffers_per_shader_stage),
            ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size),
        ]
    };
    let mut pairs = std::iter::zip(of(limits), of(&wgpu::Limits::default()));
    let ((what, have), (_, need)) = pairs.find(|((_, have), (_, need))| have < need)?;
    Some(format!("it has {have} {what}, the kernels need {need}"))
}

/// Reports the driver's errors to `watchdog`. Uncaptured ones also panic, so that nothing continues.
fn report_errors(device: &wgpu::Device, name: String, watchdog: &Watchdog) {
    let reported = watchdog.clone();
    device.on_uncaptured_error(Arc::new(move |error| {
        reported.fail(match &error {
            wgpu::Error::OutOfMemory { .. } => DeviceError::OutOfMemory { name: name.clone() },
            other => DeviceError::Stopped { reason: other.to_string() },
        });
        panic!("wgpu error: {error}");
    }));
    let reported = watchdog.clone();
    device.set_device_lost_callback(move |reason, message| {
        // Dropping a device at the end of a run also counts as losing it.
        if reason == wgpu::DeviceLostReason::Unknown {
            reported.fail(DeviceError::Stopped { reason: format!("it was lost ({message})") });
        }
    });
}
