//! The setup panel: preset, data, device and settings of the next run.

use eframe::egui::{self, RichText};

use super::form::Form;
use super::{Intent, platform, theme};
use crate::config::{Budget, Config, preset_names};
use crate::progress::Progress;
use crate::protocol::DeviceLine;
use crate::run_index;

mod keys;

/// State of the panel between frames.
pub(super) struct SetupState {
    /// The device as `--device` takes it.
    pub device: String,
    /// The data that is being tokenized, and the completed fraction, 0 to 1.
    pub preparing: Option<(String, f32)>,
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
            filter: String::new(),
            paste_requested: None,
            clipboard_was_empty: false,
        }
    }
}

/// The value of `--device` that picks the best device.
const AUTO: &str = "auto";

/// The built-in data set.
const BUILTIN: &str = "builtin:stories";

/// Titles of the presets. Those for a GPU size name the model that they train.
const TITLES: &[(&str, &str)] = &[
    ("demo", "Demo: a tiny model, done in minutes"),
    ("shakespeare-char", "Shakespeare by character, as in nanoGPT"),
    ("gpt2", "GPT-2, 124M"),
    ("gpt2-medium", "GPT-2 medium, 350M"),
    ("gpt2-large", "GPT-2 large, 774M"),
    ("gpt2-xl", "GPT-2 XL, 1558M"),
    ("card-4gb", "4 GB graphics card: GPT-2, 124M"),
    ("card-6gb", "6 GB graphics card: GPT-2, 124M"),
    ("card-8gb", "8 GB graphics card: GPT-2, 124M"),
    ("card-12gb", "12 GB graphics card: GPT-2 medium, 350M"),
    ("card-16gb", "16 GB graphics card: GPT-2 medium, 350M"),
    ("card-24gb", "24 GB graphics card: GPT-2 large, 774M"),
];

/// Width of the labels before preset, data and device, in points.
const LABEL_WIDTH: f32 = 44.0;

/// Time to wait for the clipboard, in seconds. A clipboard without text never answers.
const PASTE_TIMEOUT: f64 = 0.5;

/// The devices and data sets that can be selected.
pub(super) struct Choices<'a> {
    /// The available devices.
    pub devices: &'a [DeviceLine],
    /// Stored data sets: the value of `data`, and the name to show.
    pub data: &'a [(String, String)],
}

/// Draws the panel. `running` is the configuration of the displayed run while it is active. While
/// this window is `busy` with a run that it started, no other can start.
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
        pending_changes(ui, form, progress, running);
    }
    ui.add_space(2.0);
    preset(ui, form);
    intent = data(ui, form, state, choices.data).or(intent);
    device(ui, state, choices);
    ui.separator();
    keys::show(ui, form, &mut state.filter);
    intent
}

/// Draws the start button, and the reason if it is disabled.
fn start(ui: &mut egui::Ui, form: &Form, busy: bool) -> Option<Intent> {
    let problem = match busy {
        true => Some("A run is active. Stop it to start another.".to_string()),
        false => form.problem(),
    };
    let mut button = egui::Button::new(RichText::new("Start training").strong());
    if problem.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    let mut response = ui.add_enabled(problem.is_none(), button);
    response = response.on_hover_text("Start a run with these settings, in a new folder");
    if let Some(problem) = problem {
        response = response.on_disabled_hover_text(&problem);
        if !busy {
            wrapped(ui, RichText::new(problem).small().color(theme::warning(ui)));
        }
    }
    response.clicked().then_some(Intent::Start)
}

/// Notes that changed settings do not affect the active run.
fn pending_changes(ui: &mut egui::Ui, form: &Form, progress: &Progress, running: &Config) {
    let Ok(config) = form.config() else { return };
    // The budget is the exception: the active run receives it at once.
    let sent = progress.forecast.as_ref().and_then(|forecast| forecast.budget_bytes);
    let is_sent = matches!(config.vram_budget, Budget::Bytes(budget) if Some(budget) == sent);
    let changes: Vec<String> = run_index::difference(config, running)
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

fn data(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    stored: &[(String, String)],
) -> Option<Intent> {
    let pasted = pasted_text(ui, state);
    let selected = form.text("data");
    row(ui, "Data", |ui, _| match selected.as_str() {
        "" => ui.weak("none yet"),
        BUILTIN => ui.label("built-in stories"),
        path => ui.add(egui::Label::new(path).truncate()),
    });
    describe_data(ui, form, &selected);
    if let Some((name, share)) = &state.preparing {
        let text = RichText::new(format!("Preparing {name}")).small();
        ui.add(egui::ProgressBar::new(*share).text(text));
    }
    let buttons = ui.add_enabled_ui(state.preparing.is_none(), |ui| {
        ui.horizontal_wrapped(|ui| data_buttons(ui, form, state, stored)).inner
    });
    let hint = match state.clipboard_was_empty {
        true => "The clipboard has no text.",
        false => platform::drop_hint(),
    };
    wrapped(ui, RichText::new(hint).small().weak());
    buttons.inner.or(pasted)
}

/// Draws the buttons that select data.
fn data_buttons(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    stored: &[(String, String)],
) -> Option<Intent> {
    let mut intent = None;
    let hover = "Simple generated stories: nothing to download";
    if ui.button("Built-in stories").on_hover_text(hover).clicked() {
        form.set("data", BUILTIN);
    }
    if ui.button("Files...").on_hover_text(platform::TEXTS_HINT).clicked() {
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
    if platform::IS_PAGE {
        return intent;
    }
    let hover = "A folder prepared by wgpt, nanoGPT or llm.c, or a folder of text files";
    if ui.button("Folder...").on_hover_text(hover).clicked() {
        intent = Some(Intent::ChooseData);
    }
    let hover = "Train on the text on the clipboard";
    if ui.button("Paste").on_hover_text(hover).clicked() {
        ui.ctx().send_viewport_cmd(egui::ViewportCommand::RequestPaste);
        state.paste_requested = Some(ui.input(|input| input.time));
        state.clipboard_was_empty = false;
    }
    intent
}

/// Draws the size of the selected data, or why it cannot be used.
fn describe_data(ui: &mut egui::Ui, form: &Form, selected: &str) {
    let text = match &form.data {
        _ if selected.is_empty() => RichText::new("Choose data to train on.").weak(),
        None => RichText::new("Reading...").weak(),
        Some(Err(error)) => RichText::new(error).color(theme::error(ui)),
        Some(Ok(info)) => RichText::new(format!(
            "{} training tokens, {} validation tokens, vocabulary of {}",
            short_count(info.train_tokens),
            short_count(info.val_tokens),
            short_count(u64::from(info.vocab_size))
        ))
        .weak(),
    };
    wrapped(ui, text.small());
}

/// Returns the requested text of the clipboard when it arrives. In a browser, Ctrl+V requests it.
fn pasted_text(ui: &egui::Ui, state: &mut SetupState) -> Option<Intent> {
    let requested = match state.paste_requested {
        // A page cannot read the clipboard for a button, only receive the browser's paste event.
        None if platform::IS_PAGE && !ui.ctx().egui_wants_keyboard_input() => f64::NEG_INFINITY,
        requested => requested?,
    };
    // Removed from the input, so that a focused text field does not receive it too.
    let text = ui.input_mut(|input| {
        let is_paste = |event: &egui::Event| matches!(event, egui::Event::Paste(_));
        let at = input.events.iter().position(is_paste)?;
        match input.events.remove(at) {
            egui::Event::Paste(text) => Some(text),
            _ => None,
        }
    });
    if text.is_none() && ui.input(|input| input.time) - requested < PASTE_TIMEOUT {
        ui.ctx().request_repaint();
        return None;
    }
    let text = text.filter(|text| !text.trim().is_empty());
    state.clipboard_was_empty = state.paste_requested.take().is_some() && text.is_none();
    text.map(Intent::PrepareText)
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
    let is_no_gpu = |info: &DeviceLine| matches!(info.kind.as_str(), "software" | "cpu");
    let warning = match selected {
        Some(info) if info.kind == "software" => {
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

/// Formats a count with three significant digits: `50.3 thousand`.
fn short_count(count: u64) -> String {
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
    fn counts_are_shortened() {
        for (count, text) in [
            (512, "512"),
            (50_257, "50.3 thousand"),
            (301_966, "302 thousand"),
            (9_035_582_198, "9.0 billion"),
        ] {
            assert_eq!(short_count(count), text);
        }
    }
}
