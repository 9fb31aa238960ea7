//! A device's memory as the operating system reports it.

use super::DeviceInfo;

/// A device's memory as the operating system or the driver reports it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedMemory {
    /// The memory of the device.
    pub total: u64,
    /// The part that no program uses now.
    pub free: u64,
    /// The source of both figures, for the user.
    pub source: &'static str,
}

/// Returns the memory of a device, or `None` if nothing reports it. Integrated GPUs and software
/// renderers have the system's memory.
#[cfg(not(target_arch = "wasm32"))]
pub fn reported_memory(info: &DeviceInfo) -> Option<ReportedMemory> {
    use sysinfo::{Gpus, MemoryRefreshKind, RefreshKind, System};

    use super::Kind;

    match info.kind {
        Kind::Software | Kind::Integrated => {
            let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
            let system = System::new_with_specifics(kind).ok()?;
            let (total, free) = (system.total_memory(), system.available_memory());
            (total > 0).then_some(ReportedMemory { total, free, source: "the system's memory" })
        }
        Kind::Discrete | Kind::Virtual | Kind::Unknown => {
            let pci = info.pci.as_deref()?.to_ascii_lowercase();
            let gpus = Gpus::new_with_refreshed_list().ok()?;
            let gpu = gpus.iter().find(|gpu| gpu.pci().to_string().to_ascii_lowercase() == pci)?;
            let (total, used) = (gpu.total_memory()?, gpu.used_memory()?);
            let free = total.saturating_sub(used);
            Some(ReportedMemory { total, free, source: "the graphics driver" })
        }
        Kind::Cpu => None,
    }
}

/// Returns `None`: no browser reports it.
#[cfg(target_arch = "wasm32")]
pub fn reported_memory(_info: &DeviceInfo) -> Option<ReportedMemory> {
    None
}
