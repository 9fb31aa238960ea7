//! What a run may take of its device.

use crate::config::{Budget, Config, bytes};
use crate::gpu::{Backend, DeviceInfo, Kind, reported_memory};
use crate::ops::{Implementation, OpsMode};
use crate::plan::Limits;

/// The limits of a run on a device, and where its budget comes from, for people.
pub fn limits(config: &Config, device: &DeviceInfo, mode: OpsMode) -> (Limits, String) {
    let card = reported_memory(device);
    let (budget, source) = match (config.vram_budget, &card) {
        (Budget::Bytes(budget), _) => (Some(budget), format!("{}, as asked", bytes(budget))),
        (Budget::Unlimited, _) => (None, "none, as asked".to_string()),
        (Budget::Percent(share), Some(card)) => {
            let budget = (card.total as f64 * share / 100.0) as u64;
            let text =
                format!("{}, {share}% of {} ({})", bytes(budget), bytes(card.total), card.source);
            (Some(budget), text)
        }
        (Budget::Auto, Some(card)) => {
            let budget = card.available();
            let text = format!(
                "{}, of {} that are free, of {} in all ({})",
                bytes(budget),
                bytes(card.free),
                bytes(card.total),
                card.source
            );
            (Some(budget), text)
        }
        (Budget::Auto, None) if device.kind == Kind::Cpu => (None, "none".to_string()),
        (Budget::Auto | Budget::Percent(_), None) => {
            let text = "none: nobody says what the device has; --vram_budget=10GiB sets one";
            (None, text.to_string())
        }
    };
    let pools = device.kind != Kind::Cpu;
    let cube = match mode.implementation {
        Implementation::Cube => pools,
        _ => device.id.backend == Backend::Cuda,
    };
    let memory = card.map(|card| card.total);
    (Limits { budget, largest_tensor: device.max_binding, pools, cube, memory }, source)
}
