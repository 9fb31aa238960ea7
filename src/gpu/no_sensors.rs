//! A browser reports nothing about its device.

use super::{DeviceInfo, OpenDevice, ReportedMemory};
use crate::plan::{DeviceHealth, MemoryHolder, OtherUse};

#[derive(Default)]
pub struct DeviceReading {
    pub number: u64,
    pub memory: Option<ReportedMemory>,
    pub health: DeviceHealth,
    pub others: Option<OtherUse>,
}

pub struct DeviceMonitor;

impl DeviceMonitor {
    pub fn start(_device: &OpenDevice, _watches_others: bool) -> Self {
        Self
    }

    pub fn latest(&self) -> DeviceReading {
        DeviceReading::default()
    }
}

pub fn reported_memory(_info: &DeviceInfo) -> Option<ReportedMemory> {
    None
}

pub fn memory_holders(_info: &DeviceInfo) -> Vec<MemoryHolder> {
    Vec::new()
}

/// The speed of a page's device is unknown, so nobody knows how much work is gentle.
pub fn drives_display(_info: &DeviceInfo) -> bool {
    false
}

pub fn device_health(_info: &DeviceInfo) -> Option<DeviceHealth> {
    None
}

pub fn host_memory() -> Option<ReportedMemory> {
    None
}

#[derive(Default)]
pub struct OtherPrograms;

impl OtherPrograms {
    pub fn share(&mut self) -> f64 {
        0.0
    }
}
