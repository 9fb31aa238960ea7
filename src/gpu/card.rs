//! What the operating system knows of a device's memory.

use super::DeviceInfo;

/// A device's memory as the operating system or the driver tells it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardMemory {
    /// What the device has.
    pub total: u64,
    /// What nobody uses now.
    pub free: u64,
    /// Who says so.
    pub source: &'static str,
}

impl CardMemory {
    /// What a run can take without harm to others: a twentieth of all, but at least 256 MiB, stays
    /// for what comes and goes on a desktop.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub((self.total / 20).max(256 << 20))
    }
}

/// The memory of a device; `None` where nobody tells. Graphics that share the system's memory have
/// what the system has.
#[cfg(not(target_arch = "wasm32"))]
pub fn card_memory(info: &DeviceInfo) -> Option<CardMemory> {
    use sysinfo::{Gpus, MemoryRefreshKind, RefreshKind, System};

    use super::Kind;

    match info.kind {
        Kind::Software | Kind::Integrated => {
            let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
            let system = System::new_with_specifics(kind).ok()?;
            let (total, free) = (system.total_memory(), system.available_memory());
            (total > 0).then_some(CardMemory { total, free, source: "the system's memory" })
        }
        Kind::Discrete | Kind::Virtual | Kind::Unknown => {
            let pci = info.pci.as_deref()?.to_ascii_lowercase();
            let gpus = Gpus::new_with_refreshed_list().ok()?;
            let gpu = gpus.iter().find(|gpu| gpu.pci().to_string().to_ascii_lowercase() == pci)?;
            let (total, used) = (gpu.total_memory()?, gpu.used_memory()?);
            let free = total.saturating_sub(used);
            Some(CardMemory { total, free, source: "the graphics driver" })
        }
        Kind::Cpu => None,
    }
}

/// No browser tells.
#[cfg(target_arch = "wasm32")]
pub fn card_memory(_info: &DeviceInfo) -> Option<CardMemory> {
    None
}
