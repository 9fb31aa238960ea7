//! "How long?": the times that a run may take, with what is best trained in each.

use eframe::egui::{self, Label, Response, RichText, TextEdit, Ui};

use crate::gui::intent::Intent;
use crate::gui::state::{SettingsForm, Shared, StartState, TimeState};
use crate::gui::target::IS_PAGE;
use crate::gui::theme;
use crate::gui::widgets::{note, weak_note};
use crate::plan::{Recipe, TIMES};
use crate::protocol::{Implementation, Request};
use crate::text::{capitalize, count, estimate, grouped, two_digits};

/// The width of the field for a moment, in points. A date makes it wider.
const MOMENT_WIDTH: f32 = 80.0;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, start: StartState { times, fit, .. }, shown, .. } = shared;
    let form = &mut settings.form;
    // While a setting is half typed, the rows stay as they are.
    if let Some(inputs) = times.inputs(form, fit) {
        times.update(form, inputs, shown.has_own_trainer());
    }
    if times.recipes.is_empty() {
        return None;
    }
    rows(ui, times, form);
    if times.recipes.iter().all(Option::is_none)
        && let Some(refusal) = fit.refusal(form)
    {
        note(ui, refusal.reason, theme::error(ui));
    }
    let intent = if fit.speed().is_none() { measure(ui, shared) } else { None };
    let times = &shared.start.times;
    if times.until.is_none() && !times.moment.is_empty() {
        weak_note(ui, "Type a time in the future, like 07:30 or 2030-01-31 07:30.");
    }
    if let Some(recipe) = times.recipe() {
        let takes = recipe.totals.time.as_ref().filter(|_| recipe.is_limited_by_data);
        let takes = takes.map(|time| format!("{} is enough: ", estimate(time.seconds)));
        let why = format!("{}{}", takes.unwrap_or_default(), recipe.why());
        weak_note(ui, format!("{}.", capitalize(&why)));
    }
    intent
}

/// Draws a line for each time, with what will come of it. Where more time would change nothing, there is one line
/// for all longer times.
fn rows(ui: &mut Ui, times: &mut TimeState, form: &mut SettingsForm) {
    let longest = longest(&times.recipes);
    let is_new = form.model().is_none();
    egui::Grid::new("times").num_columns(3).spacing([16.0, 6.0]).show(ui, |ui| {
        for (choice, (name, _)) in TIMES.iter().enumerate() {
            let Some(recipe) = times.recipes.get(choice).and_then(Option::as_ref) else { continue };
            let is_longest = Some(choice) == longest;
            let or_longer = if is_longest { " or longer" } else { "" };
            let is_chosen = times.chosen.is_some_and(|chosen| {
                // A longer one may have been chosen for other data.
                chosen == choice || is_longest && (choice..TIMES.len()).contains(&chosen)
            });
            let name = capitalize(&format!("{name}{or_longer}"));
            if ui.radio(is_chosen, name).on_hover_text(details(recipe)).clicked() {
                times.clicked = Some(choice);
            }
            outcome(ui, recipe);
            ui.end_row();
            if is_longest {
                break;
            }
        }
        let is_chosen = times.chosen == Some(TIMES.len());
        let first = ui.horizontal(|ui| {
            let radio = ui.radio(is_chosen, "Until").on_hover_text("The moment when it ends");
            if radio.clicked() {
                ui.memory_mut(|memory| memory.request_focus(egui::Id::unique("moment")));
            }
            radio | moment_field(ui, &mut times.moment)
        });
        if first.inner.clicked() || first.inner.changed() {
            times.clicked = Some(TIMES.len());
        }
        if let Some(Some(recipe)) = times.recipes.get(TIMES.len()) {
            first.inner.on_hover_text(details(recipe));
            outcome(ui, recipe);
        }
        ui.end_row();
        // The preset of a trained model has the length of a new one.
        let has_choice = times.recipes.iter().any(Option::is_some);
        if !is_new && !times.by_settings && has_choice {
            return;
        }
        let help = "As long as the preset says, and the settings that you have typed";
        if ui.radio(times.by_settings, "As the settings say").on_hover_text(help).clicked() {
            *form = times.without_recipe(form);
            times.leave_to_settings();
        }
        if let Ok(config) = form.config() {
            ui.label("");
            ui.weak(format!("{} updates", grouped(config.max_iters.get() as f64, 0)));
        }
        ui.end_row();
    });
}

/// Returns the first of the times after which more time changes nothing, because the data are used up.
fn longest(recipes: &[Option<Recipe>]) -> Option<usize> {
    let of_times = &recipes[..TIMES.len().min(recipes.len())];
    let size = |recipe: &Recipe| (recipe.totals.parameters, recipe.totals.tokens);
    of_times.iter().enumerate().find_map(|(choice, recipe)| {
        let recipe = recipe.as_ref().filter(|recipe| recipe.is_limited_by_data)?;
        let mut later = of_times[choice + 1..].iter().flatten();
        later.all(|later| size(later) == size(recipe)).then_some(choice)
    })
}

/// Draws the size of the model, and what to expect of it.
fn outcome(ui: &mut Ui, recipe: &Recipe) {
    let parameters = format!("{} parameters", count(recipe.totals.parameters));
    ui.label(parameters);
    let text = RichText::new(capitalize(&recipe.expectation())).weak();
    ui.add(Label::new(text).truncate());
}

fn moment_field(ui: &mut Ui, text: &mut String) -> Response {
    let edit = TextEdit::singleline(text).id(egui::Id::unique("moment")).hint_text("07:30");
    ui.add(edit.desired_width(MOMENT_WIDTH).clip_text(false)).accessible_name("The moment")
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
    let Shared { settings, start: StartState { times, .. }, .. } = shared;
    if IS_PAGE || times.chosen.is_none() {
        return None;
    }
    if times.is_measuring {
        note(ui, "Measuring the speed of the device...", theme::warning(ui));
    }
    let device = settings.device.clone();
    if times.is_measuring || times.measured.as_ref() == Some(&device) {
        return None;
    }
    let config = Box::new(times.recipe()?.measured(settings.form.vocab_size()?));
    (times.measured, times.is_measuring) = (Some(device.clone()), true);
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

    fn panel(train_tokens: u64) -> Harness<'static, Shared> {
        let mut shared = Shared::default();
        shared.settings.form.set("data", "data/mine");
        let val_tokens = train_tokens / 10;
        let data = DataInfo { vocab_size: 65, train_tokens, val_tokens, ..DataInfo::default() };
        shared.settings.form.data = Some(Ok(data));
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        shared.start.fit.set_device(DeviceProfile { speed, ..DeviceProfile::default() });
        let draw = |ui: &mut Ui, shared: &mut Shared| drop(show(ui, shared));
        let mut panel = Harness::builder().build_ui_state(draw, shared);
        panel.run_steps(3);
        panel
    }

    #[test]
    fn a_moment_is_chosen_once_it_is_typed() {
        let mut panel = panel(1_000_000_000);
        panel.get_by_label("The moment").focus();
        panel.step();
        for (typed, title) in [("12", None), (":00", Some("Chosen until 12:00")), ("0", None)] {
            panel.get_by_label("The moment").type_text(typed);
            panel.run_steps(4);
            let Shared { start: StartState { times, .. }, settings, .. } = panel.state();
            assert_eq!(times.title().as_deref(), title);
            assert_eq!(settings.form.is_changed("end_at"), typed != "12");
            let is_refused = panel.query_by_label_contains("Type a time").is_some();
            assert_eq!(is_refused, title.is_none());
        }
    }

    /// On a GPU, ten minutes are more than a small text is good for.
    #[test]
    fn there_is_one_line_for_all_times_that_are_longer_than_the_data_need() {
        for (train_tokens, has_more) in [(300_000, false), (10_000_000_000, true)] {
            let panel = panel(train_tokens);
            assert_eq!(panel.query_by_label("10 minutes or longer").is_none(), has_more);
            assert_eq!(panel.query_by_label("An hour").is_some(), has_more);
        }
    }
}
