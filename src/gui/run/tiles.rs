//! The figures of the shown run, in tiles above the charts. Once the run has finished, what can follow.

use std::path::PathBuf;
use std::time::Duration;

use chrono::Local;
use eframe::egui::{self, Align, Color32, Layout, Response, Ui};

use super::{charts, finished};
use crate::gui::intent::Intent;
use crate::gui::state::Shared;
use crate::gui::theme;
use crate::protocol::Progress;
use crate::text::{bytes, clock, grouped, known};

/// The height of the row, in points. It stays the same when the run finishes: nothing below it may move.
const HEIGHT: f32 = 52.0;

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let row = |ui: &mut Ui| {
        let progress = &shared.shown.progress;
        let color = ui.visuals().strong_text_color();
        let loss = |loss| known(loss, |loss: f64| format!("{loss:.4}"));
        tile(ui, "loss", &loss(progress.loss), 88.0, color);
        let validation = tile(ui, "validation loss", &loss(progress.val_loss), 104.0, color);
        if let Some(best) = progress.best_val_loss {
            validation.on_hover_text(format!("The best so far is {best:.4}."));
        }
        let trained = known(progress.trained(), clock);
        tile(ui, "training time", &trained, 96.0, color)
            .on_hover_text("Of all updates, without evaluations, samples, checkpoints and pauses.");
        if shared.shown.has_finished {
            return finished::show(ui, shared);
        }
        tile(ui, "time left", &known(left(ui, progress), clock), 96.0, color).on_hover_text(
            "At the current speed, evaluations not included. The time outside its hours is included.",
        );
        let speed = known(progress.tokens_per_s, |speed| grouped(speed, 0));
        tile(ui, "tokens per second", &speed, 124.0, color);
        memory(ui, progress);
        heat(ui, progress);
        None
    };
    let size = egui::vec2(ui.available_width(), HEIGHT);
    ui.allocate_ui_with_layout(size, Layout::left_to_right(Align::Center), row).inner
}

/// Returns the time until the run ends, with the times outside its hours.
fn left(ui: &Ui, progress: &Progress) -> Option<Duration> {
    let training = progress.remaining()?;
    let Some(config) = progress.config.as_ref().filter(|config| !config.hours.is_always()) else {
        return Some(training);
    };
    let now = Local::now();
    // Weeks are looked through minute by minute: not for each picture.
    let state = (progress.run.clone(), progress.iteration, now.timestamp() / 60);
    let id = egui::Id::unique("time left");
    type Known = ((Option<PathBuf>, u64, i64), Option<Duration>);
    let known = ui.data(|data| data.get_temp::<Known>(id));
    if let Some((_, left)) = known.filter(|(known, _)| *known == state) {
        return left;
    }
    let end = config.hours.after(&now, training);
    let left = end.and_then(|end| end.signed_duration_since(now).to_std().ok());
    ui.data_mut(|data| data.insert_temp(id, (state, left)));
    left
}

fn memory(ui: &mut Ui, progress: &Progress) {
    let Some(held) = progress.last_step.as_ref().and_then(|step| step.vram_bytes) else { return };
    let budget = progress.forecast.as_ref().and_then(|forecast| forecast.budget_bytes);
    let text = match budget {
        Some(budget) => format!("{} of {}", bytes(held), bytes(budget)),
        None => bytes(held),
    };
    let is_over = budget.is_some_and(|budget| held > budget);
    let color = if is_over { theme::warning(ui) } else { ui.visuals().strong_text_color() };
    tile(ui, "GPU memory", &text, 176.0, color)
        .on_hover_text("GPU memory that the run holds, and its budget.");
}

/// Draws how hot the device is and how much power it takes, as far as the system reports them.
fn heat(ui: &mut Ui, progress: &Progress) {
    let now = progress.last_step.as_ref().filter(|_| !progress.has_ended());
    let Some(health) = now.and_then(|step| step.health) else { return };
    let degrees = health.celsius.map(|degrees| format!("{degrees:.0} °C"));
    let watts = health.watts.map(|watts| format!("{watts:.0} W"));
    let text: Vec<String> = degrees.into_iter().chain(watts).collect();
    if !text.is_empty() {
        let color = charts::health_color(ui, health, ui.visuals().strong_text_color());
        tile(ui, "GPU", &text.join(", "), 104.0, color).on_hover_text(health.to_string());
    }
}

/// Draws a value below its name. The width is fixed, so nothing moves. Both are one label.
fn tile(ui: &mut Ui, name: &str, value: &str, width: f32, color: Color32) -> Response {
    // In a narrow window the last ones are left out.
    if ui.available_width() < width + 16.0 {
        return ui.allocate_response(egui::Vec2::ZERO, egui::Sense::hover());
    }
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).corner_radius(4.0);
    let shown = frame.inner_margin(egui::Margin::symmetric(8, 3)).show(ui, |ui| {
        ui.set_width(width);
        let mut job = egui::text::LayoutJob::default();
        let small = egui::TextStyle::Small.resolve(ui.style());
        let weak = ui.visuals().weak_text_color();
        job.append(&format!("{name}\n"), 0.0, egui::TextFormat::simple(small, weak));
        let large = egui::FontId::proportional(17.0);
        job.append(value, 0.0, egui::TextFormat::simple(large, color));
        ui.add(egui::Label::new(job).extend())
    });
    shown.inner
}
