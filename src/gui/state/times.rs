//! The times that a run may take, with what is best trained in each.

use std::time::Duration;

use chrono::{DateTime, Local, TimeZone};

use super::fit::FitState;
use super::form::SettingsForm;
use crate::config::{moment_text, next_moment};
use crate::plan::{DataSize, DeviceSpeed, Limits, Recipe, RecipeQuestion, TIMES, recipe};

/// The preset that a recipe starts from.
const BASE: &str = "gpt2";

/// The settings of a model's size.
const SIZE: [&str; 3] = ["n_layer", "n_head", "n_embd"];

/// The settings that are never typed beside a time: it has its own, and a preset may bring its data.
const OF_THE_TIME: [&str; 3] = ["data", "max_time", "end_at"];

/// The choice after [`TIMES`]: until the moment that is typed.
const MOMENT: usize = TIMES.len();

/// The recipes for the present data and device, and the one in the form.
#[derive(Default)]
pub struct TimeState {
    pub chosen: Option<usize>,
    /// True if the settings say how long the run is, and not a chosen time.
    pub by_settings: bool,
    /// The choice that was clicked or typed in the last frame.
    pub clicked: Option<usize>,
    pub moment: String,
    /// The preset of the form before a time was chosen.
    preset: Option<&'static str>,
    /// The seconds until the moment; `None` if it is not in the future.
    pub until: Option<u64>,
    inputs: Option<RecipeInputs>,
    pub recipes: Vec<Option<Recipe>>,
    /// The settings of the form that come from a recipe.
    applied: Vec<(&'static str, String)>,
    /// The settings that a person has typed as the preset has them, so that the form does not list them.
    kept: Vec<(String, String)>,
    /// The device whose speed was requested last, and true until it is known.
    pub measured: Option<String>,
    pub is_measuring: bool,
}

#[derive(Clone, PartialEq)]
pub struct RecipeInputs {
    data: DataSize,
    vocab: u32,
    markov_bits: Option<f64>,
    limits: Limits,
    pub speed: Option<DeviceSpeed>,
    /// The settings that a person has typed.
    typed: Vec<(String, String)>,
}

impl RecipeInputs {
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
            markov_bits: self.markov_bits,
            limits: &self.limits,
            speed: self.speed.as_ref().unwrap_or(&assumed),
            time: Duration::from_secs(seconds),
            tokens: None,
        })
    }
}

impl TimeState {
    /// Returns what recipes are made from, once the size of the data is known.
    pub fn inputs(&self, form: &SettingsForm, fit: &FitState) -> Option<RecipeInputs> {
        let Ok(info) = form.data.as_ref()? else { return None };
        let config = form.config().ok()?;
        let of_recipe = |key: &str, text: &str| {
            self.applied.iter().any(|(known, value)| *known == key && value == text)
        };
        // A size is typed as a whole.
        let is_sized =
            form.changes().any(|(key, text)| SIZE.contains(&key) && !of_recipe(key, text));
        let is_typed = |(key, text): &(&str, &str)| {
            let is_own = is_sized && SIZE.contains(key) || !of_recipe(key, text);
            is_own && !OF_THE_TIME.contains(key)
        };
        let changed = form.changes().filter(is_typed);
        let changed = changed.map(|(key, text)| (key.to_string(), text.to_string()));
        let typed: Vec<_> = changed.chain(self.as_in_preset(form)).collect();
        Some(RecipeInputs {
            data: DataSize { train: info.train_tokens, val: info.val_tokens },
            vocab: form.vocab_size()?,
            markov_bits: info.markov_bits,
            limits: fit.limits(config.vram_budget, config.dtype),
            speed: fit.speed().cloned(),
            typed,
        })
    }

    /// Returns the settings that were typed as the preset has them: now, in place of a recipe's, or before.
    fn as_in_preset(&self, form: &SettingsForm) -> impl Iterator<Item = (String, String)> {
        let replaced = |(key, text): &&(&str, String)| form.text(key) != *text;
        let now = self.applied.iter().filter(replaced).map(|(key, _)| key.to_string());
        let before = self.kept.iter().filter(|(key, text)| form.text(key) == *text);
        let keys = before.map(|(key, _)| key.clone()).chain(now);
        let is_typed = |key: &String| !form.is_changed(key) && !OF_THE_TIME.contains(&&**key);
        keys.filter(is_typed).map(|key| {
            let text = form.text(&key);
            (key, text)
        })
    }

    /// Makes the recipes again if something has changed, and puts the chosen one into the form. While a
    /// run of this window trains, the time until the moment stays: a minute later the form would no
    /// longer show the settings of the run.
    pub fn update(&mut self, form: &mut SettingsForm, inputs: RecipeInputs, is_training: bool) {
        let clicked = self.clicked.take();
        let until = if clicked.is_none() && is_training {
            self.until
        } else {
            seconds_until(&self.moment, &Local::now())
        };
        let is_new = self.inputs.as_ref() != Some(&inputs);
        let is_later = until != self.until;
        if is_new || is_later {
            let times = TIMES.iter().map(|(_, seconds)| Some(*seconds)).chain([until]);
            self.recipes = times.map(|seconds| inputs.recipe(form, seconds?)).collect();
            let end = next_moment(&self.moment, &Local::now());
            if let (Some(Some(recipe)), Some(end)) = (self.recipes.get_mut(MOMENT), end) {
                // By the clock, so that it ends then also after a pause.
                recipe.set.retain(|(key, _)| *key != "max_time");
                recipe.set.push(("end_at", moment_text(&end)));
            }
            self.inputs = Some(inputs);
            self.until = until;
        }
        let clicked = clicked.filter(|choice| self.recipes[*choice].is_some());
        self.chosen = clicked.or(self.chosen);
        self.by_settings &= self.chosen.is_none();
        if is_new || clicked.is_some() || is_later && self.chosen == Some(MOMENT) {
            self.apply(form);
        }
    }

    /// Puts the recipe for the chosen time into the form, in place of the former one.
    fn apply(&mut self, form: &mut SettingsForm) {
        let Some(recipe) = self.recipe().cloned() else { return };
        let data = form.text("data");
        for (key, text) in std::mem::take(&mut self.applied) {
            if form.text(key) == text {
                form.reset(key);
            }
        }
        self.preset.get_or_insert(form.preset());
        form.set_preset(BASE);
        form.set("data", data);
        let typed = self.inputs.iter().flat_map(|inputs| &inputs.typed);
        typed.for_each(|(key, text)| form.set(key, text.as_str()));
        let typed = self.inputs.iter().flat_map(|inputs| &inputs.typed);
        self.kept = typed.filter(|(key, _)| !form.is_changed(key)).cloned().collect();
        recipe.set.iter().for_each(|(key, text)| form.set(key, text.as_str()));
        self.applied = recipe.set;
    }

    /// Leaves the length of the run to the settings.
    pub fn leave_to_settings(&mut self) {
        self.chosen = None;
        self.by_settings = true;
        self.preset = None;
        self.applied.clear();
        self.kept.clear();
    }

    /// Returns true if it is known how long the run is to be.
    pub fn is_answered(&self) -> bool {
        self.by_settings || self.recipe().is_some()
    }

    /// Returns `form` as it was before a time was chosen, with what was typed since.
    pub fn without_recipe(&self, form: &SettingsForm) -> SettingsForm {
        let mut form = form.clone();
        let is_of_recipe = |(key, text): &&(&str, String)| form.text(key) == *text;
        let keys: Vec<_> = self.applied.iter().filter(is_of_recipe).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| form.reset(key));
        if let Some(preset) = self.preset {
            let typed: Vec<(String, String)> =
                form.changes().map(|(key, text)| (key.into(), text.into())).collect();
            form.set_preset(preset);
            typed.into_iter().for_each(|(key, text)| form.set(&key, text));
        }
        form
    }

    /// Describes the settings of the chosen recipe.
    pub fn title(&self) -> Option<String> {
        self.recipe()?;
        Some(match TIMES.get(self.chosen?) {
            Some((name, _)) => format!("Chosen for {name}"),
            None => format!("Chosen until {}", self.moment.trim().trim_start_matches("until ")),
        })
    }

    /// Returns the recipe for the chosen time.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.recipes.get(self.chosen?)?.as_ref()
    }
}

/// Returns the seconds from `now` to the moment of `text`, in whole minutes: `7:30` is the next
/// such moment, `2026-11-28 07:30` has its date. `None` if it is no moment or not in the future.
fn seconds_until<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Option<u64> {
    let minutes = next_moment(text, now)?.signed_duration_since(now).num_minutes();
    u64::try_from(minutes).ok().filter(|minutes| *minutes > 0).map(|minutes| 60 * minutes)
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;
    use crate::config::{Dtype, Precision};
    use crate::plan::{DeviceProfile, gpu_named};
    use crate::protocol::DataInfo;

    const NIGHT: usize = 2;

    fn data(train_tokens: u64) -> Option<Result<DataInfo, String>> {
        let val_tokens = train_tokens / 10;
        Some(Ok(DataInfo { vocab_size: 65, train_tokens, val_tokens, ..DataInfo::default() }))
    }

    #[test]
    fn a_chosen_time_fills_the_form_and_typed_settings_stay() {
        let mut times = TimeState::default();
        let mut form = SettingsForm::default();
        form.set("data", "data/mine");
        form.data = data(1_000_000_000);
        let mut fit = FitState::default();
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        fit.set_device(DeviceProfile { speed, ..DeviceProfile::default() });
        let mut choose = |form: &mut SettingsForm, choice: usize| {
            times.clicked = Some(choice);
            let inputs = times.inputs(form, &fit).unwrap();
            times.update(form, inputs, false);
            form.config().unwrap().parameters(65)
        };
        let minutes = choose(&mut form, 0);
        form.set("learning_rate", "1e-4");
        let night = choose(&mut form, NIGHT);
        assert!(minutes < night, "{minutes}, {night}");
        let texts = ["learning_rate", "data", "max_time"].map(|key| form.text(key));
        assert_eq!(texts, ["1e-4", "data/mine", "8h"]);
        assert_eq!(form.config().unwrap().dtype, Dtype::Auto);
        // What was typed stays, also if the recipe's preset has it.
        assert_ne!(form.text("block_size"), "1024");
        form.set("block_size", "1024");
        for choice in [NIGHT, 0, NIGHT] {
            choose(&mut form, choice);
            assert_eq!(form.text("block_size"), "1024");
        }
        form.set("block_size", "512");
        choose(&mut form, NIGHT);
        form.reset("block_size");
        choose(&mut form, NIGHT);
        assert_ne!(form.text("block_size"), "1024");
        // Less data, a smaller model.
        form.data = data(1_000_000);
        assert!(choose(&mut form, NIGHT) < night);
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
}
