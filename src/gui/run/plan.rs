//! The plan of the shown run, its memory, its ranks and its settings.

use std::num::NonZeroU64;

use eframe::egui::{self, RichText, Ui};

use crate::config::{Budget, Config, KEYS};
use crate::gui::intent::Intent;
use crate::gui::state::{FitState, Shared, StartState, is_same, values};
use crate::gui::widgets::wrapped;
use crate::gui::{budget, memory_bar, theme};
use crate::protocol::{Command, Progress, RankLine, RankStep, RunPhase, Setting, Step};
use crate::text::{bytes, known, percent};

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { shown, run, start: StartState { fit, .. }, .. } = shared;
    let progress = &shown.progress;
    let Some(config) = &progress.config else {
        ui.weak("The plan and the settings of a run appear here once it has started.");
        return None;
    };
    let is_active =
        shown.is_live() && matches!(progress.state, RunPhase::Running | RunPhase::Paused);
    let now = progress.last_step.as_ref().filter(|_| is_active);
    let mut intent = None;
    if let Some(forecast) = &progress.forecast {
        wrapped(ui, RichText::new(forecast.verdict()).strong().color(theme::good(ui)));
        let others = now.and_then(|step| step.others_bytes);
        memory_bar::show(ui, forecast, others, None, now);
        wrapped(ui, RichText::new(forecast.plan.to_string()).weak());
        if let Some(step) = now {
            memory_in_use(ui, step, forecast.budget_bytes);
            rank_table(ui, progress, step);
            intent = new_budget(ui, &mut run.unsent_budget, config, forecast.budget_bytes, fit);
        }
    }
    ui.separator();
    let values = values(config);
    for group in KEYS.chunk_by(|a, b| a.group == b.group) {
        ui.weak(group[0].group);
        let grid = egui::Grid::new(group[0].group).num_columns(4).spacing([12.0, 2.0]);
        grid.show(ui, |ui| {
            for row in group.chunks(2) {
                for key in row {
                    let value = values.get(key.name).map_or("", String::as_str);
                    let is_default = is_same(key, value, key.default);
                    let text = RichText::new(value).monospace();
                    ui.label(key.name).on_hover_text(key.help);
                    ui.label(if is_default { text.weak() } else { text.strong() });
                }
                ui.end_row();
            }
        });
        ui.add_space(4.0);
    }
    intent
}

/// Draws the budget of a run that trains. Returns a new one when the slider is released.
fn new_budget(
    ui: &mut Ui,
    unsent: &mut Option<String>,
    config: &Config,
    budget: Option<u64>,
    fit: &FitState,
) -> Option<Intent> {
    let bytes_of = |text: &str| {
        let budget = Budget::try_from(text.to_string()).ok()?;
        fit.limits(budget, config.dtype).budget
    };
    let shown = unsent.as_deref().and_then(bytes_of).or(budget);
    let memory = fit.limits(config.vram_budget, config.dtype).memory;
    let (new, is_dragged) = budget::show(ui, config.vram_budget == Budget::Auto, shown, memory);
    *unsent = new.or(unsent.take());
    let released = if is_dragged { None } else { unsent.take() }?;
    let bytes = NonZeroU64::new(bytes_of(&released)?)?;
    Some(Intent::Send(Command::Set(Setting::VramBudget(bytes))))
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

#[cfg(test)]
mod tests {
    use super::*;

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
