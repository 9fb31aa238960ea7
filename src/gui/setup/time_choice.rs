//! "How long?": the times that a run may take, with what is best trained in each.

use eframe::egui::{self, Label, Response, RichText, TextEdit, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{Shared, TimeState};
use crate::gui::target::IS_PAGE;
use crate::gui::theme;
use crate::gui::widgets::{labelled_row, note, weak_note};
use crate::plan::{Recipe, TIMES};
use crate::protocol::{Implementation, Request};
use crate::text::{capitalize, count, grouped, two_digits};

/// The width of the field for a moment, in points. A date makes it wider.
const MOMENT_WIDTH: f32 = 80.0;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, times, shown, fit, .. } = shared;
    let form = &mut settings.form;
    labelled_row(ui, "Time", |ui, _| ui.label("How long may it take?"));
    let Some(inputs) = times.inputs(form, fit) else {
        if form.text("data").is_empty() {
            weak_note(ui, "Choose data first.");
        }
        return None;
    };
    times.update(form, inputs, shown.has_own_trainer());
    table(ui, times);
    let intent = if fit.speed().is_none() { measure(ui, shared) } else { None };
    let times = &shared.times;
    if times.until.is_none() && !times.moment.is_empty() {
        weak_note(ui, "Type a time in the future, like 07:30 or 2030-01-31 07:30.");
    }
    if let Some(recipe) = times.recipe() {
        weak_note(ui, format!("{}.", capitalize(&recipe.why())));
    }
    intent
}

/// Draws a line for each time.
fn table(ui: &mut Ui, times: &mut TimeState) {
    egui::Grid::new("times").num_columns(3).spacing([8.0, 2.0]).show(ui, |ui| {
        for (choice, recipe) in times.recipes.iter().enumerate() {
            let is_chosen = times.chosen == Some(choice) && recipe.is_some();
            let first = match TIMES.get(choice) {
                None => moment_field(ui, &mut times.moment, is_chosen),
                Some(_) if recipe.is_none() => continue,
                Some((name, _)) => ui.selectable_label(is_chosen, capitalize(name)),
            };
            if first.clicked() || first.changed() {
                times.clicked = Some(choice);
            }
            if let Some(recipe) = recipe {
                first.on_hover_text(details(recipe));
                let parameters = ui.label(count(recipe.totals.parameters));
                parameters.on_hover_text("Parameters of the model");
                let text = Label::new(RichText::new(recipe.text()).weak()).truncate();
                ui.add(text).on_hover_text("The text to expect");
            }
            ui.end_row();
        }
    });
}

fn moment_field(ui: &mut Ui, text: &mut String, is_chosen: bool) -> Response {
    let id = egui::Id::unique("moment");
    let mut edit = TextEdit::singleline(text).id(id).hint_text("until 07:30");
    // With the focus, text that is selected has this color.
    if is_chosen && !ui.memory(|memory| memory.has_focus(id)) {
        let selection = ui.visuals().selection;
        edit = edit.background_color(selection.bg_fill).text_color(selection.stroke.color);
    }
    ui.add(edit.desired_width(MOMENT_WIDTH).clip_text(false)).accessible_name("Until")
}

fn details(recipe: &Recipe) -> String {
    let totals = &recipe.totals;
    format!(
        "{} tokens, {} for each parameter, in {} updates; {} passes over the data",
        count(totals.tokens),
        two_digits(recipe.tokens_per_parameter()),
        grouped(totals.updates as f64, 0),
        two_digits(totals.epochs.unwrap_or(0.0))
    )
}

/// Requests the speed of the device once a time is chosen. A page learns it from its runs.
fn measure(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, times, .. } = shared;
    if IS_PAGE || times.chosen.is_none() {
        return None;
    }
    note(ui, "Measuring the speed of the device...", theme::warning(ui));
    if std::mem::replace(&mut times.is_measured, true) {
        return None;
    }
    let config = Box::new(times.recipe()?.measured(settings.form.vocab_size()?));
    let device = settings.device.clone();
    Some(Intent::Ask(Request::Measure { config, device, implementation: Implementation::Auto }))
}

#[cfg(test)]
mod tests {
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    use super::*;
    use crate::config::Precision;
    use crate::plan::{DeviceProfile, DeviceSpeed, gpu_named};
    use crate::protocol::DataInfo;

    fn shared() -> Shared {
        let mut shared = Shared::default();
        shared.settings.form.set("data", "data/mine");
        let train_tokens = 1_000_000_000;
        let val_tokens = train_tokens / 10;
        let data = DataInfo { vocab_size: 65, train_tokens, val_tokens, ..DataInfo::default() };
        shared.settings.form.data = Some(Ok(data));
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        shared.fit.set_device(DeviceProfile { speed, ..DeviceProfile::default() });
        shared
    }

    #[test]
    fn a_moment_is_chosen_once_it_is_typed() {
        let draw = |ui: &mut Ui, shared: &mut Shared| drop(show(ui, shared));
        let mut panel = Harness::builder().build_ui_state(draw, shared());
        panel.step();
        panel.get_by_label("Until").focus();
        panel.step();
        for (typed, title) in [("12", None), (":00", Some("Chosen until 12:00")), ("0", None)] {
            panel.get_by_label("Until").type_text(typed);
            panel.run_steps(4);
            let Shared { times, settings, .. } = panel.state();
            assert_eq!(times.title().as_deref(), title);
            assert_eq!(settings.form.is_changed("end_at"), typed != "12");
            let is_refused = panel.query_by_label_contains("Type a time").is_some();
            assert_eq!(is_refused, title.is_none());
        }
    }
}
