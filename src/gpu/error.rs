//! Errors of finding, opening and using a device.

use thiserror::Error;

use crate::config::Dtype;
use crate::plan::Backend;
use crate::protocol::{Cause, DeviceId, Exit, Failure};

#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    #[error("`{name}` is not a device")]
    Unknown { name: String },
    #[error("this build of wgpt has no support for `{backend}`")]
    NotBuilt { backend: Backend },
    #[error("no device `{id}`; found: {found}")]
    Missing { id: DeviceId, found: String },
    #[error("no GPU is left for process {number} of this run on this machine; found: {found}")]
    TooFew {
        /// The number of the process on the machine, from 1.
        number: usize,
        found: String,
    },
    #[error("no device `{id}`: {why}; found: {found}")]
    NoCuda {
        id: DeviceId,
        /// Names the missing part: the driver, its library or a GPU.
        why: String,
        found: String,
    },
    #[error("no device `{device}`: its driver crashed while it listed its devices ({how})")]
    Crashed {
        /// The value of `--device`.
        device: String,
        /// The end of the process that listed them: `signal 11`.
        how: String,
    },
    #[error("{name} ran out of memory")]
    OutOfMemory { name: String },
    #[error("the device stopped: {reason}")]
    Stopped { reason: String },
    #[error("{id} ({name}) does not support {dtype}; it supports {}", list(known))]
    Dtype { id: DeviceId, name: String, dtype: Dtype, known: Vec<Dtype> },
    #[error("{name} cannot run the kernels: {what}")]
    TooSmall { name: String, what: String },
    #[error("could not open {name} ({id}): {reason}")]
    Open { id: DeviceId, name: String, reason: String },
    /// No way to compute in a dtype passed the test of its kernels.
    #[error("{name} ({id}) failed the test of its kernels in {dtype}: {reason}")]
    Untrusted { id: DeviceId, name: String, dtype: Dtype, reason: String },
}

impl DeviceError {
    /// A device that an error of a library has stopped. Its text may have a list of causes and a backtrace.
    pub fn stopped(error: impl ToString) -> Self {
        let text = error.to_string();
        let mut lines =
            text.lines().map(str::trim).take_while(|line| !line.starts_with("Backtrace"));
        let first = lines.next().unwrap_or_default();
        let cause = lines.skip_while(|line| *line != "Caused by:").skip(1).last();
        Self::Stopped { reason: cause.unwrap_or(first).to_string() }
    }

    /// Recognises a failure of the device `name` in the text of a panic or of a library's error.
    ///
    /// Libraries report some failures as text only. Each sign is a whole phrase of a library, so
    /// that no other panic counts as a failure of the device.
    pub fn from_message(name: &str, text: &str) -> Option<Self> {
        const OUT_OF_MEMORY: [&str; 4] = [
            "out of device memory allocating ",
            "An out-of-memory error happened during launch",
            "wgpu error: Out of Memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
        ];
        const STOPPED: [&str; 7] = [
            // cubecl and burn
            "The device is poisoned",
            "The device was poisoned during launch",
            "DevicePoisoned {",
            // wgpu
            "Parent device is lost",
            "Device is lost",
            // CUDA
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_LAUNCH_FAILED",
        ];
        let has_any = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
        if has_any(&OUT_OF_MEMORY) {
            return Some(DeviceError::OutOfMemory { name: name.to_string() });
        }
        has_any(&STOPPED).then(|| DeviceError::stopped(text))
    }

    pub fn hint(&self) -> &'static str {
        match self {
            DeviceError::Unknown { .. } => {
                "use auto, cpu, or a backend with an optional number: vulkan, vulkan:1, dx12, gl, \
                 cuda:0. `wgpt devices` lists the devices"
            }
            DeviceError::NotBuilt { backend: Backend::Cuda } => {
                "--device=vulkan reaches the same GPU; for CUDA, download the release whose name ends in \
                 -cuda, or build with `--features cuda`"
            }
            DeviceError::NotBuilt { .. } => "build with `--features wgpu`",
            DeviceError::Missing { .. } if cfg!(windows) => {
                "`wgpt devices` lists the devices; a missing GPU usually means a missing driver: get \
                 it from the GPU's maker (NVIDIA, AMD or Intel)"
            }
            DeviceError::Missing { .. } => {
                "`wgpt devices` lists the devices; a missing GPU usually means a missing driver (on \
                 Debian and Ubuntu: mesa-vulkan-drivers or NVIDIA's own)"
            }
            DeviceError::TooFew { .. } => {
                "start one process for each GPU of the best kind, or name a device that all processes \
                 share, like --device=vulkan:0"
            }
            DeviceError::NoCuda { .. } if cfg!(windows) => {
                "install NVIDIA's driver; until then use --device=vulkan, or --device=auto for the best \
                 device"
            }
            DeviceError::NoCuda { .. } => {
                "install NVIDIA's driver (on Debian with libcuda1) and check that `nvidia-smi` lists \
                 the GPU; until then use --device=vulkan, or --device=auto for the best device"
            }
            DeviceError::Crashed { .. } => {
                "update the driver, or use another device (`wgpt devices`): --device=auto leaves this \
                 driver out"
            }
            DeviceError::OutOfMemory { .. } => {
                "other programs may be using the memory: continue with --resume and a smaller \
                 --vram_budget or --micro_batch"
            }
            DeviceError::Stopped { .. } if cfg!(windows) => {
                "the driver was reset, or the device was disconnected: continue with --resume; if it \
                 happens again, Event Viewer may show the reason under Windows Logs, System"
            }
            DeviceError::Stopped { .. } => {
                "the driver was reset, or the device was disconnected: continue with --resume; if it \
                 happens again, the system's log may show the reason"
            }
            DeviceError::Dtype { .. } => {
                "set --dtype to one of those, or to auto; bfloat16 and tf32 need an NVIDIA GPU and a \
                 build with `--features cuda`, tf32 a GPU from 2020 or later"
            }
            DeviceError::TooSmall { .. } => "use another device (`wgpt devices`), or --device=cpu",
            DeviceError::Untrusted { .. } => {
                "update the driver, or use another --dtype or --device; `wgpt doctor --kernels` tests all \
                 kernels again, and --no-self-test uses them as they are"
            }
            DeviceError::Open { .. } => {
                "try another backend of the same GPU (`wgpt devices`), update its driver, or use \
                 --device=cpu"
            }
        }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let (exit, cause) = match error {
            DeviceError::OutOfMemory { .. } => (Exit::DeviceFailed, Some(Cause::OutOfMemory)),
            DeviceError::Stopped { .. } => (Exit::DeviceFailed, Some(Cause::DeviceLost)),
            DeviceError::Missing { .. }
            | DeviceError::TooFew { .. }
            | DeviceError::NoCuda { .. }
            | DeviceError::Crashed { .. }
            | DeviceError::Open { .. } => (Exit::NoDevice, Some(Cause::Unavailable)),
            DeviceError::Unknown { .. } | DeviceError::Dtype { .. } => (Exit::Usage, None),
            DeviceError::NotBuilt { .. }
            | DeviceError::Untrusted { .. }
            | DeviceError::TooSmall { .. } => (Exit::NoDevice, None),
        };
        Self { exit, cause, ..Self::new(error.to_string(), error.hint()) }
    }
}

fn list(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_recognised_by_their_text() {
        let kind = |text: &str| match DeviceError::from_message("gpu", text) {
            Some(DeviceError::OutOfMemory { .. }) => "out of memory",
            Some(DeviceError::Stopped { .. }) => "stopped",
            _ => "no failure of the device",
        };
        for (text, expected) in [
            ("out of device memory allocating 1024 bytes\n   0: a backtrace", "out of memory"),
            ("An out-of-memory error happened during launch", "out of memory"),
            ("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", "out of memory"),
            ("The device was poisoned during launch\nCaused by:\n  a timeout", "stopped"),
            ("it works: DevicePoisoned { reason: \"Unknown: reset\" }", "stopped"),
            ("Validation Error: Parent device is lost", "stopped"),
            ("DriverError(CUDA_ERROR_LAUNCH_FAILED, \"unspecified launch failure\")", "stopped"),
            ("index out of bounds: the len is 3 but the index is 3", "no failure of the device"),
            ("the connection to rank 1 was lost", "no failure of the device"),
            ("`Result::unwrap()`: PoisonError { .. }: a poisoned lock", "no failure of the device"),
            ("the file lost.txt does not exist", "no failure of the device"),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
        for (text, reason) in [
            ("it was lost\n   0: a backtrace", "it was lost"),
            ("An error\nCaused by:\n  a timeout\nBacktrace:\nnone", "a timeout"),
            ("An error\n\nCaused by:\n  In submit\n    it is lost\n", "it is lost"),
        ] {
            let error = DeviceError::stopped(text).to_string();
            assert_eq!(error, format!("the device stopped: {reason}"));
        }
    }
}
