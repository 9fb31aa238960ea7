//! The limits of a run on a device, from its budget setting and what is known of the device.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DeviceSpeed;
use crate::config::{Abilities, Budget, Config, Dtype, Precision};
use crate::text::bytes;

/// The limits that a plan keeps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The memory budget of the run; `None` for no budget.
    pub budget: Option<u64>,
    /// The largest buffer that a kernel can bind; `None` without a limit.
    pub largest_tensor: Option<u64>,
    /// True if memory comes from the pools of the device, which hold more than their tensors.
    pub pools: bool,
    pub kernels: Kernels,
    pub precision: Precision,
    /// The memory of the device, where known. No larger budget is suggested.
    pub memory: Option<u64>,
    /// Host memory for the optimizer; `None` where nothing reports it, 0 in a browser (no CPU backend).
    pub host_budget: Option<u64>,
    /// True if the device uses the machine's memory, like integrated GPUs and software renderers. Then
    /// device and host memory together must fit `host_budget`.
    pub unified: bool,
    /// The ranks that the optimizer state is divided among; at most 1 if it is not divided.
    pub optimizer_shards: u32,
}

impl Limits {
    /// Returns the limits of one of `ranks` ranks, which divide the optimizer state if `config` says so.
    pub(crate) fn sharded(self, config: &Config, ranks: usize) -> Self {
        let shards = if config.shard_optimizer { ranks } else { 1 };
        Self { optimizer_shards: u32::try_from(shards).unwrap_or(u32::MAX), ..self }
    }

    pub(super) fn shards_optimizer(&self) -> bool {
        self.optimizer_shards > 1
    }

    /// Returns false on the CPU, which has no other memory, and if ranks send weights from their devices.
    pub(super) fn can_offload(&self) -> bool {
        self.kernels != Kernels::Cpu && !self.shards_optimizer()
    }
}

/// The kernels of a device, which decide what an op allocates in addition to its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernels {
    /// WGSL kernels with fused epilogues.
    #[default]
    Wgsl,
    /// cubecl kernels. Matrix products are not fused with the ops around them, which write tensors.
    Cube,
    /// Loops on the CPU around the matrix products of a library. The system's memory has no pools.
    Cpu,
}

/// The memory of a device, as known before a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceMemory {
    #[default]
    Unknown,
    /// The driver or the system reports it, in bytes.
    Reported {
        total: u64,
        free: u64,
        /// The memory of the run's process before its first tensor.
        context: u64,
        /// Who reports it, for messages.
        source: String,
        /// The programs that hold the most memory, where known.
        holders: Vec<MemoryHolder>,
    },
    /// A GPU with this many bytes that need not be in this machine.
    Target(u64),
    /// A browser, which reports nothing. A run gets this budget in bytes unless it asks for another.
    Assumed(u64),
}

/// A program that holds memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHolder {
    pub name: String,
    pub bytes: u64,
}

impl fmt::Display for MemoryHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, bytes(self.bytes))
    }
}

/// A device as the planner sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    pub memory: DeviceMemory,
    pub abilities: Abilities,
    pub speed: Option<DeviceSpeed>,
    /// What limits every run on the device; a run adds its budget and its precision.
    pub limits: Limits,
}

/// The budget of a browser run that sets none, in bytes.
pub const BROWSER_BUDGET: u64 = 1 << 30;

/// The default share of a target GPU's memory; the rest is for the desktop and the driver.
const TARGET_SHARE: f64 = 0.9;

impl DeviceProfile {
    /// Returns the limits of a run with these settings, and the source of its budget as text.
    pub fn limits(&self, vram_budget: Budget, dtype: Dtype) -> (Limits, String) {
        let (budget, source) = self.budget(vram_budget);
        let memory = match self.memory {
            DeviceMemory::Reported { total, .. } | DeviceMemory::Target(total) => Some(total),
            DeviceMemory::Unknown | DeviceMemory::Assumed(_) => None,
        };
        let precision = self.abilities.planned(dtype);
        (Limits { budget, precision, memory, ..self.limits }, source)
    }

    /// Returns the memory of the device, and what of it a run can take now, if that is reported.
    pub fn total_and_free(&self) -> Option<[u64; 2]> {
        let DeviceMemory::Reported { total, free, context, .. } = self.memory else { return None };
        Some([total, free.saturating_sub(context)])
    }

    /// Returns the programs that hold the most of the device's memory, as far as they are known and
    /// leave less to a run with this setting.
    pub fn holders(&self, vram_budget: Budget) -> Vec<MemoryHolder> {
        match (&self.memory, vram_budget) {
            (DeviceMemory::Reported { holders, .. }, Budget::Auto | Budget::Percent(_)) => {
                holders.clone()
            }
            _ => Vec::new(),
        }
    }

    fn budget(&self, vram_budget: Budget) -> (Option<u64>, String) {
        let share = |total: u64, share: f64| (total as f64 * share) as u64;
        let (budget, of) = match (vram_budget, &self.memory) {
            (requested, DeviceMemory::Target(size)) => {
                let budget = match requested {
                    Budget::Bytes(budget) => budget.min(*size),
                    Budget::Percent(percent) => share(*size, percent / 100.0),
                    Budget::Auto => share(*size, TARGET_SHARE),
                    Budget::Unlimited => *size,
                };
                (budget, format!(" of a GPU with {}", bytes(*size)))
            }
            (Budget::Bytes(budget), _) => (budget, ", as set".into()),
            (Budget::Unlimited, _) => return (None, "none, as set".into()),
            (
                Budget::Percent(percent),
                DeviceMemory::Reported { total, free, context, source, .. },
            ) => {
                let asked = share(*total, percent / 100.0);
                let left = free.saturating_sub(*context);
                let what = if left < asked { "what other programs leave of " } else { "" };
                let of = format!(", {what}{percent}% of {} ({source})", bytes(*total));
                (asked.min(left), of)
            }
            (Budget::Auto, DeviceMemory::Reported { total, free, context, source, .. }) => {
                let budget = free_for_a_run(*total, free.saturating_sub(*context));
                let [free, total] = [*free, *total].map(bytes);
                (budget, format!("; {free} of {total} is free ({source})"))
            }
            (Budget::Auto | Budget::Percent(_), DeviceMemory::Assumed(budget)) => {
                (*budget, ", the default of a browser".into())
            }
            (Budget::Auto | Budget::Percent(_), DeviceMemory::Unknown) => {
                let advice = "--vram_budget=10GiB sets a budget";
                return (None, format!("none: the memory of the device is unknown; {advice}"));
            }
        };
        (Some(budget), format!("{}{of}", bytes(budget)))
    }
}

/// Returns the part of `free` bytes of a device's or the machine's memory that a run takes by itself.
/// The rest is a reserve for other programs: what a desktop takes and gives back while a run trains.
pub(crate) fn free_for_a_run(total: u64, free: u64) -> u64 {
    free.saturating_sub((total / 20).max(256 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_budget_follows_the_setting_and_the_device() {
        let reported = |total, free, context| DeviceMemory::Reported {
            total,
            free,
            context,
            source: "a test".into(),
            holders: Vec::new(),
        };
        let small = reported(GIB, GIB, 0);
        let crowded = reported(8 * GIB, 3 * GIB, 64 << 20);
        let reported = reported(8 * GIB, 7 * GIB, 0);
        let auto = 7 * GIB - 8 * GIB / 20;
        for (setting, memory, budget) in [
            (Budget::Auto, reported.clone(), Some(auto)),
            (Budget::Percent(50.0), reported.clone(), Some(4 * GIB)),
            (Budget::Bytes(GIB), reported.clone(), Some(GIB)),
            (Budget::Unlimited, reported, None),
            (Budget::Auto, small, Some(768 << 20)),
            // A share leaves what others use, and the context of the run itself.
            (Budget::Percent(90.0), crowded.clone(), Some(3 * GIB - (64 << 20))),
            (Budget::Percent(30.0), crowded.clone(), Some((2.4 * GIB as f64) as u64)),
            (Budget::Auto, crowded, Some(3 * GIB - (64 << 20) - 8 * GIB / 20)),
            (Budget::Auto, DeviceMemory::Target(10 * GIB), Some(9 * GIB)),
            (Budget::Percent(50.0), DeviceMemory::Target(10 * GIB), Some(5 * GIB)),
            (Budget::Bytes(20 * GIB), DeviceMemory::Target(10 * GIB), Some(10 * GIB)),
            (Budget::Unlimited, DeviceMemory::Target(10 * GIB), Some(10 * GIB)),
            (Budget::Auto, DeviceMemory::Assumed(GIB), Some(GIB)),
            (Budget::Unlimited, DeviceMemory::Assumed(GIB), None),
            (Budget::Auto, DeviceMemory::Unknown, None),
            (Budget::Percent(50.0), DeviceMemory::Unknown, None),
        ] {
            let device = DeviceProfile { memory, ..DeviceProfile::default() };
            let (limits, _) = device.limits(setting, Dtype::Auto);
            assert_eq!(limits.budget, budget, "{setting} on {device:?}");
            let memory = match device.memory {
                DeviceMemory::Reported { total, .. } | DeviceMemory::Target(total) => Some(total),
                _ => None,
            };
            assert_eq!(limits.memory, memory);
        }
        // A small device leaves at least 256 MiB to others.
        assert_eq!(free_for_a_run(100 * GIB, 50 * GIB), 45 * GIB);
        assert_eq!(free_for_a_run(GIB, GIB), 768 << 20);
        assert_eq!(free_for_a_run(GIB, 1 << 20), 0);
    }
}
