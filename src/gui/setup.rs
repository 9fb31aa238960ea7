//! The setup panel: preset, data, device and settings of the next run.

use eframe::egui::{self, RichText};

use super::fit::{FitState, fixes};
use super::form::Form;
use super::{Intent, platform, theme};
use crate::config::{Budget, Config, preset_names};
use crate::plan::DeviceKind;
use crate::protocol::{DeviceLine, Progress};
use crate::runs;

mod data;
mod keys;
mod suggest;

pub(super) use data::adapt_preset;

/// State of the panel between frames.
pub(super) struct SetupState {
    /// The device as `--device` takes it.
    pub device: String,
    /// The data that is being tokenized, and the completed fraction, 0 to 1.
    pub preparing: Option<(String, f32)>,
    /// Data that was tokenized, and sentences about what was skipped in it.
    pub data_warnings: (String, Vec<String>),
    /// Data that was just chosen: a preset whose model is too large for it is replaced once its
    /// size is known.
    pub chosen: Option<String>,
    /// The sentence about a preset that was replaced, and the preset in its place.
    replaced: Option<(String, &'static str)>,
    /// The preset that suits the data.
    suited: Option<data::Suited>,
    /// Search text for the settings; empty shows all.
    filter: String,
    /// When the text of the clipboard was requested, in seconds of egui's clock.
    paste_requested: Option<f64>,
    /// True if the last request found no text.
    clipboard_was_empty: bool,
}

impl Default for SetupState {
    fn default() -> Self {
        Self {
            device: AUTO.into(),
            preparing: None,
            data_warnings: Default::default(),
            chosen: None,
            replaced: None,
            suited: None,
            filter: String::new(),
            paste_requested: None,
            clipboard_was_empty: false,
        }
    }
}

/// The value of `--device` that picks the best device.
const AUTO: &str = "auto";

/// Titles of the presets. Those for a GPU size name the model that they train.
const TITLES: &[(&str, &str)] = &[
    ("demo", "Demo: a tiny model, done in minutes"),
    ("chat", "Chat: a tiny model that answers, done in minutes"),
    ("shakespeare-char", "Small, 10.7M: nanoGPT's Shakespeare by character"),
    ("gpt2", "GPT-2, 124M"),
    ("gpt2-medium", "GPT-2 medium, 350M"),
    ("gpt2-large", "GPT-2 large, 774M"),
    ("gpt2-xl", "GPT-2 XL, 1558M"),
    ("card-4gb", "4 GB graphics card: GPT-2, 124M"),
    ("card-6gb", "6 GB graphics card: GPT-2 medium, 350M"),
    ("card-8gb", "8 GB graphics card: GPT-2 medium, 350M"),
    ("card-12gb", "12 GB graphics card: GPT-2 large, 774M"),
    ("card-16gb", "16 GB graphics card: GPT-2 large, 774M"),
    ("card-24gb", "24 GB graphics card: GPT-2 XL, 1558M"),
];

/// Width of the labels before preset, data and device, in points.
const LABEL_WIDTH: f32 = 44.0;

/// The devices and data sets that can be selected.
pub(super) struct Choices<'a> {
    /// The available devices.
    pub devices: &'a [DeviceLine],
    /// Stored data sets: the value of `data`, and the name to show.
    pub data: &'a [(String, String)],
}

/// The runs that matter to the next one.
pub(super) struct Runs<'a> {
    /// The displayed run.
    pub progress: &'a Progress,
    /// Its configuration while it is active.
    pub running: Option<&'a Config>,
    /// True while this window trains a run: no other can start.
    pub busy: bool,
}

/// Draws the panel.
pub(super) fn show(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    fit: &mut FitState,
    choices: &Choices<'_>,
    runs: &Runs<'_>,
) -> Option<Intent> {
    let mut intent = start(ui, form, fit, runs.busy);
    if let Some(running) = runs.running {
        pending_changes(ui, form, runs.progress, running);
    }
    ui.add_space(2.0);
    preset(ui, form);
    intent = data::show(ui, form, state, fit, choices).or(intent);
    device(ui, state, choices);
    ui.separator();
    keys::show(ui, form, &mut state.filter);
    intent
}

/// Draws the start button. If it is disabled: the reason, and the changes that enable it.
fn start(ui: &mut egui::Ui, form: &mut Form, fit: &mut FitState, busy: bool) -> Option<Intent> {
    let refusal = fit.refusal(form).filter(|_| !busy);
    let problem = match busy {
        true => Some("A run is active. Stop it to start another.".to_string()),
        false => form.problem().or(refusal.as_ref().map(|refusal| refusal.reason.clone())),
    };
    let mut button = egui::Button::new(RichText::new("Start training").strong());
    if problem.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    let mut response = ui.add_enabled(problem.is_none(), button);
    response = response.on_hover_text("Start a run with these settings, in a new folder");
    if let Some(problem) = problem {
        // Said once: beside the button, or at it.
        match busy {
            true => response = response.on_disabled_hover_text(&problem),
            false => drop(wrapped(ui, RichText::new(problem).small().color(theme::warning(ui)))),
        }
    }
    if let Some(refusal) = refusal.filter(|_| form.problem().is_none()) {
        fixes::show(ui, form, &refusal.fixes);
    }
    response.clicked().then_some(Intent::Start)
}

/// Notes that changed settings do not affect the active run.
fn pending_changes(ui: &mut egui::Ui, form: &Form, progress: &Progress, running: &Config) {
    let Ok(config) = form.config() else { return };
    // The budget is the exception: the active run receives it at once.
    let sent = progress.forecast.as_ref().and_then(|forecast| forecast.budget_bytes);
    let is_sent = matches!(config.vram_budget, Budget::Bytes(budget) if Some(budget) == sent);
    let changes: Vec<String> = runs::difference(config, running)
        .into_iter()
        .filter(|(key, ..)| !(*key == "vram_budget" && is_sent))
        .map(|(key, next, now)| format!("{key}: {} (now {})", visible(&next), visible(&now)))
        .collect();
    if !changes.is_empty() {
        let text = RichText::new("Changed settings apply to the next run").small();
        wrapped(ui, text.color(theme::warning(ui))).on_hover_text(changes.join("\n"));
    }
}

fn preset(ui: &mut egui::Ui, form: &mut Form) {
    row(ui, "Preset", |ui, label| {
        let mut selected = form.preset();
        let combo = egui::ComboBox::from_id_salt("preset").selected_text(title(selected));
        let combo = combo.width(ui.available_width()).height(320.0).truncate();
        let shown = combo.show_ui(ui, |ui| {
            for name in preset_names() {
                ui.selectable_value(&mut selected, name, title(name));
            }
        });
        let hover = "Starting values for every setting that you do not change below.";
        shown.response.labelled_by(label).on_hover_text(hover);
        if selected != form.preset() {
            form.set_preset(selected);
        }
    });
}

fn device(ui: &mut egui::Ui, state: &mut SetupState, choices: &Choices<'_>) {
    if platform::IS_PAGE {
        let device = choices.devices.first();
        let name = device.map_or("Looking for a device...", |device| device.name.as_str());
        row(ui, "Device", |ui, _| ui.add(egui::Label::new(name).truncate()));
        return;
    }
    let devices = choices.devices;
    let name = |info: &DeviceLine| format!("{} ({})", info.name, info.id);
    let selected = devices.iter().find(|info| info.id == state.device);
    let selected_text = match selected {
        Some(info) => name(info),
        None if state.device == AUTO => "Automatic".into(),
        None if devices.is_empty() => state.device.clone(),
        None => format!("{} (not found)", state.device),
    };
    row(ui, "Device", |ui, label| {
        let combo = egui::ComboBox::from_id_salt("device").selected_text(selected_text);
        let shown = combo.width(ui.available_width()).truncate().show_ui(ui, |ui| {
            ui.selectable_value(&mut state.device, AUTO.into(), "Automatic");
            for info in devices {
                ui.selectable_value(&mut state.device, info.id.clone(), name(info));
            }
        });
        let hover = "The device to train on. Automatic picks the best graphics card.";
        shown.response.labelled_by(label).on_hover_text(hover);
    });
    let is_no_gpu = |info: &DeviceLine| !info.kind.is_gpu();
    let warning = match selected {
        Some(info) if info.kind == DeviceKind::Software => {
            "This is a software renderer, not a graphics card: very slow."
        }
        None if devices.is_empty() => "Looking for devices...",
        None if state.device == AUTO && devices.iter().all(is_no_gpu) => {
            "No graphics card found. Training on the CPU is slow."
        }
        _ => return,
    };
    wrapped(ui, RichText::new(warning).small().color(theme::warning(ui)));
}

/// Draws a labelled row. `add` receives the id of the label.
fn row<R>(ui: &mut egui::Ui, name: &str, add: impl FnOnce(&mut egui::Ui, egui::Id) -> R) -> R {
    let row = ui.horizontal(|ui| {
        let label = cell(ui, LABEL_WIDTH, egui::Label::new(name));
        add(ui, label.id)
    });
    row.inner
}

/// Draws a label in a cell of fixed width.
fn cell(ui: &mut egui::Ui, width: f32, label: egui::Label) -> egui::Response {
    let size = egui::vec2(width, ui.spacing().interact_size.y);
    let layout = egui::Layout::left_to_right(egui::Align::Center);
    let cell = ui.allocate_ui_with_layout(size, layout, |ui| {
        ui.set_min_size(size);
        ui.add(label.truncate())
    });
    cell.inner
}

fn wrapped(ui: &mut egui::Ui, text: RichText) -> egui::Response {
    ui.add(egui::Label::new(text).wrap())
}

fn title(preset: &str) -> &str {
    TITLES.iter().find(|(name, _)| *name == preset).map_or(preset, |(_, title)| title)
}

/// Returns a value for display, with empty text and white space made visible.
fn visible(text: &str) -> String {
    match text {
        "" => "empty".into(),
        text if text.trim() != text => format!("{text:?}"),
        text => text.into(),
    }
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
