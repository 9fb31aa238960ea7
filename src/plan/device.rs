//! The names and the health of devices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::words;
use crate::text::percent;

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

    /// Returns the bytes of a GPU that a process takes before its first tensor: the context of the
    /// driver, its queues and the code of kernels. Reported by users of each API, and not measured here.
    pub(crate) fn context_bytes(self) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Cpu | Self::WebGpu => 0,
            Self::Metal => 32 * MIB,
            Self::Vulkan | Self::Dx12 | Self::Gl => 64 * MIB,
            // 150 to 450 MB, more on larger GPUs.
            Self::Cuda => 448 * MIB,
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
        /// Hardware with a driver that reports no kind.
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

words! {
    /// What makes a GPU lower its clock.
    pub enum Throttle {
        Heat = "heat",
        /// The power supply delivers less than the GPU needs.
        PowerSupply = "power supply",
        /// The GPU draws what its driver or the user allows: usual under full load.
        PowerLimit = "power limit",
    }
}

/// The state of a GPU at work, as the system reports it. An unknown value is `None`, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceHealth {
    /// The share of the time, about the last second, in which the GPU computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// The clock of its cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<f64>,
    /// Why the clock is lower than it could be, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<Throttle>,
}

/// Writes what is known: `98% busy, 71 °C, 168 W, 1905 MHz`.
impl fmt::Display for DeviceHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.utilization.map(|share| format!("{} busy", percent(share, 0))),
            self.celsius.map(|degrees| format!("{degrees:.0} °C")),
            self.watts.map(|watts| format!("{watts:.0} W")),
            self.clock_mhz.map(|clock| format!("{clock:.0} MHz")),
            self.throttled.map(|reason| format!("throttled ({reason})")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl DeviceHealth {
    /// Returns `None` if the system reports nothing.
    pub(crate) fn known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

/// How other programs use a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OtherUse {
    /// The share of the time in which it works for them.
    pub share: f64,
    /// The program that uses most of it.
    pub program: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_health_is_written() {
        let nothing = DeviceHealth::default();
        assert_eq!((nothing.known(), nothing.to_string()), (None, String::new()));
        assert_eq!(serde_json::to_string(&nothing).unwrap(), "{}");
        let hot = DeviceHealth { celsius: Some(88.2), throttled: Some(Throttle::Heat), ..nothing };
        assert_eq!(hot.known().unwrap().to_string(), "88 °C, throttled (heat)");
        let all = DeviceHealth {
            utilization: Some(0.98),
            watts: Some(168.4),
            clock_mhz: Some(1905.0),
            throttled: None,
            ..hot
        };
        assert_eq!(all.to_string(), "98% busy, 88 °C, 168 W, 1905 MHz");
    }
}
