//! NVIDIA cards through burn's CUDA backend.

use burn::tensor::{Device, DeviceType};

use super::{Backend, DeviceId, DeviceInfo, Kind};

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
