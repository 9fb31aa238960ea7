//! The list of settings by group, each with an editor for its kind.

use eframe::egui::{self, Align, Key as Press, Modifiers, RichText, Ui};

use crate::config::{KEYS, Key, ValueKind};
use crate::gui::state::{SettingsForm, is_same};
use crate::gui::theme;
use crate::gui::widgets::{cell, note};

/// Width of the name as a fraction of the row, and its maximum in points.
const NAME_SHARE: f32 = 0.54;
const NAME_WIDTH: f32 = 190.0;

/// Width reserved for the reset button, in points. Rows without one keep it free, to give all fields the
/// same width.
const RESET_WIDTH: f32 = 46.0;

/// Draws all settings with `filter` in their name or help.
pub(super) fn show(ui: &mut Ui, form: &mut SettingsForm, filter: &mut String) {
    let edit = egui::TextEdit::singleline(filter).hint_text("Find a setting");
    let response = ui.add(edit.desired_width(f32::INFINITY)).accessible_name("Find a setting");
    response.on_hover_text("Part of a setting's name or description");
    let query = filter.trim().to_lowercase();
    let mut found = false;
    for group in KEYS.chunk_by(|a, b| a.group == b.group) {
        let keys: Vec<&Key> = group.iter().filter(|key| matches(key, &query)).collect();
        let Some(first) = keys.first() else { continue };
        found = true;
        if query.is_empty() {
            let header = egui::CollapsingHeader::new(heading(ui, form, first.group, &keys));
            let header = header.id_salt(first.group).default_open(false);
            header.show_unindented(ui, |ui| keys.iter().for_each(|key| row(ui, form, key)));
        } else {
            ui.weak(first.group);
            keys.iter().for_each(|key| row(ui, form, key));
        }
    }
    if !found {
        ui.weak("No setting matches.");
    }
}

fn matches(key: &Key, query: &str) -> bool {
    key.name.contains(&query.replace(' ', "_")) || key.help.to_lowercase().contains(query)
}

/// Returns the name of a group, with what a closed group would hide: errors and changes.
fn heading(ui: &Ui, form: &SettingsForm, group: &str, keys: &[&Key]) -> RichText {
    if keys.iter().any(|key| form.error(key.name).is_some()) {
        return RichText::new(format!("{group}: has errors")).color(theme::error(ui));
    }
    match keys.iter().filter(|key| form.is_changed(key.name)).count() {
        0 => RichText::new(group),
        changed => RichText::new(format!("{group}, {changed} changed")),
    }
}

fn row(ui: &mut Ui, form: &mut SettingsForm, key: &Key) {
    let name_width = (ui.available_width() * NAME_SHARE).min(NAME_WIDTH);
    ui.horizontal(|ui| {
        let is_changed = form.is_changed(key.name);
        let name = RichText::new(key.name);
        let name = if is_changed { name.strong() } else { name };
        let name = egui::Label::new(name).show_tooltip_when_elided(false);
        let name = cell(ui, name_width, Align::Min, name).on_hover_text(help(form, key));
        let width = ui.available_width() - RESET_WIDTH - ui.spacing().item_spacing.x;
        let editor = editor(ui, form, key, width.max(40.0)).labelled_by(name.id);
        if editor.has_focus() {
            let tip = egui::Popup::from_response(&editor).kind(egui::PopupKind::Tooltip);
            tip.align(egui::RectAlign::TOP_START).show(|ui| ui.label(help(form, key)));
        }
        if is_changed {
            let hover = format!("Reset to {}", visible(form.preset_text(key.name)));
            let button = ui.small_button("reset").on_hover_text(hover);
            if button.accessible_name(format!("reset {}", key.name)).clicked() {
                form.reset(key.name);
            }
        }
    });
    if let Some(error) = form.error(key.name) {
        note(ui, error, theme::error(ui));
    }
}

fn help(form: &SettingsForm, key: &Key) -> String {
    let Key { name, help, default, .. } = key;
    let preset = form.preset_text(name);
    let mut text = format!("{name}: {help}\nDefault: {}", visible(default));
    if !is_same(key, preset, default) {
        text += &format!("\nIn this preset: {}", visible(preset));
    }
    text
}

/// Returns a value for display, with empty text and white space made visible.
fn visible(text: &str) -> String {
    match text {
        "" => "empty".into(),
        text if text.trim() != text => format!("{text:?}"),
        text => text.into(),
    }
}

fn editor(ui: &mut Ui, form: &mut SettingsForm, key: &Key, width: f32) -> egui::Response {
    match key.kind {
        ValueKind::Bool => {
            let mut is_on = form.text(key.name).trim().eq_ignore_ascii_case("true");
            let response = ui.checkbox(&mut is_on, "");
            if response.changed() {
                form.set(key.name, is_on.to_string());
            }
            response
        }
        ValueKind::Choice(choices) => {
            let mut selected = form.text(key.name);
            let combo = egui::ComboBox::from_id_salt(key.name).selected_text(selected.as_str());
            let shown = combo.width(width).truncate().show_ui(ui, |ui| {
                for choice in choices {
                    ui.selectable_value(&mut selected, choice.to_string(), *choice);
                }
            });
            if selected != form.text(key.name) {
                form.set(key.name, selected);
            }
            shown.response
        }
        _ => text_field(ui, form, key, width),
    }
}

fn text_field(ui: &mut Ui, form: &mut SettingsForm, key: &Key, width: f32) -> egui::Response {
    let id = egui::Id::unique(("setting", key.name));
    let mut text = form.text(key.name);
    let pressed =
        |key| ui.input_mut(|input| input.count_and_consume_key(Modifiers::NONE, key)) as i64;
    let steps = || pressed(Press::ArrowUp) - pressed(Press::ArrowDown);
    if let ValueKind::Count { min, max } = key.kind
        && ui.memory(|memory| memory.has_focus(id))
        && let Some(next) = step_count(&text, steps(), min, max)
    {
        text = next;
        form.set(key.name, text.as_str());
    }
    let hint = match key.name {
        "data" => "choose above",
        "out_dir" => "new folder",
        "max_time" | "end_at" => "no limit",
        _ => "",
    };
    let edit = if key.default.contains('\n') {
        egui::TextEdit::multiline(&mut text).desired_rows(2)
    } else {
        egui::TextEdit::singleline(&mut text)
    };
    let color = form.error(key.name).map(|_| theme::error(ui));
    let edit = edit.id(id).desired_width(width).hint_text(hint).text_color_opt(color);
    let response = ui.add(edit);
    if response.changed() {
        form.set(key.name, text);
    }
    response
}

/// Returns the count `steps` away from `text`, clamped to the range. `None` if `steps` is 0 or
/// `text` is not a count.
fn step_count(text: &str, steps: i64, min: u64, max: u64) -> Option<String> {
    let count: u64 = text.trim().parse().ok().filter(|_| steps != 0)?;
    Some(count.saturating_add_signed(steps).clamp(min, max).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrow_keys_step_within_the_range() {
        let step = |text, steps| step_count(text, steps, 1, 12);
        assert_eq!(step("7", 1).as_deref(), Some("8"));
        assert_eq!(step("7", -9).as_deref(), Some("1"));
        assert_eq!(step("12", 1).as_deref(), Some("12"));
        assert_eq!((step("7", 0), step("3 * 4", 1), step("", 1)), (None, None, None));
    }

    #[test]
    fn settings_are_found_by_name_and_description() {
        let found = |query: &str| {
            KEYS.iter().filter(|key| matches(key, query)).map(|key| key.name).collect::<Vec<_>>()
        };
        assert_eq!(found("micro batch"), ["micro_batch"]);
        assert_eq!(found("context length"), ["block_size"]);
        assert_eq!(found("zzz"), Vec::<&str>::new());
        assert_eq!(found("").len(), KEYS.len());
    }
}
