//! NVIDIA cards through burn's CUDA backend.

use burn::tensor::{Device, DeviceType};

use super::{Backend, DeviceId, DeviceInfo, Kind};

/// What CUDA is opened by, which comes with NVIDIA's driver.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Where Linux says which driver of NVIDIA's it has loaded.
const LOADED: &str = "/proc/driver/nvidia/version";

/// Why there is no CUDA device, for people.
pub(super) fn absence() -> String {
    let loaded = std::fs::read_to_string(LOADED).ok();
    match loaded.as_deref().and_then(version) {
        Some(version) => format!(
            "NVIDIA's driver {version} is loaded, but CUDA finds no card: {LIBRARY} is missing or \
             of another version"
        ),
        None => format!("no NVIDIA driver found ({LIBRARY}), or no card that it serves"),
    }
}

/// The version in what `LOADED` says, such as 570.86.10.
fn version(loaded: &str) -> Option<&str> {
    let mut words = loaded.lines().next()?.split_whitespace();
    words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

/// The cards that the CUDA driver lists; none without a driver.
pub(super) fn devices() -> Vec<DeviceInfo> {
    let cards = Device::enumerate(DeviceType::Cuda).into_vec();
    cards
        .iter()
        .enumerate()
        .map(|(index, card)| {
            let identity = card.identity();
            let address = identity.as_ref().and_then(|card| card.physical.as_ref()?.pci_address);
            DeviceInfo {
                id: DeviceId { backend: Backend::Cuda, index },
                name: identity.map_or_else(|| "NVIDIA card".to_string(), |card| card.name),
                kind: Kind::Discrete,
                driver: "CUDA".into(),
                max_binding: None,
                // As Vulkan's, by which the driver is asked what is free.
                pci: address.map(|address| address.to_string()),
            }
        })
        .collect()
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
