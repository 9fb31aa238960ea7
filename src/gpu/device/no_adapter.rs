//! A build without wgpu has none of its adapters.

use burn::tensor::Device;

use super::driver::DriverTraits;
use crate::config::Precision;
use crate::gpu::error::DeviceError;
use crate::gpu::memory::GrantedMemory;
use crate::gpu::watchdog::Watchdog;
use crate::plan::Backend;
use crate::protocol::DeviceInfo;

pub type Adapter = std::convert::Infallible;

pub async fn devices(_: &[Backend]) -> Vec<DeviceInfo> {
    Vec::new()
}

pub fn memory_adapter(_: &DeviceInfo) -> Option<Adapter> {
    None
}

pub fn granted_memory(adapter: &Adapter) -> Option<GrantedMemory> {
    match *adapter {}
}

pub async fn open(
    info: &DeviceInfo,
    _: Precision,
    _: DriverTraits,
    _: &Watchdog,
) -> Result<(Device, Adapter), DeviceError> {
    Err(DeviceError::NotBuilt { backend: info.id.backend })
}
