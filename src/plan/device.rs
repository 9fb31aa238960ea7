//! Names of devices: what every layer, event and report calls them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The interface through which a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// burn's flex backend on the CPU.
    Cpu,
    /// Vulkan through wgpu.
    Vulkan,
    /// DirectX 12 through wgpu.
    Dx12,
    /// Metal through wgpu.
    Metal,
    /// OpenGL through wgpu.
    Gl,
    /// A browser's WebGPU.
    WebGpu,
    /// burn's CUDA backend.
    Cuda,
}

impl Backend {
    /// The names on the command line and in events.
    pub(crate) const NAMES: [(&'static str, Backend); 7] = [
        ("cpu", Backend::Cpu),
        ("vulkan", Backend::Vulkan),
        ("dx12", Backend::Dx12),
        ("metal", Backend::Metal),
        ("gl", Backend::Gl),
        ("webgpu", Backend::WebGpu),
        ("cuda", Backend::Cuda),
    ];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, backend)| backend == self);
        f.write_str(name.map_or("unknown", |(name, _)| name))
    }
}

/// The kind of hardware that a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU that a virtual machine passes through.
    Virtual,
    /// A software renderer, like llvmpipe or SwiftShader: graphics computed on the CPU.
    Software,
    /// The CPU, without a graphics API.
    Cpu,
    /// Hardware whose driver reports no kind.
    #[serde(other)]
    Unknown,
}

impl DeviceKind {
    /// Returns true unless the CPU computes.
    pub(crate) fn is_gpu(self) -> bool {
        !matches!(self, Self::Software | Self::Cpu)
    }

    /// Returns true if the memory of the device is the machine's.
    pub(crate) fn shares_memory(self) -> bool {
        matches!(self, Self::Cpu | Self::Software | Self::Integrated)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Software => "software",
            Self::Cpu => "cpu",
            Self::Unknown => "unknown",
        })
    }
}

/// The device of a run, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// The name that `--device` takes, like `vulkan:0`.
    pub id: String,
    /// The adapter's name.
    pub name: String,
    pub backend: Backend,
    pub kind: DeviceKind,
}
