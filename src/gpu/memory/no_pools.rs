//! A build for the CPU alone has no pools.

use burn::tensor::Device;

use super::amounts::Memory;
use crate::config::Dtype;
use crate::gpu::error::DeviceError;

pub type PhysicalDevice = std::convert::Infallible;

pub(crate) fn physical_device(_device: &Device) -> Option<PhysicalDevice> {
    None
}

pub(crate) fn utilization(_device: &PhysicalDevice) -> Option<f64> {
    None
}

pub(crate) async fn finish(_device: &Device) -> Result<(), DeviceError> {
    Ok(())
}

pub(crate) fn largest_tensor(_device: &Device) -> Option<u64> {
    None
}

pub fn dtypes(_device: &Device) -> Vec<Dtype> {
    vec![Dtype::Float32]
}

pub fn memory(_device: &Device) -> Option<Memory> {
    None
}

pub(crate) fn size_pages(_device: &Device, _largest: u64) {}

pub(crate) fn release_unused(_device: &Device) {}
