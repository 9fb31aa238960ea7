//! The devices of a machine, and the search for them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Abilities;
use crate::plan::{Backend, DeviceKind, DeviceLine};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    pub id: DeviceId,
    pub name: String,
    pub kind: DeviceKind,
    /// The driver and its version, where known.
    pub driver: String,
    /// The largest buffer that can be bound to a kernel, in bytes. `None` without a limit.
    pub max_binding: Option<u64>,
    /// The PCI address, like `0000:01:00.0`, where known.
    pub pci: Option<String>,
    /// The dtypes and matrices that it supports in addition to float32.
    pub abilities: Abilities,
    pub adapter: Option<AdapterReport>,
}

impl DeviceInfo {
    /// Returns the description of the device in events.
    pub fn line(&self) -> DeviceLine {
        DeviceLine {
            id: self.id.to_string(),
            name: self.name.clone(),
            backend: self.id.backend,
            kind: self.kind,
        }
    }
}

/// A device's name on the command line: the backend and the index among its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceId {
    pub backend: Backend,
    pub index: usize,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.backend {
            Backend::Cpu => f.write_str("cpu"),
            backend => write!(f, "{backend}:{}", self.index),
        }
    }
}

/// Limits and features of an adapter that decide which kernels run on it, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterReport {
    /// The PCI numbers of vendor and model, like `10de:2504`, where the backend has such numbers.
    pub ids: Option<String>,
    pub max_buffer_bytes: u64,
    pub max_storage_buffers: u32,
    pub max_workgroup_invocations: u32,
    pub max_workgroup_bytes: u32,
    /// The smallest and the largest subgroup, in invocations; `None` if kernels cannot use them.
    pub subgroup_sizes: Option<[u32; 2]>,
    /// The parts of the GPU that each run workgroups of their own, if the driver counts them.
    #[serde(default)]
    pub multiprocessors: Option<u32>,
    /// Shapes and types of cooperative matrices, like `16x16x16 F16, sums in F32`. Kernels use few.
    pub matrices: Vec<String>,
}

/// The devices to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Search {
    All,
    /// The devices that `--device=auto` chooses from. Tries OpenGL only if no other backend has a GPU,
    /// because its libraries load slowly and print warnings, and other backends are faster on the same
    /// GPU.
    Auto,
    Only(Backend),
}
