//! What a device's memory pools hold, and how many kernels are launched.

use burn::tensor::Device;
use serde::Serialize;

use super::DeviceError;

/// What the memory pools of a device hold, auxiliary ones (staging, uniforms) included, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Taken by tensors that are alive.
    pub in_use: u64,
    /// Held by the pools: what is in use, what was freed and will be used again, and what pages
    /// leave over. Pools do not shrink by themselves, so after a step this is the step's peak.
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
    use burn_cubecl::cubecl::logging::{LaunchObservation, LaunchObserver};
    use burn_cubecl::cubecl::prelude::{Scalar, tf32};

    use super::{Device, DeviceError, Memory};
    use crate::config::Dtype;

    pub fn cube(device: &Device) -> Option<CubeDevice> {
        match device.clone().inner().as_dispatch() {
            DispatchDevice::Cube(device) => Some(device.clone()),
            _ => None,
        }
    }

    /// The largest tensor that a kernel on `device` can be given, in bytes; `None` without a limit.
    pub fn largest_tensor(device: &Device) -> Option<u64> {
        Some(cube(device)?.client().properties().memory.max_page_size)
    }

    /// Numbers other than f32 that kernels can store, compute with and multiply on `device`.
    pub fn other_dtypes(device: &Device) -> Vec<Dtype> {
        let Some(device) = cube(device) else { return Vec::new() };
        let client = device.client();
        let known = [
            (Dtype::Tf32, tf32::elem_type_native()),
            (Dtype::Bfloat16, half::bf16::elem_type_native()),
            (Dtype::Float16, half::f16::elem_type_native()),
        ];
        let supports = |elem| client.properties().supports_type(elem);
        known.into_iter().filter(|&(_, elem)| supports(elem)).map(|(known, _)| known).collect()
    }

    /// What the pools of `device` hold; `None` where there are none, on the processor. Waits for
    /// what is queued on this side of the driver, not for the device.
    pub fn memory(device: &Device) -> Option<Memory> {
        let usage = cube(device)?.client().memory_report(MemoryScope::Device).usage();
        Some(Memory { in_use: usage.bytes_in_use, reserved: usage.bytes_reserved })
    }

    /// Waits, without blocking this thread, until the device has done all that it was given.
    ///
    /// # Errors
    /// When it cannot.
    pub async fn finish(device: &Device) -> Result<(), DeviceError> {
        let Some(device) = cube(device) else { return Ok(()) };
        let done = device.client().sync().await;
        done.map_err(|error| DeviceError::Stopped { reason: error.to_string() })
    }

    /// Gives pages that nothing uses back to the driver.
    pub fn release_unused(device: &Device) {
        if let Some(device) = cube(device) {
            // Refused only while a graph is recorded, which wgpt does not do.
            let _ = device.client().memory_cleanup();
        }
    }

    /// Has the pools of `device` cut pages for tensors of up to `largest` bytes from now on. They do
    /// so by themselves when such a tensor comes, but pages of a smaller size that are in use by
    /// then stay, with all the room that is left in them.
    pub fn size_pages(device: &Device, largest: u64) {
        // In a browser, every tensor has a page of its own.
        if cfg!(target_arch = "wasm32") {
            return;
        }
        if let Some(device) = cube(device) {
            drop(device.client().empty(largest as usize));
        }
    }

    struct Peak {
        device: Device,
        in_use: AtomicU64,
    }

    impl LaunchObserver for Peak {
        fn launched(&self, _kernel: &'static str) {
            let in_use = memory(&self.device).map_or(0, |memory| memory.in_use);
            self.in_use.fetch_max(in_use, Ordering::Relaxed);
        }
    }

    /// Runs `work` without computing anything: kernels are compiled, memory is reserved but taken
    /// from the driver only for what is uploaded, and whatever is read back means nothing. Gives
    /// what `work` gives and the most bytes that tensors on `device` took at a launch.
    pub fn dry_run<R>(device: &Device, work: impl FnOnce() -> R) -> (R, u64) {
        let guard = DryRun::new();
        let peak = Arc::new(Peak { device: device.clone(), in_use: AtomicU64::new(0) });
        let observation = LaunchObservation::new(peak.clone());
        let result = work();
        drop(observation);
        drop(guard);
        (result, peak.in_use.load(Ordering::Relaxed))
    }

    #[derive(Default)]
    struct Launches(AtomicUsize);

    impl LaunchObserver for Launches {
        fn launched(&self, _kernel: &'static str) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs `work`; gives what it gives, and how many kernels this process launched meanwhile.
    pub fn count_launches<R>(work: impl FnOnce() -> R) -> (R, usize) {
        let launches = Arc::new(Launches::default());
        let observation = LaunchObservation::new(launches.clone());
        let result = work();
        drop(observation);
        (result, launches.0.load(Ordering::Relaxed))
    }
}

/// A build for the processor alone: no pools, no launches.
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
mod pools {
    use super::{Device, DeviceError, Memory};

    pub async fn finish(_device: &Device) -> Result<(), DeviceError> {
        Ok(())
    }

    pub fn largest_tensor(_device: &Device) -> Option<u64> {
        None
    }

    pub fn other_dtypes(_device: &Device) -> Vec<crate::config::Dtype> {
        Vec::new()
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
}

#[cfg(all(feature = "wgpu", not(target_arch = "wasm32")))]
pub(super) use pools::cube;
pub(super) use pools::other_dtypes;
pub use pools::{
    count_launches, dry_run, finish, largest_tensor, memory, release_unused, size_pages,
};
