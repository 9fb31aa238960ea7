//! Adapters through wgpu.

use std::sync::Arc;

use burn::tensor::Device;
use burn_wgpu::WgpuSetup;

use super::{Backend, DeviceError, DeviceId, DeviceInfo, Failure, Kind};

fn instance() -> wgpu::Instance {
    // Warnings of drivers that are merely present are of no use to whoever trains.
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// The adapters of every interface.
#[cfg(not(target_arch = "wasm32"))]
async fn all(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    instance.enumerate_adapters(wgpu::Backends::all()).await
}

/// The adapter that the browser gives: it lists none.
#[cfg(target_arch = "wasm32")]
async fn all(instance: &wgpu::Instance) -> Vec<wgpu::Adapter> {
    let fastest = wgpu::RequestAdapterOptions {
        power_preference: wgpu::PowerPreference::HighPerformance,
        ..Default::default()
    };
    instance.request_adapter(&fastest).await.into_iter().collect()
}

async fn adapters(instance: &wgpu::Instance) -> Vec<(DeviceInfo, wgpu::Adapter)> {
    let mut found: Vec<(DeviceInfo, wgpu::Adapter)> = Vec::new();
    for adapter in all(instance).await {
        let info = adapter.get_info();
        let Some(backend) = backend(info.backend) else { continue };
        let flags = adapter.get_downlevel_capabilities().flags;
        if !flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
            continue;
        }
        let index = found.iter().filter(|(other, _)| other.id.backend == backend).count();
        let limits = adapter.limits();
        let device = DeviceInfo {
            id: DeviceId { backend, index },
            kind: kind(&info),
            name: if info.name.is_empty() { "WebGPU".into() } else { info.name },
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            pci: Some(info.device_pci_bus_id).filter(|pci| !pci.is_empty()),
            max_binding: Some(limits.max_storage_buffer_binding_size.min(limits.max_buffer_size)),
        };
        found.push((device, adapter));
    }
    found
}

fn backend(backend: wgpu::Backend) -> Option<Backend> {
    match backend {
        wgpu::Backend::Vulkan => Some(Backend::Vulkan),
        wgpu::Backend::Dx12 => Some(Backend::Dx12),
        wgpu::Backend::Metal => Some(Backend::Metal),
        wgpu::Backend::Gl => Some(Backend::Gl),
        wgpu::Backend::BrowserWebGpu => Some(Backend::WebGpu),
        _ => None,
    }
}

fn kind(info: &wgpu::AdapterInfo) -> Kind {
    // Browsers do not say so of every adapter of this kind.
    let name = info.name.to_lowercase();
    if ["swiftshader", "llvmpipe", "basic render"].iter().any(|part| name.contains(part)) {
        return Kind::Software;
    }
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
        wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
        wgpu::DeviceType::VirtualGpu => Kind::Virtual,
        wgpu::DeviceType::Cpu => Kind::Software,
        wgpu::DeviceType::Other => Kind::Unknown,
    }
}

/// The blocks in which wgpu asks the driver for memory, in bytes. burn's pools already batch: their
/// pages are larger than this, so that each is asked for by itself, and wgpu takes no more of a card
/// than the pools hold but a block for what is small.
const DRIVER_BLOCK: u64 = 4 << 20;

/// The adapters of every interface that wgpu finds.
pub(super) async fn devices() -> Vec<DeviceInfo> {
    adapters(&instance()).await.into_iter().map(|(info, _)| info).collect()
}

/// Opens an adapter that [`devices`] listed, with all of its own limits: WebGPU's default binding
/// of 128 MiB is less than GPT-2's embedding.
pub(super) async fn open(info: &DeviceInfo, failure: &Failure) -> Result<Device, DeviceError> {
    let failed =
        |reason: String| DeviceError::Open { id: info.id, name: info.name.clone(), reason };
    let instance = instance();
    let (_, adapter) = adapters(&instance)
        .await
        .into_iter()
        .find(|(found, _)| found.id == info.id)
        .ok_or_else(|| failed("it is gone".into()))?;
    if let Some(what) = too_small(&adapter.limits()).filter(|_| cfg!(target_arch = "wasm32")) {
        return Err(DeviceError::TooSmall { name: info.name.clone(), what });
    }
    let features = adapter
        .features()
        .difference(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
        .difference(wgpu::Features::all_experimental_mask());
    let request = adapter.request_device(&wgpu::DeviceDescriptor {
        label: Some("wgpt"),
        required_features: features,
        required_limits: adapter.limits(),
        memory_hints: wgpu::MemoryHints::Manual {
            suballocated_device_memory_block_size: DRIVER_BLOCK..DRIVER_BLOCK,
        },
        ..Default::default()
    });
    let (device, queue) = request.await.map_err(|error| failed(error.to_string()))?;
    let backend = adapter.get_info().backend;
    let watched = device.clone();
    let setup = WgpuSetup { instance, adapter, device, queue, backend };
    let opened = Device::wgpu_options()
        .setup(setup)
        .tasks_max(dispatches_at_once(info.kind))
        .init()
        .map_err(|error| failed(error.to_string()))?;
    // In place of cubecl's handlers, which panic on whatever thread it is.
    watch(&watched, info.name.clone(), failure);
    Ok(opened)
}

/// Dispatches that go to the driver as one submission, of up to 2^35 operations each: drivers reset a
/// device that works on one for longer than some seconds, on Windows two. 2^40 operations take a
/// small card a second or two, and graphics inside a processor, at a tenth of its speed, ten.
fn dispatches_at_once(kind: Kind) -> usize {
    match kind {
        Kind::Discrete => 16,
        Kind::Integrated => 2,
        // What computes in software is not reset; of others, such as a browser's, nothing is known.
        Kind::Software | Kind::Cpu => 32,
        _ => 4,
    }
}

/// What an adapter allows less of than the kernels need; WebGPU promises as much of each.
fn too_small(limits: &wgpu::Limits) -> Option<String> {
    let needed = wgpu::Limits::default();
    let pairs = [
        (
            "invocations in a workgroup",
            limits.max_compute_invocations_per_workgroup,
            needed.max_compute_invocations_per_workgroup,
        ),
        (
            "buffers in a kernel",
            limits.max_storage_buffers_per_shader_stage,
            needed.max_storage_buffers_per_shader_stage,
        ),
        (
            "bytes of memory in a workgroup",
            limits.max_compute_workgroup_storage_size,
            needed.max_compute_workgroup_storage_size,
        ),
    ];
    let short = pairs.into_iter().find(|(_, have, need)| have < need);
    short.map(|(what, have, need)| format!("{have} {what}, {need} are needed"))
}

/// Has the driver's failures told to `failure`, then a panic as before.
fn watch(device: &wgpu::Device, name: String, failure: &Failure) {
    let told = failure.clone();
    device.on_uncaptured_error(Arc::new(move |error| {
        told.set(match &error {
            wgpu::Error::OutOfMemory { .. } => DeviceError::OutOfMemory { name: name.clone() },
            other => DeviceError::Stopped { reason: other.to_string() },
        });
        panic!("wgpu error: {error}");
    }));
    let told = failure.clone();
    device.set_device_lost_callback(move |reason, message| {
        // A device that is dropped at the end of a run is lost as well.
        if reason == wgpu::DeviceLostReason::Unknown {
            told.set(DeviceError::Stopped { reason: format!("it was lost ({message})") });
        }
    });
}
