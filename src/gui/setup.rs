//! The next run: its data, time, device and settings.

use eframe::egui::{self, RichText, Ui};

use super::intent::Intent;
use super::state::{AUTO, SettingsForm, Shared};
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

/// Titles of the presets.
const TITLES: &[(&str, &str)] = &[
    ("demo", "Demo: a tiny model, done in minutes"),
    ("chat", "Chat: a tiny model that answers, done in minutes"),
    ("shakespeare-char", "Small, 10.7M: nanoGPT's Shakespeare by character"),
    ("gpt2-15m", "15M: GPT-2's shape, for an hour on a small GPU"),
    ("gpt2-30m", "30M: GPT-2's shape"),
    ("gpt2-60m", "60M: GPT-2's shape"),
    ("gpt2", "GPT-2, 124M"),
    ("gpt2-medium", "GPT-2 medium, 350M"),
    ("gpt2-large", "GPT-2 large, 774M"),
    ("gpt2-xl", "GPT-2 XL, 1558M"),
    ("llama-15m", "15M: Llama's shape, for an hour on a small GPU"),
    ("llama-30m", "30M: Llama's shape"),
    ("llama-60m", "60M: Llama's shape"),
    ("llama-124m", "124M: Llama's shape"),
    ("smollm2-135m", "SmolLM2, 135M"),
    ("smollm2-360m", "SmolLM2, 360M"),
    ("qwen3-0.6b", "Qwen3, 0.6B"),
    ("card-4gb", "A night on a graphics card with 4 GB: 51M"),
    ("card-6gb", "A night on a graphics card with 6 GB: 51M"),
    ("card-8gb", "A night on a graphics card with 8 GB: 65M"),
    ("card-12gb", "A night on a graphics card with 12 GB: 82M"),
    ("card-16gb", "A night on a graphics card with 16 GB: 124M"),
    ("card-24gb", "A night on a graphics card with 24 GB: 200M"),
    ("largest-4gb", "The largest that fits 4 GB: GPT-2, 124M"),
    ("largest-6gb", "The largest that fits 6 GB: GPT-2 medium, 350M"),
    ("largest-8gb", "The largest that fits 8 GB: GPT-2 medium, 350M"),
    ("largest-12gb", "The largest that fits 12 GB: GPT-2 large, 774M"),
    ("largest-16gb", "The largest that fits 16 GB: GPT-2 large, 774M"),
    ("largest-24gb", "The largest that fits 24 GB: GPT-2 XL, 1558M"),
];

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
    let Shared { settings, shown, fit, .. } = shared;
    let form = &mut settings.form;
    let busy = shown.has_own_trainer().then_some("A run is active. Stop it to start another.");
    let (problem, fixes) = match (busy, form.problem()) {
        (Some(_), _) => (None, None),
        (None, Some(problem)) => (Some(problem), None),
        (None, None) => fit.refusal(form).map(|refusal| (refusal.reason, refusal.fixes)).unzip(),
    };
    let text = match fit.seconds(form) {
        Some(seconds) => format!("Start training, about {}", estimate(seconds)),
        None => "Start training".into(),
    };
    let mut button = egui::Button::new(RichText::new(text).strong());
    if problem.is_none() && busy.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    // The problem is shown next to the button.
    let disabled = busy.or(problem.as_ref().map(|_| ""));
    let help = "Start a run with these settings, in a new folder";
    let is_clicked = action(ui, button, disabled, help);
    if let Some(problem) = problem {
        note(ui, problem, theme::warning(ui));
    }
    fit::fixes(ui, form, &fixes.unwrap_or_default());
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
    TITLES.iter().find(|(name, _)| *name == preset).map_or(preset, |(_, title)| title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_has_a_title() {
        for name in preset_names() {
            assert_ne!(title(name), name);
        }
        assert_eq!(TITLES.len(), preset_names().count());
    }
}
