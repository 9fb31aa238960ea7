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

/// Returns the memory of a device, or `None` if nothing reports it. The CPU, integrated GPUs and
/// software renderers have the system's memory.
#[cfg(not(target_arch = "wasm32"))]
pub fn reported_memory(info: &DeviceInfo) -> Option<ReportedMemory> {
    use sysinfo::Gpus;

    use super::Kind;

    match info.kind {
        Kind::Cpu | Kind::Software | Kind::Integrated => system_memory(),
        Kind::Discrete | Kind::Virtual | Kind::Unknown => {
            let pci = info.pci.as_deref()?.to_ascii_lowercase();
            let gpus = Gpus::new_with_refreshed_list().ok()?;
            let gpu = gpus.iter().find(|gpu| gpu.pci().to_string().to_ascii_lowercase() == pci)?;
            let (total, used) = (gpu.total_memory()?, gpu.used_memory()?);
            let free = total.saturating_sub(used);
            Some(ReportedMemory { total, free, source: "the graphics driver" })
        }
    }
}

/// Returns the memory of the system or, in a container with a smaller limit, of the container.
#[cfg(not(target_arch = "wasm32"))]
fn system_memory() -> Option<ReportedMemory> {
    use sysinfo::{MemoryRefreshKind, RefreshKind, System};

    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind).ok()?;
    let (total, free) = (system.total_memory(), system.available_memory());
    if total == 0 {
        return None;
    }
    Some(match system.cgroup_limits() {
        Some(limits) if limits.total_memory < total => ReportedMemory {
            total: limits.total_memory,
            // Not `free_memory`, which counts cached files as used.
            free: free.min(limits.total_memory.saturating_sub(limits.rss)),
            source: "the container's memory",
        },
        _ => ReportedMemory { total, free, source: "the system's memory" },
    })
}

/// Returns `None`: no browser reports it.
#[cfg(target_arch = "wasm32")]
pub fn reported_memory(_info: &DeviceInfo) -> Option<ReportedMemory> {
    None
}
