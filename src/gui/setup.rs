//! The next run: its data, time, device and settings.

use eframe::egui::{self, RichText, Ui};

use super::intent::Intent;
use super::state::{AUTO, Refusal, SettingsForm, Shared};
use super::target::IS_PAGE;
use super::widgets::{action, labelled_row, note, weak_note};
use super::{fit, theme};
use crate::config::preset_names;
use crate::plan::DeviceKind;
use crate::protocol::DeviceLine;
use crate::text::estimate;

mod data_choice;
mod setting_rows;
mod time_choice;

/// A line for each preset: its name and its title.
const TITLES: &str = include_str!("../../assets/presets/titles.txt");

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let chosen = data_choice::show(ui, shared);
    ui.add_space(2.0);
    let measured = time_choice::show(ui, shared);
    ui.add_space(2.0);
    device(ui, &mut shared.settings.device, &shared.devices);
    ui.add_space(4.0);
    let started = start(ui, shared);
    ui.add_space(8.0);
    if preset(ui, &mut shared.settings.form, shared.times.title()) {
        shared.times.clear();
    }
    let settings = egui::CollapsingHeader::new("All settings").default_open(false);
    settings.show_unindented(ui, |ui| {
        setting_rows::show(ui, &mut shared.settings.form, &mut shared.setting_filter);
    });
    chosen.or(measured).or(started)
}

/// Draws the start button. If it is disabled: the reason, and the changes that enable it.
fn start(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let refusal = shared.refusal();
    let Shared { settings, shown, fit, .. } = shared;
    let form = &mut settings.form;
    let busy = shown.has_own_trainer().then_some("A run is active. Stop it to start another.");
    let text = match fit.seconds(form) {
        Some(seconds) => format!("Start training, about {}", estimate(seconds)),
        None => "Start training".into(),
    };
    let mut button = egui::Button::new(RichText::new(text).strong());
    // The reason is shown next to the button.
    let disabled = busy.or(refusal.as_ref().map(|_| ""));
    if disabled.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    let help = "Start a run with these settings, in a new folder";
    let is_clicked = action(ui, button, disabled, help);
    if let Some(Refusal { reason, fixes }) = refusal {
        note(ui, reason, theme::warning(ui));
        fit::fixes(ui, form, &fixes);
    }
    is_clicked.then_some(Intent::Start)
}

/// Draws the list of presets, with `instead` as the chosen one. Returns true if another one was chosen.
fn preset(ui: &mut Ui, form: &mut SettingsForm, instead: Option<String>) -> bool {
    let mut selected = form.preset();
    let help = "Starting values for every setting that you do not change below.";
    let shown = instead.unwrap_or_else(|| title(selected).to_string());
    select(ui, "Preset", &shown, help, 320.0, |ui| {
        for name in preset_names() {
            ui.selectable_value(&mut selected, name, title(name));
        }
    });
    let is_new = selected != form.preset();
    if is_new {
        form.set_preset(selected);
    }
    is_new
}

/// Draws a labelled list of this height, in points, as wide as the panel.
fn select(
    ui: &mut Ui,
    name: &str,
    selected: &str,
    help: &str,
    height: f32,
    choices: impl FnOnce(&mut Ui),
) {
    labelled_row(ui, name, |ui, label| {
        let combo = egui::ComboBox::from_id_salt(name).selected_text(selected).height(height);
        let shown = combo.width(ui.available_width()).truncate().show_ui(ui, choices);
        shown.response.labelled_by(label).on_hover_text(help);
    });
}

fn device(ui: &mut Ui, choice: &mut String, devices: &[DeviceLine]) {
    if IS_PAGE {
        let name = devices.first().map_or("Looking for a device...", |device| &device.name);
        labelled_row(ui, "Device", |ui, _| ui.add(egui::Label::new(name).truncate()));
        return;
    }
    let name = |info: &DeviceLine| format!("{} ({})", info.name, info.id);
    let selected = devices.iter().find(|info| info.id == *choice);
    let is_auto = selected.is_none() && choice == AUTO;
    let selected_text = match selected {
        Some(info) => name(info),
        None if is_auto => "Automatic".into(),
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
    let warning = match selected {
        Some(info) if info.kind == DeviceKind::Software => {
            "This is a software renderer, not a GPU: very slow."
        }
        None if devices.is_empty() => {
            weak_note(ui, "Looking for devices...");
            return;
        }
        None if is_auto && devices.iter().all(|info| !info.kind.is_gpu()) => {
            "No graphics card found. Training on the CPU is slow."
        }
        _ => return,
    };
    note(ui, warning, theme::warning(ui));
}

fn title(preset: &str) -> &str {
    let mut titles = TITLES.lines().filter_map(|line| line.split_once(' '));
    titles.find(|(name, _)| *name == preset).map_or(preset, |(_, title)| title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_title() {
        for name in preset_names() {
            assert_ne!(title(name), name);
        }
        assert_eq!(TITLES.lines().count(), preset_names().count());
    }
}
