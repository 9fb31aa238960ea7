//! "How long?": the times that a run may take, with what is best trained in each.

use std::time::Duration;

use chrono::{DateTime, Local, NaiveDateTime, NaiveTime, TimeZone};
use eframe::egui::{self, Label, Response, RichText, TextEdit, Ui};

use super::row;
use crate::gui::form::{SettingsForm, capitalize};
use crate::gui::widgets::weak_note;
use crate::gui::{Intent, Shared};
use crate::plan::{DataSize, DeviceSpeed, Limits, Recipe, RecipeQuestion, TIMES, recipe};
use crate::text::{count, grouped, two_digits};

/// The preset whose settings a recipe starts from.
const BASE: &str = "gpt2";

/// The choice after [`TIMES`]: until the moment that is typed.
const MOMENT: usize = TIMES.len();

/// The width of its field, in points. A date makes it wider.
const MOMENT_WIDTH: f32 = 80.0;

/// The recipes for the present data and device, and the one in the form.
#[derive(Default)]
pub(in crate::gui) struct TimeChoice {
    chosen: Option<usize>,
    /// The choice that was clicked or typed in the last frame.
    clicked: Option<usize>,
    moment: String,
    /// The seconds until the moment; `None` if it is not in the future.
    until: Option<u64>,
    inputs: Option<Inputs>,
    recipes: Vec<Option<Recipe>>,
    /// The settings of the form that come from a recipe.
    applied: Vec<(&'static str, String)>,
    /// True once the speed of the device was requested.
    #[cfg(not(target_arch = "wasm32"))]
    is_measured: bool,
}

/// Everything that recipes are made from.
#[derive(Clone, PartialEq)]
struct Inputs {
    data: DataSize,
    vocab: u32,
    limits: Limits,
    speed: Option<DeviceSpeed>,
    /// The settings that a person has typed.
    typed: Vec<(String, String)>,
}

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    row(ui, "Time", |ui, _| ui.label("How long may it take?"));
    let Some(inputs) = inputs(shared) else {
        if shared.settings.form.text("data").is_empty() {
            weak_note(ui, "Choose data first.");
        }
        return None;
    };
    let is_known = inputs.speed.is_some();
    update(shared, inputs);
    table(ui, &mut shared.time);
    let intent = measure(ui, shared, is_known);
    let time = &shared.time;
    if time.until.is_none() && !time.moment.is_empty() {
        weak_note(ui, "Type a time in the future, like 07:30 or 2030-01-31 07:30.");
    }
    if let Some(recipe) = time.recipe() {
        weak_note(ui, format!("{}.", capitalize(&recipe.why())));
    }
    intent
}

/// Draws a line for each time.
fn table(ui: &mut Ui, time: &mut TimeChoice) {
    egui::Grid::new("times").num_columns(3).spacing([8.0, 2.0]).show(ui, |ui| {
        for (choice, recipe) in time.recipes.iter().enumerate() {
            let is_chosen = time.chosen == Some(choice) && recipe.is_some();
            let first = match TIMES.get(choice) {
                None => moment_field(ui, &mut time.moment, is_chosen),
                Some(_) if recipe.is_none() => continue,
                Some((name, _)) => ui.selectable_label(is_chosen, capitalize(name)),
            };
            if first.clicked() || first.changed() {
                time.clicked = Some(choice);
            }
            if let Some(recipe) = recipe {
                first.on_hover_text(details(recipe));
                let parameters = ui.label(count(recipe.totals.parameters));
                parameters.on_hover_text("Parameters of the model");
                let text = Label::new(RichText::new(recipe.expectation()).weak()).truncate();
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

/// Returns the seconds from `now` to the moment of `text`, in whole minutes: `7:30` is the next
/// such moment, `2026-11-28 07:30` has its date. `None` if it is no moment or not in the future.
fn seconds_until<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Option<u64> {
    let text = text.trim().trim_start_matches("until ");
    // `7:3` is about to become `7:30`.
    text.rsplit_once(':').filter(|(_, minute)| minute.len() == 2)?;
    let today = now.date_naive();
    let moments = match NaiveTime::parse_from_str(text, "%H:%M") {
        Ok(time) => [today, today.succ_opt()?].map(|day| day.and_time(time)),
        Err(_) => [NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").ok()?; 2],
    };
    let mut minutes = moments.into_iter().filter_map(|moment| {
        let at = now.timezone().from_local_datetime(&moment).earliest()?;
        u64::try_from(at.signed_duration_since(now).num_minutes()).ok()
    });
    Some(60 * minutes.find(|minutes| *minutes > 0)?)
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

/// A page learns the speed of its device from its runs.
#[cfg(target_arch = "wasm32")]
fn measure(_: &mut Ui, _: &mut Shared, _: bool) -> Option<Intent> {
    None
}

/// Requests the speed of the device if it is unknown, once a time is chosen.
#[cfg(not(target_arch = "wasm32"))]
fn measure(ui: &mut Ui, shared: &mut Shared, is_known: bool) -> Option<Intent> {
    let Shared { settings, time, .. } = shared;
    if is_known || time.chosen.is_none() {
        return None;
    }
    let warning = crate::gui::theme::warning(ui);
    crate::gui::widgets::note(ui, "Measuring the speed of the device...", warning);
    if std::mem::replace(&mut time.is_measured, true) {
        return None;
    }
    let config = Box::new(time.recipe()?.measured(settings.form.vocab_size()?));
    let (device, implementation) = (settings.device.clone(), crate::ops::Implementation::Auto);
    Some(Intent::Ask(crate::protocol::Request::Measure { config, device, implementation }))
}

/// Returns what recipes are made from, once the size of the data is known.
fn inputs(shared: &Shared) -> Option<Inputs> {
    let Shared { settings, fit, time, .. } = shared;
    let Ok(info) = settings.form.data.as_ref()? else { return None };
    let config = settings.form.config().ok()?;
    let limits = fit.limits(config.vram_budget, config.dtype);
    let is_typed = |(key, text): &(&str, &str)| {
        let of_recipe = time.applied.iter().any(|(known, value)| known == key && value == text);
        // A preset that brings its data is not typed.
        !of_recipe && *key != "data" && *key != "max_time"
    };
    let typed = settings.form.changes().filter(is_typed);
    Some(Inputs {
        data: DataSize { train: info.train_tokens, val: info.val_tokens },
        vocab: settings.form.vocab_size()?,
        limits,
        speed: fit.speed().cloned(),
        typed: typed.map(|(key, text)| (key.to_string(), text.to_string())).collect(),
    })
}

impl Inputs {
    fn recipe(&self, form: &SettingsForm, seconds: u64) -> Option<Recipe> {
        let assumed = DeviceSpeed::assumed(self.limits.kernels);
        // The settings of another preset are not typed.
        let mut base = SettingsForm::of_preset(BASE);
        base.set("data", form.text("data"));
        self.typed.iter().for_each(|(key, text)| base.set(key, text.as_str()));
        recipe(RecipeQuestion {
            config: base.config().ok()?,
            is_set: &|key| self.typed.iter().any(|(typed, _)| typed == key),
            vocab: self.vocab,
            data: self.data,
            limits: &self.limits,
            speed: self.speed.as_ref().unwrap_or(&assumed),
            time: Duration::from_secs(seconds),
        })
    }
}

impl TimeChoice {
    /// Forgets the chosen time: a person has chosen a preset.
    pub fn clear(&mut self) {
        (self.chosen, self.applied) = (None, Vec::new());
    }

    /// Describes the settings of the chosen recipe.
    pub(super) fn title(&self) -> Option<String> {
        self.recipe()?;
        Some(match TIMES.get(self.chosen?) {
            Some((name, _)) => format!("Chosen for {name}"),
            None => format!("Chosen until {}", self.moment.trim().trim_start_matches("until ")),
        })
    }

    /// Returns the recipe for the chosen time.
    fn recipe(&self) -> Option<&Recipe> {
        self.recipes.get(self.chosen?)?.as_ref()
    }
}

/// Makes the recipes again if something has changed, and puts the chosen one into the form.
fn update(shared: &mut Shared, inputs: Inputs) {
    let Shared { settings, time, shown, .. } = &mut *shared;
    let clicked = time.clicked.take();
    let until = if clicked.is_none() && shown.has_own_trainer() {
        // A minute later the form would no longer show the settings of the run.
        time.until
    } else {
        seconds_until(&time.moment, &Local::now())
    };
    let is_new = time.inputs.as_ref() != Some(&inputs);
    let is_later = until != time.until;
    if is_new || is_later {
        let times = TIMES.iter().map(|(_, seconds)| Some(*seconds)).chain([until]);
        time.recipes = times.map(|seconds| inputs.recipe(&settings.form, seconds?)).collect();
        (time.inputs, time.until) = (Some(inputs), until);
    }
    let clicked = clicked.filter(|choice| time.recipes[*choice].is_some());
    time.chosen = clicked.or(time.chosen);
    if is_new || clicked.is_some() || is_later && time.chosen == Some(MOMENT) {
        apply(shared);
    }
}

/// Puts the recipe for the chosen time into the form, in place of the former one.
fn apply(shared: &mut Shared) {
    let Shared { settings, time, .. } = shared;
    let Some(recipe) = time.recipe().cloned() else { return };
    let form = &mut settings.form;
    let data = form.text("data");
    for (key, text) in std::mem::take(&mut time.applied) {
        if form.text(key) == text {
            form.reset(key);
        }
    }
    form.set_preset(BASE);
    form.set("data", data);
    let typed = time.inputs.iter().flat_map(|inputs| &inputs.typed);
    typed.for_each(|(key, text)| form.set(key, text.as_str()));
    recipe.set.iter().for_each(|(key, text)| form.set(key, text.as_str()));
    time.applied = recipe.set;
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    use super::*;
    use crate::config::{Dtype, Precision};
    use crate::plan::gpu_named;
    use crate::protocol::DataInfo;

    const NIGHT: usize = 2;

    fn shared(tokens: u64) -> Shared {
        let mut shared = Shared::default();
        shared.settings.form.set("data", "data/mine");
        let (train_tokens, val_tokens) = (tokens, tokens / 10);
        let data = DataInfo { vocab_size: 65, train_tokens, val_tokens, ..DataInfo::default() };
        shared.settings.form.data = Some(Ok(data));
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        shared.fit.set_device(crate::plan::DeviceProfile { speed, ..Default::default() });
        shared
    }

    fn choose(shared: &mut Shared, choice: usize) -> u64 {
        shared.time.clicked = Some(choice);
        let inputs = inputs(shared).unwrap();
        update(shared, inputs);
        shared.settings.form.config().unwrap().parameters(65)
    }

    #[test]
    fn a_chosen_time_fills_the_form_and_typed_settings_stay() {
        let mut shared = shared(1_000_000_000);
        let minutes = choose(&mut shared, 0);
        shared.settings.form.set("learning_rate", "1e-4");
        let night = choose(&mut shared, NIGHT);
        assert!(minutes < night, "{minutes}, {night}");
        let form = &shared.settings.form;
        let texts = ["learning_rate", "data", "max_time"].map(|key| form.text(key));
        assert_eq!(texts, ["1e-4", "data/mine", "8h"]);
        assert_eq!(form.config().unwrap().dtype, Dtype::Auto);
        // Less data, a smaller model.
        if let Some(Ok(data)) = &mut shared.settings.form.data {
            (data.train_tokens, data.val_tokens) = (1_000_000, 100_000);
        }
        assert!(choose(&mut shared, NIGHT) < night);
    }

    #[test]
    fn a_moment_is_the_next_one_or_has_a_date() {
        let now = Utc.with_ymd_and_hms(2026, 11, 27, 22, 15, 30).unwrap();
        for (text, minutes) in [
            ("23:00", 44),
            (" until 7:30 ", 9 * 60 + 14),
            ("2026-11-28 07:30", 9 * 60 + 14),
            // It begins in less than a minute.
            ("22:16", 24 * 60),
            ("22:15", 24 * 60 - 1),
        ] {
            assert_eq!(seconds_until(text, &now), Some(60 * minutes), "{text}");
        }
        let wrong = ["24:00", "7:60", "7:3", "2026-02-30 07:30", "2026-11-28", "soon", ""];
        for text in wrong.into_iter().chain(["2026-11-27 22:00"]) {
            assert_eq!(seconds_until(text, &now), None, "{text}");
        }
    }

    #[test]
    fn a_moment_is_chosen_once_it_is_typed() {
        let draw = |ui: &mut Ui, shared: &mut Shared| drop(show(ui, shared));
        let mut panel = Harness::builder().build_ui_state(draw, shared(1_000_000_000));
        panel.step();
        panel.get_by_label("Until").focus();
        panel.step();
        for (typed, title) in [("12", None), (":00", Some("Chosen until 12:00")), ("0", None)] {
            panel.get_by_label("Until").type_text(typed);
            panel.run_steps(4);
            let Shared { time, settings, .. } = panel.state();
            assert_eq!(time.title().as_deref(), title);
            assert_eq!(settings.form.is_changed("max_time"), typed != "12");
            let is_refused = panel.query_by_label_contains("Type a time").is_some();
            assert_eq!(is_refused, title.is_none());
        }
    }
}
