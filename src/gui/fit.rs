//! The memory plan: does the run fit its device, and how much memory does it need?

use std::num::NonZeroU64;

use eframe::egui::{self, RichText, Ui};

use super::intent::Intent;
use super::state::{AUTO, FitState, Planned, SettingsForm, Shared, in_words};
use super::target::IS_PAGE;
use super::theme;
use super::widgets::{action, button, note, weak_note, wrapped};
use crate::config::{Budget, Config, Dtype};
use crate::plan::{self, DeviceMemory, Fix, Forecast, Limits, Row, Totals};
use crate::protocol::{Command, Progress, RankLine, RankStep, RunPhase, Setting, Step};
use crate::text::{GIB, bytes, capitalize, known, percent};

pub(super) mod bar;

/// The range of the budget slider, in GiB. The upper end holds where the memory of the device is
/// unknown.
const MIN_BUDGET: f64 = 0.5;
const MAX_BUDGET: f64 = 24.0;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, shown, fit, .. } = shared;
    let form = &mut settings.form;
    let progress = &shown.progress;
    let is_active = matches!(progress.state, RunPhase::Running | RunPhase::Paused);
    let now = progress.last_step.as_ref().filter(|_| is_active);
    // What other programs use now, or have used when the device was queried.
    let queried = match fit.device.as_ref().map(|device| &device.memory) {
        Some(DeviceMemory::Reported { total, free, .. }) => Some(total.saturating_sub(*free)),
        _ => None,
    };
    let others = now.and_then(|step| step.others_bytes).or(queried);
    let Some(Planned { inputs, forecast, refusal }) = fit.plan(form) else {
        ui.weak("Correct the settings to see the plan.");
        return None;
    };
    let limits = inputs.limits;
    // Setup has the changes that make the run fit, next to the start button.
    let verdict = match forecast {
        Some((forecast, _)) => forecast.verdict(),
        None => "Does not fit: a tensor is too large for the device".into(),
    };
    let color = if refusal.is_none() { theme::good(ui) } else { theme::error(ui) };
    wrapped(ui, RichText::new(verdict).strong().color(color));
    if let Some((forecast, totals)) = forecast {
        bar::show(ui, forecast, others, limits.memory, now);
        figures(ui, forecast, totals);
        // Before the data were read, the vocabulary is a guess.
        let advice = inputs.data.map(|_| totals.advice(&inputs.config));
        for text in advice.into_iter().flatten() {
            note(ui, capitalize(&text), theme::warning(ui));
        }
    }
    if let Some(step) = now {
        memory_in_use(ui, step, limits.budget);
        rank_table(ui, progress, step);
    }
    ui.add_space(4.0);
    let new_budget = budget(ui, form, fit, limits).filter(|_| is_active);
    device_memory(ui, fit);
    new_budget.map(|bytes| Intent::Send(Command::Set(Setting::VramBudget(bytes))))
}

fn figures(ui: &mut Ui, forecast: &Forecast, totals: &Totals) {
    const HELP: [(&str, &str); 7] = [
        ("model", "Weights, without padding"),
        ("run", "Updates of the weights, each from one global batch"),
        ("data", "Passes over the training data"),
        ("disk", "The kept checkpoints, the best one, and one that is being written"),
        ("time", "Without samples and checkpoints"),
        ("step", "Sequences on the device at a time, accumulation steps, rows of logits at a time"),
        ("host", "The CPU updates the weights there, so that the device needs less memory"),
    ];
    let mut lines = totals.lines();
    if totals.time.is_none() {
        lines.push(("time", "unknown until a run on this device has measured it".into()));
    }
    lines.push(("step", forecast.plan.to_string()));
    if !forecast.host_rows.is_empty() {
        let row = |row: &Row| format!("{} {}", row.name, bytes(row.bytes));
        lines.push(("host", forecast.host_rows.iter().map(row).collect::<Vec<_>>().join(", ")));
    }
    let mut help = "";
    egui::Grid::new("figures").num_columns(2).show(ui, |ui| {
        for (label, text) in lines {
            help = HELP.iter().find(|(name, _)| *name == label).map_or(help, |(_, help)| help);
            ui.weak(label).on_hover_text(help);
            wrapped(ui, RichText::new(text)).on_hover_text(help);
            ui.end_row();
        }
    });
    if !forecast.why.is_empty() {
        weak_note(ui, &forecast.why);
    }
}

fn memory_in_use(ui: &mut Ui, step: &Step, budget: Option<u64>) {
    let Some(held) = step.vram_bytes else { return };
    let is_over = budget.is_some_and(|budget| held > budget);
    let mut text = format!("The run holds {} now", bytes(held));
    if let Some(peak) = step.vram_peak_bytes {
        text += &format!(", {} at its peak", bytes(peak));
    }
    if let Some(optimizer_ms) = step.optimizer_ms {
        let share = percent(optimizer_ms / step.ms, 0);
        text += &format!("; updates in host memory take {share} of the time");
    }
    let text = RichText::new(text);
    wrapped(ui, if is_over { text.color(theme::warning(ui)) } else { text });
}

/// Draws the budget slider. Returns a new budget when the slider is released, for the active
/// run.
fn budget(
    ui: &mut Ui,
    form: &mut SettingsForm,
    fit: &mut FitState,
    limits: Limits,
) -> Option<NonZeroU64> {
    let max = limits.memory.map_or(MAX_BUDGET, |total| total as f64 / GIB);
    let max = max.max(MIN_BUDGET + 0.1);
    let mut gib = limits.budget.map_or(max, |budget| budget as f64 / GIB);
    let is_dragged = ui.horizontal_wrapped(|ui| {
        let label = ui.label("Budget").on_hover_text("The most memory that the run may use");
        let left = ui.available_size_before_wrap().x;
        ui.spacing_mut().slider_width = (left - 140.0).clamp(60.0, 260.0);
        let slider = egui::Slider::new(&mut gib, MIN_BUDGET..=max).step_by(0.1);
        // `Always` would round an untouched budget to a step, and that counts as an edit.
        let slider = slider.clamping(egui::SliderClamping::Edits);
        let slider = slider.fixed_decimals(1).update_while_editing(false);
        let slider = match limits.budget {
            Some(_) => slider.suffix(" GiB"),
            None => slider.custom_formatter(|_, _| "none".into()),
        };
        let response = ui.add(slider).labelled_by(label.id);
        if response.changed() {
            form.set("vram_budget", budget_text(gib));
            let limits = |config: &Config| fit.limits(config.vram_budget, config.dtype);
            fit.unsent = form.config().ok().and_then(|config| limits(config).budget);
        }
        let is_auto = form.text("vram_budget") == AUTO;
        let disabled = is_auto.then_some("The budget is chosen automatically.");
        if button(ui, AUTO, disabled, AUTO_HELP) {
            form.set("vram_budget", AUTO);
            fit.unsent = fit.limits(Budget::Auto, Dtype::Auto).budget;
        }
        response.dragged()
    });
    let released = if is_dragged.inner { None } else { fit.unsent.take() };
    released.and_then(NonZeroU64::new)
}

const AUTO_HELP: &str = if IS_PAGE {
    "Use the default budget for browsers"
} else {
    "Use the free memory of the device, less a reserve for other programs"
};

/// Formats a budget as it would be typed: `6.5GiB`.
fn budget_text(gib: f64) -> String {
    let text = format!("{gib:.1}");
    format!("{}GiB", text.strip_suffix(".0").unwrap_or(&text))
}

fn device_memory(ui: &mut Ui, fit: &FitState) {
    let text = match fit.device.as_ref().map(|device| &device.memory) {
        None => "Querying the device...".into(),
        Some(DeviceMemory::Reported { total, free, source, holders, .. }) => {
            let [total, free] = [*total, *free].map(bytes);
            let held = match &holders[..] {
                [] => String::new(),
                holders => format!(" Other programs hold: {}.", plan::listed(holders)),
            };
            format!("The device has {total}, {free} of it free ({source}).{held}")
        }
        Some(DeviceMemory::Assumed(budget)) => format!(
            "Browsers do not report how much memory the device has. A run uses at most {} unless you \
             set a larger budget.",
            bytes(*budget)
        ),
        Some(DeviceMemory::Unknown | DeviceMemory::Target(_)) => {
            "The device does not report its memory. Set a budget by hand.".into()
        }
    };
    weak_note(ui, text);
}

const COLUMNS: [(&str, &str); 6] = [
    ("rank", "The process; rank 0 owns the run folder"),
    ("device", "Its device and its machine"),
    ("share", "The sequences of the global batch that it computes"),
    ("tokens/s", "While it computes"),
    ("memory", "The memory that its device holds now"),
    ("network", "The part of an update in which it communicates, or waits for others"),
];

fn rank_table(ui: &mut Ui, progress: &Progress, step: &Step) {
    if progress.ranks.is_empty() {
        return;
    }
    ui.add_space(4.0);
    egui::Grid::new("ranks").num_columns(COLUMNS.len()).striped(true).show(ui, |ui| {
        for (label, help) in COLUMNS {
            ui.weak(label).on_hover_text(help);
        }
        ui.end_row();
        let all: u64 = progress.ranks.iter().map(|rank| rank.sequences).sum();
        for (number, (line, now)) in progress.ranks.iter().zip(&step.ranks).enumerate() {
            for text in cells(number, line, now, step.tokens / all.max(1)) {
                ui.label(text);
            }
            ui.end_row();
        }
    });
}

/// Returns the cells of a row. A sequence has `tokens` tokens.
fn cells(number: usize, line: &RankLine, now: &RankStep, tokens: u64) -> [String; 6] {
    let RankLine { device, machine, sequences } = line;
    let place = machine.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
    let per_second = (sequences * tokens) as f64 / (now.compute_ms / 1e3).max(1e-9);
    let network = now.network_ms / (now.compute_ms + now.network_ms).max(1e-9);
    [
        number.to_string(),
        format!("{device}{place}"),
        sequences.to_string(),
        format!("{per_second:.0}"),
        known(now.vram_bytes, bytes),
        percent(network, 0),
    ]
}

/// Draws a button for each change, and applies the one that is clicked.
pub(super) fn fixes(ui: &mut Ui, form: &mut SettingsForm, fixes: &[Fix]) {
    if fixes.is_empty() {
        return;
    }
    ui.weak("Any of these changes makes it fit:");
    for fix in fixes {
        let words = in_words(&fix.set);
        let text = if fix.set.iter().any(|(key, _)| *key == "vram_budget") {
            words
        } else {
            format!("{words}  ({})", bytes(fix.predicted_bytes))
        };
        let button = egui::Button::new(text).wrap();
        if action(ui, button, None, "Apply this change to the settings") {
            fix.set.iter().for_each(|(key, value)| form.set(key, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_written_as_it_would_be_typed() {
        assert_eq!([6.5, 8.0].map(budget_text), ["6.5GiB", "8GiB"]);
    }

    #[test]
    fn a_row_tells_speed_memory_and_network() {
        let line = RankLine { device: "gpu".into(), machine: Some("box".into()), sequences: 120 };
        let now = RankStep { compute_ms: 1500.0, network_ms: 500.0, vram_bytes: Some(1 << 30) };
        let wanted = ["2", "gpu on box", "120", "81920", "1.00 GiB", "25%"];
        assert_eq!(cells(2, &line, &now, 1024), wanted);
        let cpu = RankLine { machine: None, ..line };
        let now = RankStep { vram_bytes: None, ..now };
        assert_eq!(cells(0, &cpu, &now, 1024)[1..5], ["gpu", "120", "81920", "-"]);
    }
}
