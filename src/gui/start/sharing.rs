//! "How long may it take?", continued: when the run trains on a computer that somebody uses.

use eframe::egui::{self, TextEdit, Ui};

use crate::gui::state::SettingsForm;
use crate::gui::theme;
use crate::gui::widgets::note;

/// The hours that are set first.
const NIGHT: &str = "23:00-07:00";

/// The width of the field for hours, in points.
const WIDTH: f32 = 230.0;

pub(super) fn show(ui: &mut Ui, form: &mut SettingsForm) {
    ui.add_space(6.0);
    ui.horizontal(|ui| {
        let mut hours = form.text("hours");
        let id = egui::Id::unique("hours");
        // While they are typed again, they may be empty.
        let mut limits = !hours.is_empty() || ui.memory(|memory| memory.has_focus(id));
        let check = ui.checkbox(&mut limits, "Only in these hours").on_hover_text(
            "Outside them the run waits, and all its memory is free. It continues by itself.",
        );
        if check.changed() {
            hours = if limits { NIGHT.into() } else { String::new() };
            form.set("hours", hours.as_str());
        }
        if !limits {
            return;
        }
        let edit = TextEdit::singleline(&mut hours).desired_width(WIDTH);
        let color = form.error("hours").map(|_| theme::error(ui));
        let edit = edit.id(id).text_color_opt(color);
        let field = ui.add(edit).accessible_name("Hours");
        let help = "In local time, like mon-fri 23:00-07:00, sat-sun";
        if field.on_hover_text(help).changed() {
            form.set("hours", hours);
        }
    });
    if let Some(error) = form.error("hours") {
        note(ui, error, theme::error(ui));
    }
    let mut is_background = form.text("priority") == "background";
    let check = ui.checkbox(&mut is_background, "Other programs come first").on_hover_text(
        "The run waits while other programs use the GPU, and on battery power. It continues when \
         they have left the GPU alone for a while. It always makes way for programs that need its \
         memory.",
    );
    if check.changed() {
        form.set("priority", if is_background { "background" } else { "normal" });
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    use super::*;

    #[test]
    fn hours_and_priority_are_settings_of_the_run() {
        let form = SettingsForm::of_preset("gpt2");
        let mut window = Harness::new_ui_state(show, form);
        let mut click = |label: &str| {
            window.get_by_label(label).click();
            window.run_steps(3);
            let form = window.state();
            [form.text("hours"), form.text("priority")]
        };
        assert_eq!(click("Only in these hours"), [NIGHT, "normal"]);
        assert_eq!(click("Other programs come first"), [NIGHT, "background"]);
        assert_eq!(click("Only in these hours"), ["", "background"]);
        assert_eq!(click("Other programs come first"), ["", "normal"]);

        click("Only in these hours");
        window.get_by_label("Hours").focus();
        window.run_steps(2);
        window.get_by_label("Hours").type_text("25:00");
        window.run_steps(3);
        assert!(window.state().error("hours").is_some(), "{}", window.state().text("hours"));
    }
}
