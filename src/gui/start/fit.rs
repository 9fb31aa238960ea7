//! The last question: does the run fit its device, how long does it take, and what does it need?

use chrono::Local;
use eframe::egui::{self, RichText, Ui};

use super::device;
use crate::gui::state::{
    AUTO, FitState, Planned, Refusal, SettingsForm, Shared, StartState, in_words,
};
use crate::gui::widgets::{action, note, weak_note, wrapped};
use crate::gui::{budget, memory_bar, theme};
use crate::plan::{self, DeviceMemory, Fix, Forecast, Row, Totals};
use crate::text::{bytes, capitalize, estimate};

/// Draws the answer: a sentence and a bar, the changes that make the run fit, and the details.
pub(super) fn show(ui: &mut Ui, shared: &mut Shared) {
    let refusal = shared.refusal();
    let Shared { settings, start: StartState { fit, .. }, devices, .. } = shared;
    let form = &mut settings.form;
    // What other programs used when the device was queried.
    let others = match fit.device.as_ref().map(|device| &device.memory) {
        Some(DeviceMemory::Reported { total, free, .. }) => Some(total.saturating_sub(*free)),
        _ => None,
    };
    if let Some(Planned { inputs, forecast: Some((forecast, totals)), refusal }) = fit.plan(form) {
        let mut sentence = forecast.verdict();
        if let (None, Some(time)) = (refusal, &totals.time) {
            sentence += &format!(", about {}{}", estimate(time.seconds), ready(time.seconds));
        }
        let color = if refusal.is_none() { theme::good(ui) } else { theme::error(ui) };
        wrapped(ui, RichText::new(sentence + ".").strong().color(color));
        memory_bar::show(ui, forecast, others, inputs.limits.memory, None);
        // Before the data were read, the vocabulary is a guess.
        let advice = inputs.data.map(|_| totals.advice(&inputs.config));
        for text in advice.into_iter().flatten() {
            note(ui, capitalize(&text), theme::warning(ui));
        }
    }
    if let Some(warning) = device::warning(&settings.device, devices) {
        note(ui, warning, theme::warning(ui));
    }
    if let Some(Refusal { reason, fixes }) = refusal {
        // The sentence above has the reason, unless the settings are wrong.
        if fixes.is_empty() {
            note(ui, reason, theme::error(ui));
        }
        apply_fix(ui, form, &fixes);
    }
    let details = egui::CollapsingHeader::new("Details").default_open(false);
    details.show_unindented(ui, |ui| {
        if let Some(Planned { inputs, forecast: Some((forecast, totals)), .. }) = fit.plan(form) {
            let limits = inputs.limits;
            figures(ui, forecast, totals);
            ui.add_space(4.0);
            let is_auto = form.text("vram_budget") == AUTO;
            if let (Some(text), _) = budget::show(ui, is_auto, limits.budget, limits.memory) {
                form.set("vram_budget", text);
            }
        }
        device_memory(ui, fit);
        device::show(ui, &mut settings.device, devices);
    });
}

/// Returns when a run is ready that begins now; nothing for one of minutes.
fn ready(seconds: f64) -> String {
    let minutes = (seconds / 60.0) as i64;
    let ready = chrono::TimeDelta::try_minutes(minutes).filter(|_| minutes >= 10);
    let Some(ready) = ready.and_then(|delta| Local::now().checked_add_signed(delta)) else {
        return String::new();
    };
    let format = match minutes {
        0..1200 => "%H:%M",
        1200..8640 => "%A at %H:%M",
        _ => "%Y-%m-%d",
    };
    format!(", ready {}{}", if minutes < 1200 { "at " } else { "" }, ready.format(format))
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

/// Draws a button for each change, and applies the one that is clicked.
fn apply_fix(ui: &mut Ui, form: &mut SettingsForm, fixes: &[Fix]) {
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
