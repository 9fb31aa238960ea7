//! A device that is selected for a run, and one that is open.

use burn::tensor::Device;

use super::adapter::{self, Adapter};
use super::driver::DriverTraits;
use crate::config::Precision;
use crate::gpu::error::DeviceError;
use crate::gpu::watchdog::Watchdog;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::DeviceInfo;

#[derive(Clone, Debug)]
pub struct OpenDevice {
    pub info: DeviceInfo,
    /// The reason why it was selected, for the user.
    pub reason: String,
    pub device: Device,
    pub watchdog: Watchdog,
    /// Reports its memory.
    #[cfg_attr(target_arch = "wasm32", allow(dead_code, reason = "no browser reports memory"))]
    pub(in crate::gpu) adapter: Option<Adapter>,
}

impl OpenDevice {
    /// Returns the CPU as an open device, for tests.
    #[cfg(test)]
    pub(crate) fn cpu(info: DeviceInfo) -> Self {
        Self {
            info,
            reason: String::new(),
            device: Device::flex(),
            watchdog: Watchdog::new(true),
            adapter: None,
        }
    }
}

/// A device that is selected but not open. It takes none of the device's memory yet.
#[derive(Clone, Debug)]
pub struct SelectedDevice {
    pub info: DeviceInfo,
    /// The reason why it was selected, for the user.
    pub reason: String,
    pub driver: DriverTraits,
    /// True if wgpt chose it and not the user.
    pub(super) auto: bool,
}

impl SelectedDevice {
    /// Returns a device that nothing replaces if it cannot be opened.
    pub(super) fn named(info: DeviceInfo, reason: String) -> Self {
        Self { driver: DriverTraits::of(&info, None), info, reason, auto: false }
    }

    /// Opens the device for runs in this precision, without blocking this thread.
    pub async fn open_async(&self, precision: Precision) -> Result<OpenDevice, DeviceError> {
        let watchdog = Watchdog::new(!self.info.kind.is_gpu());
        let (device, adapter) = match self.info.id.backend {
            #[cfg(not(target_arch = "wasm32"))]
            Backend::Cpu => (Device::flex(), None),
            #[cfg(feature = "cuda")]
            Backend::Cuda => (Device::cuda(self.info.id.index), None),
            _ => {
                let opened = adapter::open(&self.info, precision, self.driver, &watchdog);
                let (device, adapter) = opened.await?;
                (device, Some(adapter))
            }
        };
        Ok(OpenDevice {
            info: self.info.clone(),
            reason: self.reason.clone(),
            device,
            watchdog,
            adapter,
        })
    }

    /// Returns the CPU, to use instead of this device, which could not be opened because of `error`.
    ///
    /// # Errors
    /// Returns `error` if the user named this device, or if it is the CPU.
    pub fn fallback(&self, error: DeviceError) -> Result<Self, DeviceError> {
        if !self.auto || self.info.kind == DeviceKind::Cpu {
            return Err(error);
        }
        let reason = format!("{error}; --device={} tries again", self.info.id);
        Ok(Self::named(DeviceInfo::cpu(), reason))
    }
}

/// Returns the device that the browser offers, if it offers one.
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub async fn select_in_browser() -> Option<SelectedDevice> {
    let info = adapter::devices(&[Backend::WebGpu]).await.into_iter().next()?;
    Some(SelectedDevice::named(info, "the browser's choice".into()))
}
