//! The memory of the machine, as the operating system reports it.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::control_groups::group_memory;
use crate::disk;
use crate::gpu::memory::ReportedMemory;

/// Returns the memory of the machine, or the smaller amount that a container or `ulimit` allows.
pub fn host_memory() -> Option<ReportedMemory> {
    let system = system_memory()?;
    Some(address_space().filter(|limit| limit.free < system.free).unwrap_or(system))
}

/// Returns the memory of the system, or the smaller amount that its control groups grant this process.
fn system_memory() -> Option<ReportedMemory> {
    let kind = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(kind).ok()?;
    let total = system.total_memory();
    let free = system.available_memory();
    if total == 0 {
        return None;
    }
    Some(match group_memory(total) {
        Some(group) => ReportedMemory {
            total: group.limit,
            free: free.min(group.free),
            excess: 0,
            source: "the memory limit of this job or container",
        },
        None => ReportedMemory { total, free, excess: 0, source: "the system's memory" },
    })
}

/// Returns the limit of this process's address space (`ulimit -v`) and what is left. `None` without a
/// limit, and on systems other than Linux, where only unsafe code can read it.
fn address_space() -> Option<ReportedMemory> {
    let total = address_space_limit(&disk::read_to_string("/proc/self/limits").ok()?)?;
    let mapped = mapped(&disk::read_to_string("/proc/self/status").ok()?)?;
    let free = total.saturating_sub(mapped);
    Some(ReportedMemory { total, free, excess: 0, source: "the address space limit" })
}

/// Reads the soft limit of the address space in bytes from the text of `/proc/self/limits`.
fn address_space_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Reads the mapped memory in bytes from the text of `/proc/self/status`.
fn mapped(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_the_address_space_is_read() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max resident set          unlimited            unlimited            bytes     \n\
                 Max address space         {soft:<20} unlimited            bytes     \n"
            )
        };
        assert_eq!(address_space_limit(&limits("4294967296")), Some(4 << 30));
        assert_eq!(address_space_limit(&limits("unlimited")), None);
        assert_eq!(address_space_limit(""), None);
        assert_eq!(mapped("Name:\twgpt\nVmSize:\t  123456 kB\n"), Some(123_456 << 10));
        assert_eq!(mapped("VmSize:\t\n"), None);
        #[cfg(target_os = "linux")]
        assert!(mapped(&disk::read_to_string("/proc/self/status").unwrap()).is_some());
    }

    #[test]
    fn the_memory_of_the_machine_is_reported() {
        let memory = host_memory().unwrap();
        assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    }
}
