//! The device of the next run.

use eframe::egui::{self, Ui};

use super::select;
use crate::gui::state::AUTO;
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::labelled_row;
use crate::plan::DeviceKind;
use crate::protocol::DeviceLine;

/// Draws the choice of a device. A page has one.
pub(super) fn show(ui: &mut Ui, choice: &mut String, devices: &[DeviceLine]) {
    if IS_PAGE {
        let name = devices.first().map_or("Looking for a device...", |device| &device.name);
        labelled_row(ui, "Device", |ui, _| ui.add(egui::Label::new(name).truncate()));
        return;
    }
    let name = |info: &DeviceLine| format!("{} ({})", info.name, info.id);
    let selected_text = match devices.iter().find(|info| info.id == *choice) {
        Some(info) => name(info),
        None if choice == AUTO => "Automatic".into(),
        None if devices.is_empty() => choice.clone(),
        None => format!("{choice} (not found)"),
    };
    let help = "The device to train on. Automatic picks the best GPU.";
    select(ui, "Device", &selected_text, help, ui.spacing().combo_height, |ui| {
        ui.selectable_value(choice, AUTO.into(), "Automatic");
        for info in devices {
            ui.selectable_value(choice, info.id.clone(), name(info));
        }
    });
}

/// Returns what is to be said about the choice.
pub(super) fn warning(choice: &str, devices: &[DeviceLine]) -> Option<&'static str> {
    match devices.iter().find(|info| info.id == choice) {
        Some(info) if info.kind == DeviceKind::Software => {
            Some("This is a software renderer, not a GPU: very slow.")
        }
        None if choice == AUTO && devices.iter().all(|info| !info.kind.is_gpu()) => {
            (!devices.is_empty()).then_some("No graphics card found. Training on the CPU is slow.")
        }
        _ => None,
    }
}
