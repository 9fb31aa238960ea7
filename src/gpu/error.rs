//! Why a device could not be found, opened or used.

use thiserror::Error;

use super::{Backend, DeviceId};
use crate::config::Dtype;

/// Why no device could be used.
#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    /// The name does not have the form that `--device` takes.
    #[error("`{name}` is not a device")]
    Unknown {
        /// What was typed.
        name: String,
    },
    /// The build has no support for the interface.
    #[error("this build of wgpt has no support for `{backend}`")]
    NotBuilt {
        /// The interface that was asked for.
        backend: Backend,
    },
    /// The interface is there, but not that device.
    #[error("no device `{id}`; found: {found}")]
    Missing {
        /// What was asked for.
        id: DeviceId,
        /// The devices there are.
        found: String,
    },
    /// There is no CUDA device at all.
    #[error("no device `{id}`: {why}; found: {found}")]
    NoCuda {
        /// What was asked for.
        id: DeviceId,
        /// What is not there.
        why: String,
        /// The devices there are.
        found: String,
    },
    /// The driver has no more memory.
    #[error("{name} ran out of memory")]
    OutOfMemory {
        /// The adapter's name.
        name: String,
    },
    /// The device did not finish what it was given.
    #[error("the device stopped: {reason}")]
    Stopped {
        /// The driver's words.
        reason: String,
    },
    /// The device does not compute in these numbers.
    #[error("{id} ({name}) does not compute in {dtype}; it does in {}", list(known))]
    Dtype {
        /// The device.
        id: DeviceId,
        /// Its name.
        name: String,
        /// What was asked for.
        dtype: Dtype,
        /// What it can do.
        known: Vec<Dtype>,
    },
    /// The device allows less than the kernels need.
    #[error("{name} is too small: {what}")]
    TooSmall {
        /// The adapter's name.
        name: String,
        /// What it allows, and what is needed.
        what: String,
    },
    /// The driver refused.
    #[error("could not open {name} ({id}): {reason}")]
    Open {
        /// What was asked for.
        id: DeviceId,
        /// The adapter's name.
        name: String,
        /// The driver's words.
        reason: String,
    },
}

impl DeviceError {
    /// The failure of the device `name` that a driver's words tell of, if they do. Backends that
    /// have no other way to say it put them into errors and panics.
    pub fn told(name: &str, words: &str) -> Option<Self> {
        const MEMORY: [&str; 4] =
            ["out of device memory", "out-of-memory", "out of memory", "out_of_memory"];
        const END: [&str; 4] = ["lost", "poisoned", "illegal address", "launch failure"];
        let lower = words.to_lowercase();
        let tells_of = |signs: &[&str]| signs.iter().any(|sign| lower.contains(sign));
        if tells_of(&MEMORY) {
            return Some(DeviceError::OutOfMemory { name: name.to_string() });
        }
        // What comes after the first line is where it was noticed.
        let reason = words.lines().next().unwrap_or_default().to_string();
        tells_of(&END).then_some(DeviceError::Stopped { reason })
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            DeviceError::Unknown { .. } => {
                "write auto, cpu, or an interface with an optional number: vulkan, vulkan:1, \
                 dx12, gl, cuda:0. `wgpt devices` lists what is there"
            }
            DeviceError::NotBuilt { .. } => "build with `--features wgpu` or `--features cuda`",
            DeviceError::Missing { .. } => {
                "`wgpt devices` lists what is there; a missing card usually means a missing driver \
                 (on Debian and Ubuntu: mesa-vulkan-drivers or NVIDIA's own)"
            }
            DeviceError::NoCuda { .. } => {
                "install NVIDIA's driver (on Debian with libcuda1) and see that `nvidia-smi` lists \
                 the card; the same card also computes by --device=vulkan, and --device=auto takes \
                 what there is"
            }
            DeviceError::OutOfMemory { .. } => {
                "other programs may have taken it: continue with --resume and a smaller \
                 --vram_budget or --micro_batch"
            }
            DeviceError::Stopped { .. } => {
                "the driver reset it, or it went away: continue with --resume, and see the system's \
                 log if it happens again"
            }
            DeviceError::Dtype { .. } => {
                "set --dtype to one of those; others than float32 need an NVIDIA card and a build \
                 with `--features cuda`, tf32 a card of the year 2020 or later"
            }
            DeviceError::TooSmall { .. } => "use another device (`wgpt devices`), or --device=cpu",
            DeviceError::Open { .. } => {
                "try another interface of the same card (`wgpt devices`), update its driver, or \
                 use --device=cpu"
            }
        }
    }
}

fn list(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_tell_of_failures() {
        let told = |words: &str| DeviceError::told("card", words);
        for words in [
            "out of device memory allocating 1024 bytes\n   0: a backtrace",
            "An out-of-memory error happened during launch",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        ] {
            let error = told(words);
            assert!(matches!(error, Some(DeviceError::OutOfMemory { .. })), "{words}: {error:?}");
        }
        for words in ["The device was poisoned during launch", "Device is lost"] {
            assert!(matches!(told(words), Some(DeviceError::Stopped { .. })), "{words}");
        }
        assert!(told("index out of bounds: the len is 3 but the index is 3").is_none());
    }
}
