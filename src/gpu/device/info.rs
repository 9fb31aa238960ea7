//! The description of the CPU.

use crate::config::Abilities;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::{DeviceId, DeviceInfo};

impl DeviceInfo {
    pub(crate) fn cpu() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            id: DeviceId { backend: Backend::Cpu, index: 0 },
            name: format!("CPU, {cores} threads"),
            kind: DeviceKind::Cpu,
            driver: "burn flex".into(),
            max_binding: None,
            pci: None,
            abilities: Abilities::default(),
            adapter: None,
        }
    }
}
