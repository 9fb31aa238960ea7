//! The memory that cubecl's pools hold on a device, and the device's limits and dtypes.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::MemoryScope;
use burn_cubecl::cubecl::ir::ElemType;
use burn_cubecl::cubecl::prelude::{Scalar, tf32};

use super::amounts::Memory;
use crate::config::Dtype;
use crate::gpu::error::DeviceError;

pub(crate) fn cube(device: &Device) -> Option<CubeDevice> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        // The browser build has no other backend.
        #[cfg(not(target_arch = "wasm32"))]
        _ => None,
    }
}

/// Returns the bytes of the largest tensor that kernels can bind; `None` without a limit.
pub(crate) fn largest_tensor(device: &Device) -> Option<u64> {
    Some(cube(device)?.client().properties().memory.max_page_size)
}

/// Returns the dtypes other than f32 that kernels can have, and their elements.
fn other_elements() -> [(Dtype, ElemType); 3] {
    [
        (Dtype::Tf32, tf32::elem_type_native()),
        (Dtype::Bfloat16, half::bf16::elem_type_native()),
        (Dtype::Float16, half::f16::elem_type_native()),
    ]
}

/// Returns the dtypes that `device` can store and multiply. wgpt may lack kernels for some of them.
pub fn dtypes(device: &Device) -> Vec<Dtype> {
    let mut dtypes = vec![Dtype::Float32];
    if let Some(device) = cube(device) {
        let client = device.client();
        let known = other_elements().into_iter();
        let known = known.filter(|&(_, elem)| client.properties().supports_type(elem));
        dtypes.extend(known.map(|(dtype, _)| dtype));
    }
    dtypes
}

/// Returns true if products in `dtype` run on tensor cores of `device`.
#[cfg(feature = "cuda")]
pub(crate) fn has_tensor_cores(device: &Device, dtype: Dtype) -> bool {
    let factor = other_elements().into_iter().find(|(known, _)| *known == dtype);
    let Some((device, (_, factor))) = cube(device).zip(factor) else { return false };
    let client = device.client();
    let matmul = &client.properties().features.matmul;
    matmul.mma.iter().chain(&matmul.cmma).any(|shape| shape.a_type == factor)
}

/// Returns the memory of the pools of `device`, or `None` on the CPU, which has no pools. Waits
/// until cubecl has submitted its queue to the driver, but not for the device.
pub fn memory(device: &Device) -> Option<Memory> {
    let usage = cube(device)?.client().memory_report(MemoryScope::Device).usage();
    Some(Memory { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved })
}

#[cfg(not(target_arch = "wasm32"))]
mod utilization {
    use burn::tensor::Device;
    pub(crate) use burn_cubecl::cubecl::ir::PhysicalDevice;
    use cubecl_monitoring::gpu_utilization::CardCounters;

    /// Returns the identity of an open GPU, by which the system counts its work.
    pub(crate) fn physical_device(device: &Device) -> Option<PhysicalDevice> {
        super::cube(device)?.client().properties().identity.physical.clone()
    }

    /// Returns the share of the time since the last call, or of the driver's period, in which the GPU
    /// computed; `None` where nothing counts it.
    pub(crate) fn utilization(device: &PhysicalDevice) -> Option<f64> {
        let read = CardCounters::read(Some(device));
        Some(f64::from(read.ok()?.busy_percent) / 100.0)
    }
}
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use utilization::*;

/// Waits, without blocking this thread, until the device has finished all queued work.
pub(crate) async fn finish(device: &Device) -> Result<(), DeviceError> {
    let Some(device) = cube(device) else { return Ok(()) };
    let done = device.client().sync().await;
    done.map_err(DeviceError::stopped)
}

pub(crate) fn release_unused(device: &Device) {
    if let Some(device) = cube(device) {
        // It fails only while a graph is being recorded, which wgpt does not do.
        let _ = device.client().memory_cleanup();
    }
}

/// Makes the pools of `device` use pages for tensors of up to `largest` bytes from now on. They
/// would switch by themselves at the first tensor of that size, but then they would keep the
/// smaller pages and the unused room in them.
pub(crate) fn size_pages(device: &Device, largest: u64) {
    // In a browser every tensor has its own page.
    if let Some(device) = cube(device).filter(|_| !cfg!(target_arch = "wasm32")) {
        drop(device.client().empty(largest as usize));
    }
}
