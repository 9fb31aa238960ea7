//! NVIDIA GPUs through burn's CUDA backend.

use burn::tensor::Device;
use burn_cubecl::CubeDevice;

use super::{Backend, DeviceId, DeviceInfo, DeviceKind, dtypes, meter};
use crate::config::{Abilities, Dtype};

/// The library that opens CUDA. It comes with NVIDIA's driver.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The file in which Linux names the loaded NVIDIA driver.
const LOADED: &str = "/proc/driver/nvidia/version";

/// Explains to the user why no CUDA device is available.
pub(super) fn absence() -> String {
    let loaded = std::fs::read_to_string(LOADED).ok();
    match loaded.as_deref().and_then(version) {
        Some(version) => format!(
            "NVIDIA's driver {version} is loaded, but CUDA finds no GPU: {LIBRARY} is missing or has \
             another version"
        ),
        None => format!("no NVIDIA driver found ({LIBRARY}), or no GPU that it supports"),
    }
}

/// Returns the driver's version, like 570.86.10, from the text of `LOADED`.
fn version(loaded: &str) -> Option<&str> {
    let mut words = loaded.lines().next()?.split_whitespace();
    words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

/// Lists the GPUs that the CUDA driver reports, which are none without a driver. This opens all of
/// them, and each takes memory until the process ends.
pub(super) fn devices() -> Vec<DeviceInfo> {
    // burn's own list would also open the devices of the other APIs, whose drivers print messages.
    (0..)
        .take_while(|&index| CubeDevice::cuda(index).is_ok())
        .map(|index| {
            let gpu = Device::cuda(index);
            let (dtypes, identity) = (dtypes(&gpu), gpu.identity());
            let address = identity.as_ref().and_then(|gpu| gpu.physical.as_ref()?.pci_address);
            DeviceInfo {
                id: DeviceId { backend: Backend::Cuda, index },
                name: identity.map_or_else(|| "NVIDIA GPU".to_string(), |gpu| gpu.name),
                kind: DeviceKind::Discrete,
                driver: "CUDA".into(),
                max_binding: None,
                // In Vulkan's form, under which the driver reports free memory.
                pci: address.map(|address| address.to_string()),
                abilities: Abilities {
                    tf32: dtypes.contains(&Dtype::Tf32),
                    bfloat16: dtypes.contains(&Dtype::Bfloat16),
                    float16: dtypes.contains(&Dtype::Float16),
                    ..Abilities::default()
                },
                adapter: None,
            }
        })
        .collect()
}

/// Returns a warning if this NVIDIA GPU has no tensor cores for `dtype`, which slows products down.
pub(crate) fn without_tensor_cores(info: &DeviceInfo, dtype: Dtype) -> Option<String> {
    let DeviceInfo { id, name, .. } = info;
    if id.backend != Backend::Cuda || dtype == Dtype::Float32 {
        return None;
    }
    let without = !meter::has_tensor_cores(&Device::cuda(id.index), dtype);
    without.then(|| {
        format!(
            "{name} ({id}) has no tensor cores for {dtype}: its products run without, several times \
             slower than with them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_read() {
        let loaded = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 \
                      19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        assert_eq!(version(loaded), Some("535.183.01"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release\n";
        assert_eq!(version(open), Some("570.86.10"));
        assert_eq!(version(""), None);
    }
}
