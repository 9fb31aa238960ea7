//! Whether a run fits into the memory of its device, and what it would take to make it fit.

use std::num::NonZeroU64;

use eframe::egui::{self, RichText};

use super::form::Form;
use super::{Intent, host, theme};
use crate::config::{Budget, Config, bytes};
use crate::plan::{self, Fix, Forecast, Limits, PlanError};
use crate::progress::{Progress, State};
use crate::protocol::{Command, Setting, Step};

mod bar;

/// What a device allows, in bytes.
pub(super) struct Card {
    /// All of its memory, what is free of it, and who says so.
    pub memory: Option<(u64, u64, String)>,
    /// What the budget `auto` is there.
    pub budget: Option<u64>,
    /// The most that a kernel can be given at once.
    pub largest_tensor: Option<u64>,
    /// Whether memory comes from pools.
    pub pools: bool,
    /// Whether its kernels are those of `ops::cube`.
    pub cube: bool,
}

/// What is known of the chosen device, in bytes, and the last answer.
#[derive(Default)]
pub(super) struct FitState {
    /// All of its memory, what is free of it, and who says so.
    pub card: Option<(u64, u64, String)>,
    /// What the budget `auto` is there.
    pub budget: Option<u64>,
    /// The most that a kernel can be given at once.
    pub largest_tensor: Option<u64>,
    /// Whether memory comes from pools.
    pub pools: bool,
    /// Whether its kernels are those of `ops::cube`.
    pub cube: bool,
    /// Whether any device was looked at yet.
    known: bool,
    /// What other programs take.
    pub others: Option<u64>,
    answer: Option<Answer>,
    /// A budget that was set by hand and that the run has not been told.
    untold: Option<u64>,
}

/// What the plan was for what was asked.
struct Answer {
    config: Config,
    vocab: u32,
    limits: Limits,
    plan: Result<Forecast, PlanError>,
}

/// Tokens of GPT-2, where neither the settings nor the data say how many there are.
const GPT2_VOCABULARY: u32 = 50_257;

const GIB: f64 = (1u64 << 30) as f64;

/// The least budget that can be set by hand, and the most where nobody says what the device has, in
/// GiB.
const LEAST_BUDGET: f64 = 0.5;
const MOST_BUDGET: f64 = 24.0;

impl FitState {
    /// Takes what is known of another device.
    pub fn set_card(&mut self, card: Card) {
        let Card { memory, budget, largest_tensor, pools, cube } = card;
        self.others = memory.as_ref().map(|(total, free, _)| total.saturating_sub(*free));
        (self.card, self.budget) = (memory, budget);
        (self.largest_tensor, self.pools, self.cube) = (largest_tensor, pools, cube);
        self.known = true;
    }

    /// What the run of `config` may take of the device.
    fn limits(&self, config: &Config) -> Limits {
        let total = self.card.as_ref().map(|(total, ..)| *total);
        let budget = match config.vram_budget {
            Budget::Auto => self.budget,
            Budget::Bytes(budget) => Some(budget),
            Budget::Percent(share) => total.map(|total| (total as f64 * share / 100.0) as u64),
            Budget::Unlimited => None,
        };
        let pools = self.pools || !self.known;
        Limits {
            budget,
            largest_tensor: self.largest_tensor,
            pools,
            cube: self.cube,
            memory: total,
        }
    }

    /// The plan for `config`, made anew only where something has changed.
    fn answer(&mut self, config: &Config, vocab: u32) -> &Answer {
        let limits = self.limits(config);
        let is_same = |answer: &Answer| {
            answer.config == *config && answer.vocab == vocab && answer.limits == limits
        };
        let kept = self.answer.take().filter(is_same);
        self.answer.insert(kept.unwrap_or_else(|| {
            let plan = plan::plan(config, vocab, &limits);
            Answer { config: config.clone(), vocab, limits, plan }
        }))
    }
}

/// Draws what the run takes of the device's memory.
pub(super) fn show(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut FitState,
    progress: &Progress,
) -> Option<Intent> {
    let Ok(config) = form.config() else {
        ui.weak("Correct the settings first.");
        return None;
    };
    let now = progress.last_step.as_ref().filter(|_| is_going_on(progress));
    let others = now.and_then(|step| step.others_bytes).or(state.others);
    let total = state.card.as_ref().map(|(total, ..)| *total);
    let vocab = vocabulary(form, config);
    let Answer { plan, limits, .. } = state.answer(config, vocab);
    let forecast = match plan {
        Ok(forecast) => Some(forecast),
        Err(PlanError::TooBig { least, .. }) => Some(&**least),
        Err(PlanError::TensorTooLarge { .. }) => None,
    };
    if let Some(forecast) = forecast {
        bar::show(ui, &bar::Contents { forecast, others, total, now });
    }
    let wanted = verdict(ui, plan, limits.budget);
    let limits = *limits;
    if let Some(step) = now {
        held(ui, step, limits.budget);
    }
    if let Some(options) = wanted {
        apply(form, &options);
    }
    ui.add_space(4.0);
    let intent = budget(ui, form, state, limits.budget, is_going_on(progress));
    about_device(ui, state);
    intent
}

fn is_going_on(progress: &Progress) -> bool {
    matches!(progress.state, State::Running | State::Paused)
}

fn vocabulary(form: &Form, config: &Config) -> u32 {
    match (config.vocab_size, &form.data) {
        (0, Some(Ok(data))) => data.vocab_size,
        (0, _) => GPT2_VOCABULARY,
        (asked, _) => asked,
    }
}

/// Whether it fits, in words. Gives the options of a change that was asked for.
fn verdict(
    ui: &mut egui::Ui,
    plan: &Result<Forecast, PlanError>,
    budget: Option<u64>,
) -> Option<String> {
    match plan {
        Ok(forecast) => {
            let need = bytes(forecast.predicted_bytes);
            let text = match budget {
                Some(budget) => format!("Fits: {need} of {}", bytes(budget)),
                None => format!("Takes {need}. No budget is set."),
            };
            wrapped(ui, RichText::new(text).strong().color(theme::good(ui)));
            cut(ui, forecast);
            None
        }
        Err(PlanError::TooBig { least, fixes }) => {
            let (need, have) = (least.predicted_bytes, budget.unwrap_or(0));
            let missing = bytes(need.saturating_sub(have));
            let text = format!("Does not fit: {missing} are missing");
            wrapped(ui, RichText::new(text).strong().color(theme::error(ui)));
            let (need, have) = (bytes(need), bytes(have));
            wrapped(
                ui,
                RichText::new(format!("It needs {need} at the least, and may take {have}.")),
            );
            self::fixes(ui, fixes)
        }
        Err(error @ PlanError::TensorTooLarge { .. }) => {
            let text = RichText::new("Does not fit").strong().color(theme::error(ui));
            wrapped(ui, text);
            wrapped(ui, RichText::new(format!("{error}. A smaller n_embd or block_size helps.")));
            None
        }
    }
}

/// How a step is cut, and why.
fn cut(ui: &mut egui::Ui, forecast: &Forecast) {
    let plan = &forecast.plan;
    let rows = [
        ("micro-batch", format!("{} x {}", plan.micro_batch, plan.accumulation)),
        ("logits", format!("{} rows at a time", plan.loss_chunk)),
        ("blocks", if plan.grad_checkpoint { "run again" } else { "run once" }.to_string()),
    ];
    let help = [
        "Sequences on the card at a time, and how often before the weights change",
        "Rows of the last product that exist at a time",
        "Blocks that run again for their gradients need less memory and a third more work",
    ];
    egui::Grid::new("cut").num_columns(2).show(ui, |ui| {
        for ((name, value), help) in rows.iter().zip(help) {
            ui.weak(*name).on_hover_text(help);
            ui.label(value).on_hover_text(help);
            ui.end_row();
        }
    });
    if !forecast.why.is_empty() {
        wrapped(ui, RichText::new(&forecast.why).small().weak());
    }
}

/// A button for each change that makes it fit.
fn fixes(ui: &mut egui::Ui, fixes: &[Fix]) -> Option<String> {
    if fixes.is_empty() {
        return None;
    }
    ui.weak("It fits with one of these:");
    let mut picked = None;
    for Fix { option, predicted_bytes } in fixes {
        let words = option.trim_start_matches("--").replace(" --", ", ").replace('=', " = ");
        let text = format!("{words}  ({})", bytes(*predicted_bytes));
        let button = ui.add(egui::Button::new(text).wrap()).on_hover_text("Change the settings so");
        if button.clicked() {
            picked = Some(option.clone());
        }
    }
    picked
}

/// Types options such as `--n_head=6 --n_embd=384` into the form.
fn apply(form: &mut Form, options: &str) {
    for option in options.split_whitespace() {
        if let Some((key, value)) = option.trim_start_matches("--").split_once('=') {
            form.set(key, value);
        }
    }
}

/// What the run holds now.
fn held(ui: &mut egui::Ui, step: &Step, budget: Option<u64>) {
    let Some(held) = step.vram_bytes else { return };
    let is_over = budget.is_some_and(|budget| held > budget);
    let mut text = format!("The run holds {} now", bytes(held));
    if let Some(peak) = step.vram_peak_bytes {
        text += &format!(", {} at the most", bytes(peak));
    }
    let text = RichText::new(text);
    wrapped(ui, if is_over { text.color(theme::warning(ui)) } else { text });
}

/// The budget, to be set by hand. A run that is going on is told when the hand lets go.
fn budget(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut FitState,
    budget: Option<u64>,
    is_going_on: bool,
) -> Option<Intent> {
    let most = state.card.as_ref().map_or(MOST_BUDGET, |(total, ..)| *total as f64 / GIB);
    let most = most.max(LEAST_BUDGET + 0.1);
    let mut gib = budget.map_or(most, |budget| budget as f64 / GIB);
    let held = ui.horizontal_wrapped(|ui| {
        let label = ui.label("Budget").on_hover_text("Memory that the run may take at the most");
        ui.spacing_mut().slider_width = (ui.available_width() - 140.0).clamp(60.0, 260.0);
        let slider = egui::Slider::new(&mut gib, LEAST_BUDGET..=most).step_by(0.1);
        // What nobody touches stays as it is: `Always` would round it to a step, as if by hand.
        let slider = slider.clamping(egui::SliderClamping::Edits);
        let slider = slider.fixed_decimals(1).update_while_editing(false);
        let slider = match budget {
            Some(_) => slider.suffix(" GiB"),
            None => slider.custom_formatter(|_, _| "none".into()),
        };
        let response = ui.add(slider).labelled_by(label.id);
        if response.changed() {
            form.set("vram_budget", typed(gib));
            state.untold = form.config().ok().and_then(|config| state.limits(config).budget);
        }
        let hover = match host::IS_PAGE {
            true => "What a page takes unless it is told otherwise",
            false => "What is free on the device, less a reserve for other programs",
        };
        let auto = egui::Button::new("auto");
        let is_set = form.text("vram_budget") != AUTO;
        if ui.add_enabled(is_set, auto).on_hover_text(hover).clicked() {
            form.set("vram_budget", AUTO);
            state.untold = state.budget;
        }
        response.dragged()
    });
    let told = if held.inner { None } else { state.untold.take() };
    let told = told.filter(|_| is_going_on).and_then(NonZeroU64::new);
    told.map(|bytes| Intent::Tell(Command::Set(Setting::VramBudget(bytes))))
}

/// The budget that a device gives by itself.
const AUTO: &str = "auto";

/// A budget as it is typed: `6.5GiB`.
fn typed(gib: f64) -> String {
    let text = format!("{gib:.1}");
    format!("{}GiB", text.strip_suffix(".0").unwrap_or(&text))
}

fn about_device(ui: &mut egui::Ui, state: &FitState) {
    let text = match &state.card {
        Some((total, free, source)) => {
            format!("The device has {}, {} of it free ({source}).", bytes(*total), bytes(*free))
        }
        None if !state.known => "Looking at the device...".into(),
        None if !state.pools => "The processor takes what memory it needs.".into(),
        None if host::IS_PAGE => {
            "No browser says how much memory the device has: a run takes 1 GiB at the most, unless \
             you say more."
                .into()
        }
        None => "Nobody says how much memory the device has: set a budget by hand.".into(),
    };
    wrapped(ui, RichText::new(text).small().weak());
}

fn wrapped(ui: &mut egui::Ui, text: RichText) -> egui::Response {
    ui.add(egui::Label::new(text).wrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(settings: &[(&str, &str)]) -> Form {
        let mut form = Form::default();
        form.set_preset("gpt2");
        settings.iter().for_each(|(key, text)| form.set(key, *text));
        form
    }

    fn card(budget: u64) -> FitState {
        let card = Some((8 << 30, 7 << 30, "a test".to_string()));
        FitState { card, budget: Some(budget), pools: true, ..FitState::default() }
    }

    #[test]
    fn the_budget_is_what_was_asked_of_this_card() {
        for (text, budget) in [
            ("auto", Some(6 << 30)),
            ("50%", Some(4 << 30)),
            ("1.5GiB", Some(3 << 29)),
            ("none", None),
        ] {
            let form = form(&[("vram_budget", text)]);
            assert_eq!(card(6 << 30).limits(form.config().unwrap()).budget, budget, "{text}");
        }
        assert_eq!((typed(6.5), typed(8.0)), ("6.5GiB".to_string(), "8GiB".to_string()));
    }

    #[test]
    fn every_offered_change_makes_it_fit() {
        let state = &mut card(2 << 30);
        let tight = form(&[("vram_budget", "1GiB")]);
        let plan = state.answer(tight.config().unwrap(), 50_257).plan.clone();
        let Err(PlanError::TooBig { fixes, .. }) = plan else { panic!("{plan:?}") };
        assert!(!fixes.is_empty());
        for fix in fixes {
            let mut form = tight.clone();
            apply(&mut form, &fix.option);
            let answer = state.answer(form.config().unwrap(), 50_257);
            assert!(answer.plan.is_ok(), "{}", fix.option);
        }
    }

    #[test]
    fn the_vocabulary_is_what_is_known_of_it() {
        let mut form = form(&[]);
        let vocab = |form: &Form| vocabulary(form, form.config().unwrap());
        assert_eq!(vocab(&form), GPT2_VOCABULARY);
        form.data = Some(Ok(crate::gui::form::DataInfo {
            vocab_size: 65,
            train_tokens: 1000,
            val_tokens: 100,
        }));
        assert_eq!(vocab(&form), 65);
        form.set("vocab_size", "100");
        assert_eq!(vocab(&form), 100);
    }
}
