//! The room for a new run: what to train, how long, and whether it fits.

use eframe::egui::{self, RichText, Ui};

use crate::config::{preset_names, preset_title};
use crate::gui::intent::Intent;
use crate::gui::state::{SettingsForm, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{action, labelled_row, weak_note};

mod data;
mod device;
mod fit;
mod setting_rows;
mod sharing;
mod times;
mod what;

/// The width of the questions, in points.
const WIDTH: f32 = 660.0;

pub fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let area = egui::ScrollArea::vertical().id_salt("start").auto_shrink(false);
    area.show(ui, |ui| {
        let width = WIDTH.min(ui.available_width() - 8.0);
        let margin = (0.5 * (ui.available_width() - width)).floor().max(0.0);
        ui.horizontal_top(|ui| {
            ui.add_space(margin);
            ui.vertical(|ui| {
                ui.set_width(width);
                questions(ui, shared)
            })
            .inner
        })
        .inner
    })
    .inner
}

fn questions(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    ui.add_space(12.0);
    let is_first = shared.library.runs.is_empty() && shared.start.what.is_none();
    let title = if is_first { "Train a language model on this computer" } else { "A new run" };
    ui.label(RichText::new(title).size(22.0).strong());
    ui.add_space(10.0);
    let mut intent = what::show(ui, shared);
    let form = &shared.settings.form;
    let is_readable = !form.text("data").is_empty() && !matches!(form.data, Some(Err(_)));
    let has_data = is_readable && shared.start.what.is_some();
    question(ui, 2, "How long may it take?", has_data, |ui| {
        intent = intent.take().or(times::show(ui, shared));
        if !IS_PAGE {
            sharing::show(ui, &mut shared.settings.form);
        }
    });
    let is_answered = has_data && shared.is_set_up();
    question(ui, 3, "Will it fit?", is_answered, |ui| {
        fit::show(ui, shared);
        ui.add_space(4.0);
        settings(ui, shared);
        ui.add_space(8.0);
        intent = intent.take().or(start(ui, shared));
    });
    intent
}

/// Draws a question with its number. Its answers appear once the questions before it have one.
fn question(ui: &mut Ui, number: u32, text: &str, is_open: bool, add: impl FnOnce(&mut Ui)) {
    ui.add_space(18.0);
    let text = RichText::new(format!("{number}.  {text}")).size(16.0);
    if !is_open {
        ui.label(text.weak());
        return;
    }
    ui.label(text.strong());
    ui.add_space(4.0);
    add(ui);
}

fn settings(ui: &mut Ui, shared: &mut Shared) {
    let settings = egui::CollapsingHeader::new("All settings").default_open(false);
    settings.show_unindented(ui, |ui| {
        let form = &mut shared.settings.form;
        let times = &mut shared.start.times;
        if let Some(name) = preset(ui, form, times.title()) {
            *form = times.without_recipe(form);
            form.set_preset(name);
            times.leave_to_settings();
        }
        setting_rows::show(ui, form, &mut shared.start.setting_filter);
    });
}

fn start(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let refusal = shared.refusal();
    let is_busy = shared.shown.has_own_trainer();
    let busy = is_busy.then_some("A run of this window trains. Stop it to start another.");
    // Without a tooltip: question 3 has the reason.
    let disabled = busy.or(refusal.as_ref().map(|_| ""));
    let mut button = egui::Button::new(RichText::new("Start training").strong().size(15.0));
    if disabled.is_none() {
        button = button.fill(ui.visuals().selection.bg_fill);
    }
    let button = button.min_size(egui::vec2(150.0, 30.0));
    let help = "Start the run in a new folder (Ctrl+Enter)";
    let is_clicked = ui.horizontal(|ui| action(ui, button, disabled, help)).inner;
    if let Some(reason) = busy {
        weak_note(ui, reason);
    }
    ui.add_space(12.0);
    is_clicked.then_some(Intent::Start)
}

/// Draws the list of presets. A time that was chosen stands in place of the form's preset. Returns the preset that
/// was clicked.
fn preset(ui: &mut Ui, form: &SettingsForm, time: Option<String>) -> Option<&'static str> {
    let selected = form.preset();
    let has_time = time.is_some();
    let mut clicked = None;
    let help = "Starting values for every setting that you do not change below.";
    let shown = time.unwrap_or_else(|| match form.changes().count() {
        0 => preset_title(selected).to_string(),
        1 => format!("{}, 1 setting changed", preset_title(selected)),
        changed => format!("{}, {changed} settings changed", preset_title(selected)),
    });
    select(ui, "Preset", &shown, help, 320.0, |ui| {
        for name in preset_names() {
            if ui.selectable_label(!has_time && name == selected, preset_title(name)).clicked() {
                clicked = Some(name);
            }
        }
    });
    clicked
}

/// Draws a labelled list of this height, in points, as wide as the room.
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
