//! The value of `--device`.

use std::str::FromStr;

use crate::gpu::error::DeviceError;
use crate::plan::Backend;
use crate::protocol::DeviceId;

/// The value of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best GPU, else the CPU.
    #[default]
    Auto,
    Named(DeviceId),
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown { name: name.to_string() };
        if name.eq_ignore_ascii_case("auto") {
            return Ok(DeviceChoice::Auto);
        }
        let (backend, index) = match name.split_once(':') {
            Some((backend, index)) => (backend, index.parse().map_err(|_| unknown())?),
            None => (name, 0),
        };
        let mut backends = Backend::ALL.iter().copied().zip(Backend::WORDS);
        let (backend, _) =
            backends.find(|(_, known)| known.eq_ignore_ascii_case(backend)).ok_or_else(unknown)?;
        if backend == Backend::Cpu && index != 0 {
            return Err(unknown());
        }
        Ok(DeviceChoice::Named(DeviceId { backend, index }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_and_print_alike() {
        for name in ["cpu", "vulkan:0", "dx12:3", "gl:1", "cuda:0"] {
            let DeviceChoice::Named(id) = name.parse().unwrap() else { panic!("{name}") };
            assert_eq!(id.to_string(), name);
        }
        assert_eq!("auto".parse::<DeviceChoice>().unwrap(), DeviceChoice::Auto);
        for bad in ["", "cpu:1", "vulkan:", "vulkan:x", "tpu", "vulkan:-1"] {
            assert!(bad.parse::<DeviceChoice>().is_err(), "{bad}");
        }
    }
}
