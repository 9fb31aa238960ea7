//! NVIDIA cards through burn's CUDA backend.

use burn::tensor::{Device, DeviceType};

use super::{Backend, DeviceId, DeviceInfo, Kind};

/// The cards that the CUDA driver lists; none without a driver.
pub(super) fn devices() -> Vec<DeviceInfo> {
    let cards = Device::enumerate(DeviceType::Cuda).into_vec();
    cards
        .iter()
        .enumerate()
        .map(|(index, card)| DeviceInfo {
            id: DeviceId { backend: Backend::Cuda, index },
            name: card
                .identity()
                .map_or_else(|| "NVIDIA card".to_string(), |identity| identity.name),
            kind: Kind::Discrete,
            driver: "CUDA".into(),
            max_binding: None,
            pci: None,
        })
        .collect()
}
