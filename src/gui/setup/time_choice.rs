//! "How long?": the times that a run may take, with what is best trained in each.

use std::time::Duration;

use eframe::egui::{self, Ui};

use super::row;
use crate::gui::form::{SettingsForm, capitalize};
use crate::gui::widgets::weak_note;
use crate::gui::{Intent, Shared};
use crate::plan::{DataSize, DeviceSpeed, Limits, Recipe, RecipeQuestion, TIMES, recipe};
use crate::text::{count, grouped, two_digits};

/// The preset whose settings a recipe starts from.
const BASE: &str = "gpt2";

/// The recipes for the present data and device, and the one in the form.
#[derive(Default)]
pub(in crate::gui) struct TimeChoice {
    /// The chosen time, in seconds.
    chosen: Option<u64>,
    known: Option<(Inputs, Vec<Option<Recipe>>)>,
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
    let time = &mut shared.time;
    if time.known.as_ref().is_none_or(|(known, _)| *known != inputs) {
        let of = |(_, seconds)| inputs.recipe(&shared.settings.form, seconds);
        time.known = Some((inputs.clone(), TIMES.map(of).into()));
        if let Some(seconds) = time.chosen {
            apply(shared, seconds);
        }
    }
    if let Some(seconds) = table(ui, &shared.time) {
        apply(shared, seconds);
    }
    let intent = measure(ui, shared, inputs.speed.is_some());
    if let Some(recipe) = shared.time.recipe(shared.time.chosen) {
        weak_note(ui, format!("{}.", capitalize(&recipe.why())));
    }
    intent
}

/// Draws a line for each time. Returns the time that was clicked.
fn table(ui: &mut Ui, time: &TimeChoice) -> Option<u64> {
    let mut clicked = None;
    egui::Grid::new("times").num_columns(3).spacing([10.0, 2.0]).show(ui, |ui| {
        for (name, seconds) in TIMES {
            let Some(recipe) = time.recipe(Some(seconds)) else { continue };
            let is_chosen = time.chosen == Some(seconds);
            let label = ui.selectable_label(is_chosen, capitalize(name));
            if label.on_hover_text(details(recipe)).clicked() {
                clicked = Some(seconds);
            }
            ui.label(count(recipe.totals.parameters)).on_hover_text("Parameters of the model");
            ui.weak(recipe.expectation()).on_hover_text("The text to expect");
            ui.end_row();
        }
    });
    clicked
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
    if is_known || shared.time.chosen.is_none() {
        return None;
    }
    let warning = crate::gui::theme::warning(ui);
    crate::gui::widgets::note(ui, "Measuring the speed of the device...", warning);
    let Shared { settings, time, .. } = shared;
    if std::mem::replace(&mut time.is_measured, true) {
        return None;
    }
    let vocab = settings.form.vocab_size()?;
    let config = Box::new(time.recipe(time.chosen)?.measured(vocab));
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

    /// Returns the name of the chosen time.
    pub(super) fn name(&self) -> Option<&'static str> {
        let (name, _) = TIMES.iter().find(|(_, seconds)| Some(*seconds) == self.chosen)?;
        Some(name)
    }

    fn recipe(&self, seconds: Option<u64>) -> Option<&Recipe> {
        let at = TIMES.iter().position(|(_, known)| Some(*known) == seconds)?;
        self.known.as_ref()?.1.get(at)?.as_ref()
    }
}

/// Puts the recipe for a time into the form, in place of the former one.
fn apply(shared: &mut Shared, seconds: u64) {
    let Shared { settings, time, .. } = shared;
    let Some(recipe) = time.recipe(Some(seconds)).cloned() else { return };
    let form = &mut settings.form;
    let data = form.text("data");
    for (key, text) in std::mem::take(&mut time.applied) {
        if form.text(key) == text {
            form.reset(key);
        }
    }
    form.set_preset(BASE);
    form.set("data", data);
    let typed = time.known.as_ref().map(|(inputs, _)| &inputs.typed);
    typed.into_iter().flatten().for_each(|(key, text)| form.set(key, text.as_str()));
    recipe.set.iter().for_each(|(key, text)| form.set(key, text.as_str()));
    (time.applied, time.chosen) = (recipe.set, Some(seconds));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dtype, Precision};
    use crate::plan::gpu_named;
    use crate::protocol::DataInfo;

    fn shared(tokens: u64) -> Shared {
        let mut shared = Shared::default();
        shared.settings.form.set("data", "data/mine");
        let data = DataInfo {
            vocab_size: 65,
            train_tokens: tokens,
            val_tokens: tokens / 10,
            ..DataInfo::default()
        };
        shared.settings.form.data = Some(Ok(data));
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        shared.fit.set_device(crate::plan::DeviceProfile { speed, ..Default::default() });
        shared
    }

    fn choose(shared: &mut Shared, seconds: u64) -> u64 {
        let inputs = inputs(shared).unwrap();
        let of = |(_, seconds)| inputs.recipe(&shared.settings.form, seconds);
        shared.time.known = Some((inputs.clone(), TIMES.map(of).into()));
        apply(shared, seconds);
        shared.settings.form.config().unwrap().parameters(65)
    }

    #[test]
    fn a_chosen_time_fills_the_form_and_typed_settings_stay() {
        let mut shared = shared(1_000_000_000);
        let minutes = choose(&mut shared, 600);
        shared.settings.form.set("learning_rate", "1e-4");
        let night = choose(&mut shared, 8 * 3600);
        assert!(minutes < night, "{minutes}, {night}");
        let form = &shared.settings.form;
        assert_eq!(
            (form.text("learning_rate").as_str(), form.text("data").as_str()),
            ("1e-4", "data/mine")
        );
        assert_eq!(form.text("max_time"), "8h");
        assert_eq!(form.config().unwrap().dtype, Dtype::Auto);
        // Less data, a smaller model.
        if let Some(Ok(data)) = &mut shared.settings.form.data {
            (data.train_tokens, data.val_tokens) = (1_000_000, 100_000);
        }
        assert!(choose(&mut shared, 8 * 3600) < night);
    }
}
