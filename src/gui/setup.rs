//! What is trained, on what and where: the form.

use eframe::egui::{self, RichText};

use super::form::Form;
use super::{Intent, host, theme};
use crate::config::{Budget, Config, preset_names};
use crate::gpu::{DeviceInfo, Kind};
use crate::progress::Progress;
use crate::run_index;

mod keys;

/// How the panel stands.
pub(super) struct SetupState {
    /// The device as `--device` takes it.
    pub device: String,
    /// What is being turned into tokens, and how much of it is done, from 0 to 1.
    pub preparing: Option<(String, f32)>,
    /// Part of the settings' names to show; empty for all of them.
    filter: String,
    /// When the clipboard was asked for its text, in seconds of the window's clock.
    asked_clipboard: Option<f64>,
    /// Whether it had none.
    clipboard_was_empty: bool,
}

impl Default for SetupState {
    fn default() -> Self {
        Self {
            device: AUTO.into(),
            preparing: None,
            filter: String::new(),
            asked_clipboard: None,
            clipboard_was_empty: false,
        }
    }
}

/// The device that is found by itself.
const AUTO: &str = "auto";

/// Data that comes with the program.
const BUILTIN: &str = "builtin:stories";

/// What presets are called; those for cards by the model that trains there.
const TITLES: &[(&str, &str)] = &[
    ("demo", "Demo: a tiny model, a first run in minutes"),
    ("shakespeare-char", "Shakespeare by letters, as in nanoGPT"),
    ("gpt2", "GPT-2, 124M"),
    ("gpt2-medium", "GPT-2 medium, 350M"),
    ("gpt2-large", "GPT-2 large, 774M"),
    ("gpt2-xl", "GPT-2 XL, 1558M"),
    ("card-4gb", "Card with 4 GB: GPT-2, 124M"),
    ("card-6gb", "Card with 6 GB: GPT-2, 124M"),
    ("card-8gb", "Card with 8 GB: GPT-2, 124M"),
    ("card-12gb", "Card with 12 GB: GPT-2 medium, 350M"),
    ("card-16gb", "Card with 16 GB: GPT-2 medium, 350M"),
    ("card-24gb", "Card with 24 GB: GPT-2 large, 774M"),
];

/// Width of the words before preset, data and device, in points.
const HEAD_WIDTH: f32 = 44.0;

/// How long a clipboard is waited for, in seconds. One without text does not answer.
const CLIPBOARD_ANSWERS: f64 = 0.5;

/// What there is to choose from.
pub(super) struct Choices<'a> {
    /// Devices.
    pub devices: &'a [DeviceInfo],
    /// The name of the device, where there is no choice.
    pub only_device: Option<&'a str>,
    /// Data that is at hand, as it is typed and as it is called.
    pub data: &'a [(String, String)],
}

/// Draws the form. `running` is the configuration of the run that is shown, if it is going on; no other
/// can begin while this window is `busy` with one of its own.
pub(super) fn show(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    choices: &Choices<'_>,
    progress: &Progress,
    running: Option<&Config>,
    busy: bool,
) -> Option<Intent> {
    let mut intent = start(ui, form, busy);
    if let Some(running) = running {
        pending(ui, form, progress, running);
    }
    ui.add_space(2.0);
    preset(ui, form);
    intent = data(ui, form, state, choices.data).or(intent);
    device(ui, state, choices);
    ui.separator();
    keys::show(ui, form, &mut state.filter);
    intent
}

fn start(ui: &mut egui::Ui, form: &Form, is_running: bool) -> Option<Intent> {
    let problem = match is_running {
        true => Some("A run is going on. Stop it to start another.".to_string()),
        false => form.problem(),
    };
    let mut button = egui::Button::new(RichText::new("Start training").strong());
    if problem.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    let mut response = ui.add_enabled(problem.is_none(), button);
    response = response.on_hover_text("Begins a run with these settings, in a folder of its own");
    if let Some(problem) = problem {
        response = response.on_disabled_hover_text(&problem);
        if !is_running {
            wrapped(ui, RichText::new(problem).small().color(theme::warning(ui)));
        }
    }
    response.clicked().then_some(Intent::Start)
}

/// Says that a run does not follow what is typed while it goes on.
fn pending(ui: &mut egui::Ui, form: &Form, progress: &Progress, running: &Config) {
    let Ok(config) = form.config() else { return };
    // The budget alone is told to the run at once.
    let told = progress.forecast.as_ref().and_then(|forecast| forecast.budget_bytes);
    let is_told = matches!(config.vram_budget, Budget::Bytes(budget) if Some(budget) == told);
    let changes: Vec<String> = run_index::difference(config, running)
        .into_iter()
        .filter(|(key, ..)| !(*key == "vram_budget" && is_told))
        .map(|(key, here, there)| format!("{key}: {}, now {}", quoted(&here), quoted(&there)))
        .collect();
    if !changes.is_empty() {
        let text = RichText::new("Settings changed: they hold for the next start").small();
        wrapped(ui, text.color(theme::warning(ui))).on_hover_text(changes.join("\n"));
    }
}

fn preset(ui: &mut egui::Ui, form: &mut Form) {
    row(ui, "Preset", |ui, label| {
        let mut picked = form.preset();
        let combo = egui::ComboBox::from_id_salt("preset").selected_text(title(picked));
        let combo = combo.width(ui.available_width()).height(320.0).truncate();
        let shown = combo.show_ui(ui, |ui| {
            for name in preset_names() {
                ui.selectable_value(&mut picked, name, title(name));
            }
        });
        let hover = "Where to begin. It sets what you do not set below.";
        shown.response.labelled_by(label).on_hover_text(hover);
        if picked != form.preset() {
            form.set_preset(picked);
        }
    });
}

fn data(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    stored: &[(String, String)],
) -> Option<Intent> {
    let mut intent = pasted(ui, state);
    let chosen = form.text("data");
    row(ui, "Data", |ui, _| match chosen.as_str() {
        "" => ui.weak("nothing yet"),
        BUILTIN => ui.label("built-in stories"),
        path => ui.add(egui::Label::new(path).truncate()),
    });
    about_data(ui, form, &chosen);
    if let Some((what, share)) = &state.preparing {
        let words = format!("Preparing {what}");
        ui.add(egui::ProgressBar::new(*share).text(RichText::new(words).small()));
    }
    ui.add_enabled_ui(state.preparing.is_none(), |ui| {
        ui.horizontal_wrapped(|ui| {
            let hover = "Simple stories made up by the program: nothing to download";
            if ui.button("Built-in stories").on_hover_text(hover).clicked() {
                form.set("data", BUILTIN);
            }
            let hover = host::TEXTS_HINT;
            if ui.button("Texts...").on_hover_text(hover).clicked() {
                intent = Some(Intent::ChooseTexts);
            }
            if !stored.is_empty() {
                ui.menu_button("Stored", |ui| {
                    for (spec, name) in stored {
                        if ui.button(name).clicked() {
                            form.set("data", spec.as_str());
                        }
                    }
                });
            }
            if host::IS_PAGE {
                return;
            }
            let hover =
                "A folder that was prepared before, by wgpt or by nanoGPT, or one with texts";
            if ui.button("Folder...").on_hover_text(hover).clicked() {
                intent = Some(Intent::ChooseData);
            }
            let hover = "Train on the text that is on the clipboard";
            if ui.button("Paste").on_hover_text(hover).clicked() {
                ui.ctx().send_viewport_cmd(egui::ViewportCommand::RequestPaste);
                state.asked_clipboard = Some(ui.input(|input| input.time));
                state.clipboard_was_empty = false;
            }
        });
    });
    let hint = match state.clipboard_was_empty {
        true => "There is no text on the clipboard.",
        false => host::drop_hint(),
    };
    wrapped(ui, RichText::new(hint).small().weak());
    intent
}

fn about_data(ui: &mut egui::Ui, form: &Form, chosen: &str) {
    let text = match &form.data {
        _ if chosen.is_empty() => RichText::new("Choose texts to learn from.").weak(),
        None => RichText::new("Looking at it...").weak(),
        Some(Err(error)) => RichText::new(error).color(theme::error(ui)),
        Some(Ok(info)) => RichText::new(format!(
            "{} tokens to train on, {} to check with, {} different ones",
            amount(info.train_tokens),
            amount(info.val_tokens),
            amount(u64::from(info.vocab_size))
        ))
        .weak(),
    };
    wrapped(ui, text.small());
}

/// The text of the clipboard, once it comes after it was asked for.
fn pasted(ui: &egui::Ui, state: &mut SetupState) -> Option<Intent> {
    let asked = match state.asked_clipboard {
        // There a key asks, and no button can.
        None if host::IS_PAGE && !ui.ctx().egui_wants_keyboard_input() => f64::NEG_INFINITY,
        asked => asked?,
    };
    // Taken out: no text field that has the focus is meant.
    let text = ui.input_mut(|input| {
        let is_paste = |event: &egui::Event| matches!(event, egui::Event::Paste(_));
        let at = input.events.iter().position(is_paste)?;
        match input.events.remove(at) {
            egui::Event::Paste(text) => Some(text),
            _ => None,
        }
    });
    if text.is_none() && ui.input(|input| input.time) - asked < CLIPBOARD_ANSWERS {
        ui.ctx().request_repaint();
        return None;
    }
    let text = text.filter(|text| !text.trim().is_empty());
    state.clipboard_was_empty = state.asked_clipboard.take().is_some() && text.is_none();
    text.map(Intent::PrepareText)
}

fn device(ui: &mut egui::Ui, state: &mut SetupState, choices: &Choices<'_>) {
    if host::IS_PAGE {
        let name = choices.only_device.unwrap_or("Looking for a device...");
        row(ui, "Device", |ui, _| ui.add(egui::Label::new(name).truncate()));
        return;
    }
    let devices = choices.devices;
    let name = |info: &DeviceInfo| format!("{} ({})", info.name, info.id);
    let chosen = devices.iter().find(|info| info.id.to_string() == state.device);
    let selected = match chosen {
        Some(info) => name(info),
        None if state.device == AUTO => "Automatic".into(),
        None if devices.is_empty() => state.device.clone(),
        None => format!("{}, not found", state.device),
    };
    row(ui, "Device", |ui, label| {
        let combo = egui::ComboBox::from_id_salt("device").selected_text(selected);
        let shown = combo.width(ui.available_width()).truncate().show_ui(ui, |ui| {
            ui.selectable_value(&mut state.device, AUTO.into(), "Automatic");
            for info in devices {
                ui.selectable_value(&mut state.device, info.id.to_string(), name(info));
            }
        });
        let hover = "Where to compute. Automatic takes the best graphics card there is.";
        shown.response.labelled_by(label).on_hover_text(hover);
    });
    let no_card = |info: &DeviceInfo| matches!(info.kind, Kind::Software | Kind::Cpu);
    let warning = match chosen {
        Some(info) if info.kind == Kind::Software => {
            "This is no graphics card but a program that stands in for one: very slow."
        }
        None if devices.is_empty() => "Looking for devices...",
        None if state.device == AUTO && devices.iter().all(no_card) => {
            "No graphics card was found: the processor will train, which is slow."
        }
        _ => return,
    };
    wrapped(ui, RichText::new(warning).small().color(theme::warning(ui)));
}

/// A row that begins with what it is; `add` is given the id of that label.
fn row<R>(ui: &mut egui::Ui, name: &str, add: impl FnOnce(&mut egui::Ui, egui::Id) -> R) -> R {
    let row = ui.horizontal(|ui| {
        let label = cell(ui, HEAD_WIDTH, egui::Label::new(name));
        add(ui, label.id)
    });
    row.inner
}

/// A label that takes as much room whatever it says.
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

/// A value as people read it: an empty one and a line break can be seen.
fn quoted(text: &str) -> String {
    match text {
        "" => "empty".into(),
        text if text.trim() != text => format!("{text:?}"),
        text => text.into(),
    }
}

/// A count with the digits that matter.
fn amount(count: u64) -> String {
    let (unit, name) = match count {
        0..10_000 => return count.to_string(),
        10_000..1_000_000 => (1e3, "thousand"),
        1_000_000..1_000_000_000 => (1e6, "million"),
        _ => (1e9, "billion"),
    };
    let number = count as f64 / unit;
    if number < 100.0 { format!("{number:.1} {name}") } else { format!("{number:.0} {name}") }
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

    #[test]
    fn counts_are_short() {
        for (count, text) in [
            (512, "512"),
            (50_257, "50.3 thousand"),
            (301_966, "302 thousand"),
            (9_035_582_198, "9.0 billion"),
        ] {
            assert_eq!(amount(count), text);
        }
    }
}
