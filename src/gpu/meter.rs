//! Measures the memory that a device's pools hold, and counts kernel launches.

use burn::tensor::Device;
use serde::Serialize;

use super::DeviceError;

/// The memory of a device's pools in bytes, including the auxiliary pools for staging and uniforms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub in_use: u64,
    /// All memory of the pools: in use, freed for later use, and the unused rest of pages. Pools do
    /// not shrink by themselves, so after a step this is the step's peak.
    pub reserved: u64,
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod pools {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use burn::backend::DispatchDevice;
    use burn_cubecl::CubeDevice;
    use burn_cubecl::cubecl::MemoryScope;
    use burn_cubecl::cubecl::dry_run::DryRun;
    pub use burn_cubecl::cubecl::dry_run::dry_run as is_dry_run;
    use burn_cubecl::cubecl::ir::ElemType;
    #[cfg(not(target_arch = "wasm32"))]
    pub use burn_cubecl::cubecl::ir::PhysicalDevice as Card;
    use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver};
    use burn_cubecl::cubecl::prelude::{Scalar, tf32};

    use super::{Device, DeviceError, Memory};
    use crate::config::Dtype;

    pub fn cube(device: &Device) -> Option<CubeDevice> {
        match device.clone().inner().as_dispatch() {
            DispatchDevice::Cube(device) => Some(device.clone()),
            // The browser build has no other backend.
            #[cfg(not(target_arch = "wasm32"))]
            _ => None,
        }
    }

    /// Returns the bytes of the largest tensor that kernels can bind; `None` without a limit.
    pub fn largest_tensor(device: &Device) -> Option<u64> {
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
    pub fn has_tensor_cores(device: &Device, dtype: Dtype) -> bool {
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

    /// Returns the card of an open device, by which the system counts its work.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn card(device: &Device) -> Option<Card> {
        cube(device)?.client().properties().identity.physical.clone()
    }

    /// Returns the share of the time since the last call, or of a period of the driver's, in which the
    /// card computed; `None` where nothing counts it.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn utilization(card: &Card) -> Option<f64> {
        let read = cubecl_monitoring::gpu_utilization::CardCounters::read(Some(card));
        Some(f64::from(read.ok()?.busy_percent) / 100.0)
    }

    /// Waits, without blocking this thread, until the device has finished all queued work.
    pub async fn finish(device: &Device) -> Result<(), DeviceError> {
        let Some(device) = cube(device) else { return Ok(()) };
        let done = device.client().sync().await;
        done.map_err(DeviceError::stopped)
    }

    pub fn release_unused(device: &Device) {
        if let Some(device) = cube(device) {
            // It fails only while a graph is being recorded, which wgpt does not do.
            let _ = device.client().memory_cleanup();
        }
    }

    /// Makes the pools of `device` use pages for tensors of up to `largest` bytes from now on. They
    /// would switch by themselves at the first tensor of that size, but then they would keep the
    /// smaller pages and the unused room in them.
    pub fn size_pages(device: &Device, largest: u64) {
        // In a browser every tensor has its own page.
        if let Some(device) = cube(device).filter(|_| !cfg!(target_arch = "wasm32")) {
            drop(device.client().empty(largest as usize));
        }
    }

    struct OnLaunch<F>(F);

    impl<F: Fn() + Send + Sync> LaunchObserver for OnLaunch<F> {
        fn launched(&self, _kernel: &'static str) {
            self.0();
        }
    }

    /// Runs `work` without computing anything. Kernels are compiled, and memory is reserved but
    /// allocated from the driver only for uploads. Values that are read back mean nothing. Returns
    /// the result of `work` and the most bytes of live tensors on `device` at a launch.
    pub fn dry_run<R>(device: &Device, work: impl FnOnce() -> R) -> (R, u64) {
        let guard = DryRun::new();
        let peak = Arc::new(AtomicU64::new(0));
        let (device, most) = (device.clone(), peak.clone());
        let observation = LaunchObservation::new(Arc::new(OnLaunch(move || {
            let in_use = memory(&device).map_or(0, |memory| memory.in_use);
            most.fetch_max(in_use, Ordering::Relaxed);
        })));
        let result = work();
        drop(observation);
        drop(guard);
        (result, peak.load(Ordering::Relaxed))
    }

    /// Runs `work`. Returns its result and the number of kernels that this process launched meanwhile.
    pub fn count_launches<R>(work: impl FnOnce() -> R) -> (R, usize) {
        let launches = Arc::new(AtomicUsize::new(0));
        let count = launches.clone();
        let observation = LaunchObservation::new(Arc::new(OnLaunch(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })));
        let result = work();
        drop(observation);
        (result, launches.load(Ordering::Relaxed))
    }
}

/// A build for the CPU alone: no pools, no launches.
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
mod pools {
    use super::{Device, DeviceError, Memory};

    pub type Card = std::convert::Infallible;

    pub fn card(_device: &Device) -> Option<Card> {
        None
    }

    pub fn utilization(_card: &Card) -> Option<f64> {
        None
    }

    pub async fn finish(_device: &Device) -> Result<(), DeviceError> {
        Ok(())
    }

    pub fn largest_tensor(_device: &Device) -> Option<u64> {
        None
    }

    pub fn dtypes(_device: &Device) -> Vec<crate::config::Dtype> {
        vec![crate::config::Dtype::Float32]
    }

    pub fn memory(_device: &Device) -> Option<Memory> {
        None
    }

    pub fn size_pages(_device: &Device, _largest: u64) {}

    pub fn release_unused(_device: &Device) {}

    pub fn count_launches<R>(work: impl FnOnce() -> R) -> (R, usize) {
        (work(), 0)
    }

    pub fn dry_run<R>(_device: &Device, work: impl FnOnce() -> R) -> (R, u64) {
        (work(), 0)
    }

    pub fn is_dry_run() -> bool {
        false
    }
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub(super) use pools::cube;
#[cfg(feature = "cuda")]
pub use pools::has_tensor_cores;
#[cfg(not(target_arch = "wasm32"))]
pub(super) use pools::{Card, card, utilization};
pub use pools::{
    count_launches, dry_run, dtypes, finish, is_dry_run, largest_tensor, memory, release_unused,
    size_pages,
};
