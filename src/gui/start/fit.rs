//! The last question: does the run fit its device, how long does it take, and what does it need?

use std::time::Duration;

use chrono::{DateTime, Local, TimeZone};
use eframe::egui::{self, RichText, Ui};

use super::device;
use crate::config::Hours;
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
            sentence += &format!(
                ", about {}{}",
                estimate(time.seconds),
                ready(&inputs.config.hours, time.seconds, &Local::now())
            );
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
        } else {
            apply_fix(ui, form, &fixes);
        }
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

/// Returns when a run is ready that begins `now` and trains in these hours; nothing for one of minutes.
fn ready<Z: TimeZone>(hours: &Hours, seconds: f64, now: &DateTime<Z>) -> String
where
    Z::Offset: std::fmt::Display,
{
    let time = Duration::try_from_secs_f64(seconds).ok();
    let Some(ready) = time.and_then(|time| hours.after(now, time)) else { return String::new() };
    let format = match ready.clone().signed_duration_since(now).num_minutes() {
        ..10 => return String::new(),
        10..1200 => ", ready at %H:%M",
        1200..8640 => ", ready %A at %H:%M",
        _ => ", ready %Y-%m-%d",
    };
    ready.format(format).to_string()
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
    fn a_run_is_ready_within_its_hours() {
        let now = DateTime::parse_from_rfc3339("2026-11-30T12:00:00+01:00").unwrap();
        let nights = Hours::try_from("23:00-07:00".to_string()).unwrap();
        for (hours, time, text) in [
            (&Hours::default(), 0.1, ""),
            (&Hours::default(), 4.0, ", ready at 16:00"),
            (&Hours::default(), 30.0, ", ready Tuesday at 18:00"),
            (&nights, 4.0, ", ready at 03:00"),
            (&nights, 12.0, ", ready Wednesday at 03:00"),
            (&nights, 80.0, ", ready 2026-12-10"),
            (&nights, 1e12, ""),
        ] {
            assert_eq!(ready(hours, 3600.0 * time, &now), text, "{time} hours in {hours}");
        }
    }
}
