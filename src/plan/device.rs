//! Names of devices: what every layer, event and report calls them.

use serde::{Deserialize, Serialize};

use crate::config::words;

words! {
    /// The interface through which a device is reached.
    pub enum Backend {
        Cpu = "cpu",
        Vulkan = "vulkan",
        Dx12 = "dx12",
        Metal = "metal",
        Gl = "gl",
        WebGpu = "webgpu",
        Cuda = "cuda",
    }
}

impl Backend {
    /// Returns its name in sentences.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Vulkan => "Vulkan",
            Self::Dx12 => "DirectX 12",
            Self::Metal => "Metal",
            Self::Gl => "OpenGL",
            Self::WebGpu => "WebGPU",
            Self::Cuda => "CUDA",
        }
    }
}

words! {
    /// The kind of hardware that a device is.
    pub enum DeviceKind {
        Discrete = "discrete",
        Integrated = "integrated",
        /// A GPU that a virtual machine passes through.
        Virtual = "virtual",
        /// A software renderer, like llvmpipe or SwiftShader: graphics computed on the CPU.
        Software = "software",
        /// The CPU, without a graphics API.
        Cpu = "cpu",
        /// Hardware whose driver reports no kind.
        #[serde(other)]
        Unknown = "unknown",
    }
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

/// The device of a run, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// The name that `--device` takes, like `vulkan:0`.
    pub id: String,
    pub name: String,
    pub backend: Backend,
    pub kind: DeviceKind,
}
