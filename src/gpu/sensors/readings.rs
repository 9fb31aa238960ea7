//! The memory and the health of a device, as the system reports them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::fdinfo::{self, BusyTimes};
use super::host::host_memory;
use super::nvidia::Nvidia;
use super::sysfs::Sysfs;
use crate::disk;
use crate::gpu::device::{Adapter, granted_memory, memory_adapter};
use crate::gpu::memory::{GrantedMemory, PhysicalDevice, ReportedMemory, utilization};
use crate::plan::{Backend, DeviceHealth, DeviceKind, MemoryHolder, OtherUse};
use crate::protocol::DeviceInfo;

/// The number of PCI's register of vendors.
const NVIDIA: &str = "10de:";

/// The most programs that [`Sensors::holders`] names.
const MAX_HOLDERS: usize = 4;

/// The use by others is a mean over about this many seconds, in which one reading has at most this weight.
const OTHERS_SECONDS: f64 = 10.0;
const LARGEST_WEIGHT: f64 = 0.2;

#[derive(Debug)]
pub struct Sensors {
    shares_memory: bool,
    adapter: Option<Adapter>,
    physical: Option<PhysicalDevice>,
    pci: Option<String>,
    nvidia: Option<Nvidia>,
    sysfs: Option<Sysfs>,
    times: BusyTimes,
    /// The time of the last reading of others, and the mean share of them.
    others: (Instant, f64),
}

impl Sensors {
    /// Finds the sensors of a device. `adapter` and `physical` are known for an open device.
    pub fn of(
        info: &DeviceInfo,
        adapter: Option<Adapter>,
        physical: Option<PhysicalDevice>,
    ) -> Self {
        let pci = info.pci.as_deref().map(str::to_ascii_lowercase);
        let ids = info.adapter.as_ref().and_then(|adapter| adapter.ids.as_deref());
        // The library wakes NVIDIA's GPUs up, so only these load it.
        let is_nvidia =
            info.id.backend == Backend::Cuda || ids.is_some_and(|ids| ids.starts_with(NVIDIA));
        let nvidia = pci.as_deref().filter(|_| is_nvidia).and_then(Nvidia::open);
        let sysfs = pci.as_deref().and_then(|pci| Sysfs::of(Path::new("/sys"), pci));
        let times = BusyTimes::new(Path::new("/proc"));
        let shares_memory = info.kind.shares_memory();
        Self {
            shares_memory,
            adapter,
            physical,
            pci,
            nvidia,
            sysfs,
            times,
            others: (Instant::now(), 0.0),
        }
    }

    /// Returns the memory of the device, or `None` if nothing reports it.
    pub fn memory(&self) -> Option<ReportedMemory> {
        let adapter = self.adapter.as_ref();
        if self.shares_memory {
            let host = host_memory()?;
            // macOS grants a GPU a part of the machine's memory.
            let adapter = adapter.filter(|_| cfg!(target_os = "macos"));
            let granted = adapter.and_then(granted_memory).and_then(of_driver);
            return Some(granted.filter(|granted| granted.free < host.free).unwrap_or(host));
        }
        let granted = adapter.and_then(granted_memory).filter(|granted| granted.total > 0);
        let nvidia = self.nvidia.as_ref().and_then(Nvidia::memory);
        if let Some(memory) = granted.and_then(of_driver) {
            // Windows grants a program what others hold, too, and moves that to the machine's memory.
            let free = nvidia.map_or(memory.free, |[_, free]| free.min(memory.free));
            return Some(ReportedMemory { free, ..memory });
        }
        let system = nvidia.or_else(|| self.sysfs.as_ref()?.memory());
        if let Some([total, free]) = system {
            return Some(ReportedMemory { total, free, excess: 0, source: DRIVER });
        }
        let GrantedMemory { total, .. } = granted?;
        Some(ReportedMemory { total, free: total, excess: 0, source: "only its size is known" })
    }

    pub fn health(&mut self) -> DeviceHealth {
        let nvidia = self.nvidia.as_ref().and_then(Nvidia::health);
        let health = nvidia.or_else(|| Some(self.sysfs.as_mut()?.health()));
        let utilization = self.physical.as_ref().and_then(utilization);
        DeviceHealth { utilization, ..health.unwrap_or_default() }
    }

    /// Returns the programs that hold the most memory of the GPU, without this one, as far as the
    /// system reports them.
    pub fn holders(&self) -> Vec<MemoryHolder> {
        let Some(pci) = self.pci.as_deref().filter(|_| !self.shares_memory) else {
            return Vec::new();
        };
        let proc = Path::new("/proc");
        let mut processes = match &self.nvidia {
            Some(nvidia) => nvidia.holders(),
            None => fdinfo::holders(proc, pci),
        };
        processes.retain(|(pid, bytes)| *pid != std::process::id() && *bytes > 0);
        processes.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let named = processes.into_iter().take(MAX_HOLDERS).map(|(pid, bytes)| {
            let name = process_name(pid).unwrap_or_else(|| "process".into());
            MemoryHolder { name: format!("{name} ({pid})"), bytes }
        });
        named.collect()
    }

    /// Returns the use of the GPU by other programs than wgpt, as a mean in which a reading of ten seconds ago counts for a
    /// third. `None` where the system does not report it per process: on Windows and macOS.
    pub fn others(&mut self) -> Option<OtherUse> {
        let pci = self.pci.as_deref()?;
        let shares = match &mut self.nvidia {
            Some(nvidia) => nvidia.shares(),
            None => self.times.shares(pci),
        };
        let own = process_name(std::process::id());
        let named =
            shares?.into_iter().filter_map(|(pid, share)| Some((process_name(pid)?, share)));
        let now = all_others(named.filter(|(name, _)| Some(name) != own.as_ref()));
        let (before, mean) = self.others;
        let weight = 1.0 - (-before.elapsed().as_secs_f64() / OTHERS_SECONDS).exp();
        let share = mean + (now.share - mean) * weight.min(LARGEST_WEIGHT);
        self.others = (Instant::now(), share);
        Some(OtherUse { share, ..now })
    }
}

/// Returns the name of a process, unless it has ended.
fn process_name(pid: u32) -> Option<String> {
    let name = disk::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm")).ok()?;
    Some(name.trim().to_string())
}

/// Adds up the shares of processes, without those of wgpt: a window draws while it trains.
fn all_others(processes: impl Iterator<Item = (String, f64)>) -> OtherUse {
    let mut programs = BTreeMap::<String, f64>::new();
    for (name, share) in processes.filter(|(name, _)| !name.starts_with("wgpt")) {
        *programs.entry(name).or_default() += share;
    }
    let share = programs.values().sum::<f64>().min(1.0);
    let most = programs.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    OtherUse { share, program: most.unwrap_or_default().0 }
}

/// Returns the memory of a device, or `None` if nothing reports it. For the CPU, integrated GPUs and
/// software renderers this is the system's memory.
pub fn reported_memory(info: &DeviceInfo) -> Option<ReportedMemory> {
    Sensors::of(info, memory_adapter(info), None).memory()
}

/// Returns the programs that hold the most memory of a GPU, as far as the system reports them.
pub fn memory_holders(info: &DeviceInfo) -> Vec<MemoryHolder> {
    Sensors::of(info, None, None).holders()
}

/// Returns the health of a device that need not be open, without its utilization.
pub fn device_health(info: &DeviceInfo) -> Option<DeviceHealth> {
    Sensors::of(info, None, None).health().known()
}

/// Returns true if a GPU draws a desktop, as far as the system tells.
pub fn drives_display(info: &DeviceInfo) -> bool {
    let Sensors { nvidia, sysfs, .. } = Sensors::of(info, None, None);
    let connected = [
        nvidia.as_ref().and_then(Nvidia::has_display),
        sysfs.as_ref().map(Sysfs::has_display),
        super::display::draws(&info.name),
    ];
    let mut known = connected.into_iter().flatten().peekable();
    if known.peek().is_none() {
        return info.kind == DeviceKind::Integrated;
    }
    known.any(|is_connected| is_connected)
}

/// The source of what a driver grants.
const DRIVER: &str = "the graphics driver";

/// Returns the memory that a driver grants; `None` if it reports only the size.
fn of_driver(granted: GrantedMemory) -> Option<ReportedMemory> {
    let GrantedMemory { total, budget, used } = granted;
    let budget = budget.filter(|budget| *budget > 0)?.min(total);
    let [free, excess] = [budget.saturating_sub(used), used.saturating_sub(budget)];
    Some(ReportedMemory { total, free, excess, source: DRIVER })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_grant_below_what_is_used_leaves_nothing_free() {
        let of = |budget, used| of_driver(GrantedMemory { total: 8 * GIB, budget, used });
        let free =
            |memory: Option<ReportedMemory>| memory.map(|memory| (memory.free, memory.excess));
        assert_eq!(free(of(Some(3 * GIB), GIB)), Some((2 * GIB, 0)));
        assert_eq!(free(of(Some(3 * GIB), 4 * GIB)), Some((0, GIB)));
        // No grant is larger than the memory, and one of 0 is a driver that reports nothing.
        assert_eq!(free(of(Some(9 * GIB), 0)), Some((8 * GIB, 0)));
        assert_eq!(free(of(Some(0), 0)), None);
        assert_eq!(free(of(None, 0)), None);
    }

    #[test]
    fn the_use_of_other_programs_is_added_up() {
        let of = |all: &[(&str, f64)]| {
            let used = all_others(all.iter().map(|(name, share)| (name.to_string(), *share)));
            (used.share, used.program)
        };
        let all = [("Xorg", 0.125), ("wgpt", 0.9), ("game", 0.25), ("game", 0.25)];
        assert_eq!(of(&all), (0.625, "game".into()));
        assert_eq!(of(&[("wgpt-worker", 1.0)]), (0.0, String::new()));
    }

    #[test]
    fn a_device_without_an_address_has_no_sensors() {
        let mut sensors = Sensors::of(&DeviceInfo::cpu(), None, None);
        assert_eq!(sensors.health().known(), None);
        assert_eq!(sensors.holders(), []);
        assert!(sensors.memory().is_some(), "the CPU's memory is the machine's");
    }
}
