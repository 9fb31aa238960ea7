//! The memory plan: whether the run fits on its device, and the changes that would make it fit.

use eframe::egui::{self, RichText};

use super::form::{Form, capitalize};
use super::{Intent, host, theme};
use crate::config::{Budget, Config, bytes};
use crate::plan::{self, Fix, Forecast, Limits, PlanError};
use crate::progress::{Progress, State};
use crate::protocol::{Command, Step};

mod bar;

/// Memory and limits of a device, in bytes.
pub(super) struct Card {
    /// Total memory, free memory, and the source of the figures.
    pub memory: Option<(u64, u64, String)>,
    /// The value of the budget `auto`.
    pub budget: Option<u64>,
    /// The largest buffer that a kernel can bind.
    pub largest_tensor: Option<u64>,
    /// True if memory is allocated in pools.
    pub pools: bool,
    /// True if the ops run on cubecl kernels.
    pub cube: bool,
}

/// State of the panel: memory and limits of the selected device, in bytes, and the last plan.
#[derive(Default)]
pub(super) struct FitState {
    /// Total memory, free memory, and the source of the figures.
    pub card: Option<(u64, u64, String)>,
    /// The value of the budget `auto`.
    pub budget: Option<u64>,
    /// The largest buffer that a kernel can bind.
    pub largest_tensor: Option<u64>,
    /// True if memory is allocated in pools.
    pub pools: bool,
    /// True if the ops run on cubecl kernels.
    pub cube: bool,
    /// True once a device has been queried.
    known: bool,
    /// Memory in use by other programs.
    pub others: Option<u64>,
    cached: Option<CachedPlan>,
    /// A budget that was set by hand but not yet sent to the active run.
    unsent: Option<u64>,
}

/// A plan with the inputs that it was made for.
struct CachedPlan {
    config: Config,
    vocab: u32,
    limits: Limits,
    plan: Result<Forecast, PlanError>,
}

/// GPT-2's vocabulary, assumed until the settings or the data give another size.
const GPT2_VOCABULARY: u32 = 50_257;

const GIB: f64 = (1u64 << 30) as f64;

/// The range of the budget slider, in GiB. The upper end holds where the memory of the device is
/// unknown.
const MIN_BUDGET: f64 = 0.5;
const MAX_BUDGET: f64 = 24.0;

impl FitState {
    /// Sets the memory and limits of the selected device.
    pub fn set_card(&mut self, card: Card) {
        let Card { memory, budget, largest_tensor, pools, cube } = card;
        self.others = memory.as_ref().map(|(total, free, _)| total.saturating_sub(*free));
        (self.card, self.budget) = (memory, budget);
        (self.largest_tensor, self.pools, self.cube) = (largest_tensor, pools, cube);
        self.known = true;
    }

    /// Returns the limits that the plan for `config` must respect.
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

    /// Returns the plan for `config`, from the cache if nothing has changed.
    fn plan(&mut self, config: &Config, vocab: u32) -> &CachedPlan {
        let limits = self.limits(config);
        let is_current = |cached: &CachedPlan| {
            cached.config == *config && cached.vocab == vocab && cached.limits == limits
        };
        let cached = self.cached.take().filter(is_current);
        self.cached.insert(cached.unwrap_or_else(|| {
            let plan = plan::plan(config, vocab, &limits);
            CachedPlan { config: config.clone(), vocab, limits, plan }
        }))
    }
}

/// Draws the panel. Edits the form when a suggested change or another budget is picked.
pub(super) fn show(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut FitState,
    progress: &Progress,
) -> Option<Intent> {
    let Ok(config) = form.config() else {
        ui.weak("Correct the settings to see the plan.");
        return None;
    };
    let is_active = matches!(progress.state, State::Running | State::Paused);
    let now = progress.last_step.as_ref().filter(|_| is_active);
    let others = now.and_then(|step| step.others_bytes).or(state.others);
    let total = state.card.as_ref().map(|(total, ..)| *total);
    let vocab = vocab_size(form, config);
    let CachedPlan { plan, limits, .. } = state.plan(config, vocab);
    let forecast = match plan {
        Ok(forecast) => Some(forecast),
        Err(PlanError::TooBig { least, .. }) => Some(&**least),
        Err(PlanError::TensorTooLarge { .. }) => None,
    };
    if let Some(forecast) = forecast {
        bar::show(ui, &bar::Contents { forecast, others, total, now });
    }
    let fix = verdict(ui, plan, limits.budget);
    let limits = *limits;
    if let Some(step) = now {
        memory_in_use(ui, step, limits.budget);
    }
    if let Some(options) = fix {
        apply(form, &options);
    }
    ui.add_space(4.0);
    let intent = budget(ui, form, state, limits.budget, is_active);
    device_memory(ui, state);
    intent
}

fn vocab_size(form: &Form, config: &Config) -> u32 {
    match (config.vocab_size, &form.data) {
        (0, Some(Ok(data))) => data.vocab_size,
        (0, _) => GPT2_VOCABULARY,
        (size, _) => size,
    }
}

/// Draws whether the run fits. Returns the options of the suggested change that was clicked.
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
                None => format!("Needs {need}. No budget is set."),
            };
            wrapped(ui, RichText::new(text).strong().color(theme::good(ui)));
            split(ui, forecast);
            None
        }
        Err(PlanError::TooBig { least, fixes }) => {
            let (need, have) = (least.predicted_bytes, budget.unwrap_or(0));
            let short = bytes(need.saturating_sub(have));
            let text = format!("Does not fit: {short} short");
            wrapped(ui, RichText::new(text).strong().color(theme::error(ui)));
            let text = format!("It needs at least {}; the budget is {}.", bytes(need), bytes(have));
            wrapped(ui, RichText::new(text));
            suggestions(ui, fixes)
        }
        Err(error @ PlanError::TensorTooLarge { .. }) => {
            let text = RichText::new("Does not fit").strong().color(theme::error(ui));
            wrapped(ui, text);
            let error = capitalize(&error.to_string());
            wrapped(ui, RichText::new(format!("{error}. Reduce n_embd or block_size.")));
            None
        }
    }
}

/// Draws how a step is split, and why.
fn split(ui: &mut egui::Ui, forecast: &Forecast) {
    let plan = &forecast.plan;
    let checkpointing = if plan.grad_checkpoint { "on" } else { "off" };
    let rows = [
        (
            "micro-batch",
            format!("{} x {}", plan.micro_batch, plan.accumulation),
            "Sequences on the device at a time, and accumulation steps per update",
        ),
        (
            "logits chunk",
            format!("{} rows", plan.loss_chunk),
            "Rows of the logits that are computed at a time",
        ),
        (
            "activation checkpointing",
            checkpointing.to_string(),
            "Recomputes blocks in the backward pass: less memory for a third more compute",
        ),
    ];
    egui::Grid::new("split").num_columns(2).show(ui, |ui| {
        for (name, value, help) in rows {
            ui.weak(name).on_hover_text(help);
            ui.label(value).on_hover_text(help);
            ui.end_row();
        }
    });
    if !forecast.why.is_empty() {
        wrapped(ui, RichText::new(&forecast.why).small().weak());
    }
}

/// Draws a button for each change that makes the run fit. Returns the options of the clicked one.
fn suggestions(ui: &mut egui::Ui, fixes: &[Fix]) -> Option<String> {
    if fixes.is_empty() {
        return None;
    }
    ui.weak("Any of these changes makes it fit:");
    let mut clicked = None;
    for Fix { option, predicted_bytes } in fixes {
        let change = option.trim_start_matches("--").replace(" --", ", ").replace('=', " = ");
        let text = format!("{change}  ({})", bytes(*predicted_bytes));
        let button = ui.add(egui::Button::new(text).wrap());
        if button.on_hover_text("Apply this change to the settings").clicked() {
            clicked = Some(option.clone());
        }
    }
    clicked
}

/// Sets options such as `--n_head=6 --n_embd=384` in the form.
fn apply(form: &mut Form, options: &str) {
    for option in options.split_whitespace() {
        if let Some((key, value)) = option.trim_start_matches("--").split_once('=') {
            form.set(key, value);
        }
    }
}

/// Draws the memory that the run holds now, and its peak.
fn memory_in_use(ui: &mut egui::Ui, step: &Step, budget: Option<u64>) {
    let Some(held) = step.vram_bytes else { return };
    let is_over = budget.is_some_and(|budget| held > budget);
    let mut text = format!("The run holds {} now", bytes(held));
    if let Some(peak) = step.vram_peak_bytes {
        text += &format!(", {} at its peak", bytes(peak));
    }
    let text = RichText::new(text);
    wrapped(ui, if is_over { text.color(theme::warning(ui)) } else { text });
}

/// Draws the budget slider. An active run receives the new budget when the slider is released.
fn budget(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut FitState,
    budget: Option<u64>,
    is_active: bool,
) -> Option<Intent> {
    let max = state.card.as_ref().map_or(MAX_BUDGET, |(total, ..)| *total as f64 / GIB);
    let max = max.max(MIN_BUDGET + 0.1);
    let mut gib = budget.map_or(max, |budget| budget as f64 / GIB);
    let is_dragged = ui.horizontal_wrapped(|ui| {
        let label = ui.label("Budget").on_hover_text("The most memory that the run may use");
        ui.spacing_mut().slider_width = (ui.available_width() - 140.0).clamp(60.0, 260.0);
        let slider = egui::Slider::new(&mut gib, MIN_BUDGET..=max).step_by(0.1);
        // `Always` would round an untouched budget to a step, and that counts as an edit.
        let slider = slider.clamping(egui::SliderClamping::Edits);
        let slider = slider.fixed_decimals(1).update_while_editing(false);
        let slider = match budget {
            Some(_) => slider.suffix(" GiB"),
            None => slider.custom_formatter(|_, _| "none".into()),
        };
        let response = ui.add(slider).labelled_by(label.id);
        if response.changed() {
            form.set("vram_budget", budget_text(gib));
            state.unsent = form.config().ok().and_then(|config| state.limits(config).budget);
        }
        let hover = match host::IS_PAGE {
            true => "Use the default budget for browsers",
            false => "Use the free memory of the device, less a reserve for other programs",
        };
        let auto = egui::Button::new("auto");
        let is_set = form.text("vram_budget") != AUTO;
        if ui.add_enabled(is_set, auto).on_hover_text(hover).clicked() {
            form.set("vram_budget", AUTO);
            state.unsent = state.budget;
        }
        response.dragged()
    });
    let released = if is_dragged.inner { None } else { state.unsent.take() };
    released.filter(|_| is_active).map(|bytes| {
        let key = "vram_budget".to_string();
        Intent::Tell(Command::Set { key, value: bytes as f64 })
    })
}

/// The budget that is derived from the device.
const AUTO: &str = "auto";

/// Formats a budget as it would be typed: `6.5GiB`.
fn budget_text(gib: f64) -> String {
    let text = format!("{gib:.1}");
    format!("{}GiB", text.strip_suffix(".0").unwrap_or(&text))
}

/// Draws the total and free memory of the device, or why they are unknown.
fn device_memory(ui: &mut egui::Ui, state: &FitState) {
    let text = match &state.card {
        Some((total, free, source)) => {
            format!("The device has {}, {} of it free ({source}).", bytes(*total), bytes(*free))
        }
        None if !state.known => "Querying the device...".into(),
        None if !state.pools => "The CPU uses as much memory as it needs.".into(),
        None if host::IS_PAGE => {
            "Browsers do not report how much memory the device has. A run uses at most 1 GiB unless \
             you set a larger budget."
                .into()
        }
        None => "The device does not report its memory. Set a budget by hand.".into(),
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
    fn every_form_of_the_budget_is_resolved_for_the_device() {
        for (text, budget) in [
            ("auto", Some(6 << 30)),
            ("50%", Some(4 << 30)),
            ("1.5GiB", Some(3 << 29)),
            ("none", None),
        ] {
            let form = form(&[("vram_budget", text)]);
            assert_eq!(card(6 << 30).limits(form.config().unwrap()).budget, budget, "{text}");
        }
        assert_eq!(
            (budget_text(6.5), budget_text(8.0)),
            ("6.5GiB".to_string(), "8GiB".to_string())
        );
    }

    #[test]
    fn every_suggested_change_makes_the_run_fit() {
        let state = &mut card(2 << 30);
        let tight = form(&[("vram_budget", "1GiB")]);
        let plan = state.plan(tight.config().unwrap(), 50_257).plan.clone();
        let Err(PlanError::TooBig { fixes, .. }) = plan else { panic!("{plan:?}") };
        assert!(!fixes.is_empty());
        for fix in fixes {
            let mut form = tight.clone();
            apply(&mut form, &fix.option);
            let cached = state.plan(form.config().unwrap(), 50_257);
            assert!(cached.plan.is_ok(), "{}", fix.option);
        }
    }

    #[test]
    fn the_vocabulary_comes_from_the_setting_then_the_data_then_gpt2() {
        let mut form = form(&[]);
        let vocab = |form: &Form| vocab_size(form, form.config().unwrap());
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
