//! The room of a run: its figures, its loss with the samples on it, and what can be done with it.

use eframe::egui::{self, Button, Frame, Label, Margin, RichText, Ui};

use crate::gui::intent::Intent;
use crate::gui::model::samples;
use crate::gui::state::{Room, RunTab, Shared};
use crate::gui::widgets::{button, room_switch, wrapped};
use crate::gui::{export, theme};
use crate::protocol::{Level, LogLine, Progress, RunError, RunPhase};
use crate::text::capitalize;

pub mod charts;
pub mod control;
mod differences;
pub mod finished;
pub mod log;
mod plan;
mod tiles;

use control::ControlBar;

/// The height of the part below the loss, in points.
const TABS: f32 = 300.0;

/// The width from which on it is beside the loss, in points.
const WIDE: f32 = 1400.0;

pub fn show(ui: &mut Ui, shared: &mut Shared, control: &mut ControlBar) -> Option<Intent> {
    let top = egui::Panel::top("run").frame(margins(8)).show_separator_line(false);
    let in_head = top.show(ui, |ui| head(ui, shared, control)).inner;
    let top = egui::Panel::top("figures").frame(margins(2)).show_separator_line(false);
    let figures = top.show(ui, |ui| tiles::show(ui, shared)).inner;
    let bar = egui::Panel::bottom("control").frame(margins(4));
    let shown = &shared.shown;
    let commands = bar.show(ui, |ui| control.show(ui, &shown.progress, shown.is_live())).inner;
    // A wide window has room for them beside the loss.
    let (width, height) = (ui.available_width(), ui.available_height());
    let beside = if width >= WIDE {
        let right = egui::Panel::right("tabs beside").default_size(0.4 * width);
        right.size_range(300.0..=0.6 * width)
    } else {
        let below = egui::Panel::bottom("tabs").default_size(TABS.min(0.45 * height));
        below.size_range(90.0..=(height - 150.0).max(120.0))
    };
    let beside = beside.resizable(true).frame(margins(4));
    let in_tab = beside.show(ui, |ui| tabs(ui, shared)).inner;
    let center = egui::CentralPanel::default().frame(margins(4));
    let in_chart = center.show(ui, |ui| charts::loss(ui, shared)).inner;
    in_head.or(figures).or(commands).or(in_tab).or(in_chart)
}

fn margins(vertical: i8) -> Frame {
    Frame::new().inner_margin(Margin::symmetric(12, vertical))
}

/// Draws the name and the state of the run, and what it waits for or what has changed.
fn head(ui: &mut Ui, shared: &mut Shared, control: &mut ControlBar) -> Option<Intent> {
    let Shared { shown, run, library, .. } = shared;
    let progress = &shown.progress;
    let name = shown.folder.as_deref().map_or("", |folder| library.title(folder)).to_string();
    let left = |ui: &mut Ui| {
        ui.add(Label::new(RichText::new(name).heading().strong()).truncate());
        control::status_line(ui, progress, control);
    };
    let right = |ui: &mut Ui| room_switch(ui, Room::Run, export::no_checkpoint(progress));
    let mut intent = egui::Sides::new().shrink_left().truncate().show(ui, left, right).1;
    match &progress.state {
        RunPhase::Failed(error) => {
            intent = failure(ui, progress, shown.is_live(), error).or(intent)
        }
        RunPhase::Interrupted => {
            let text = if progress.checkpoints.is_empty() {
                "It was interrupted, and has no checkpoint: set it up again."
            } else {
                "It was interrupted."
            };
            ui.horizontal_wrapped(|ui| {
                ui.colored_label(theme::warning(ui), text);
                intent = continues(ui, progress, shown.is_live()).or(intent.take());
            });
        }
        _ if progress.has_ended() => {}
        _ => {
            let is_new = |line: &&LogLine| line.level == Level::Warning;
            let open = progress.log.get(run.closed_warnings..).unwrap_or_default();
            if let Some(line) = open.iter().rev().find(is_new) {
                let text = RichText::new(&line.text).color(theme::warning(ui));
                let words = |ui: &mut Ui| ui.add(Label::new(text).wrap());
                let close = |ui: &mut Ui| button(ui, "Close", None, "It stays in the log");
                if egui::Sides::new().shrink_left().show(ui, words, close).1 {
                    run.closed_warnings = progress.log.len();
                }
            }
        }
    }
    // Another run has fewer lines.
    run.closed_warnings = run.closed_warnings.min(progress.log.len());
    intent
}

/// Draws why a run has failed, and what to do.
fn failure(ui: &mut Ui, progress: &Progress, is_live: bool, error: &RunError) -> Option<Intent> {
    let RunError { text, hint, cause } = error;
    let color = theme::error(ui);
    wrapped(ui, RichText::new(log::summary(*cause)).strong().color(color));
    wrapped(ui, RichText::new(capitalize(text) + ".").color(color));
    if !hint.is_empty() {
        // A window has a button for it.
        let hint = hint.replace(" with --resume", "");
        wrapped(ui, format!("What to do: {hint}."));
    }
    ui.horizontal_wrapped(|ui| {
        let again = continues(ui, progress, is_live);
        again.or(log::buttons(ui, progress))
    })
    .inner
}

/// Draws the button that continues a run from its last checkpoint, if it has one.
fn continues(ui: &mut Ui, progress: &Progress, is_live: bool) -> Option<Intent> {
    let again = control::pause_or_continue(progress, is_live)?;
    let button = Button::new(RichText::new("Continue from its last checkpoint").strong());
    ui.add(button.fill(ui.visuals().selection.bg_fill)).clicked().then_some(again)
}

fn tabs(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    // A panel is as high as its content: without this, an empty chart would leave it small.
    ui.set_min_height(ui.available_height());
    let has_others = !shared.library.overlays.is_empty();
    if !has_others && shared.run.tab == RunTab::Compare {
        shared.run.tab = RunTab::Samples;
    }
    ui.horizontal_wrapped(|ui| {
        for tab in RunTab::ALL.iter().filter(|tab| **tab != RunTab::Compare || has_others) {
            ui.selectable_value(&mut shared.run.tab, *tab, tab.to_string());
        }
    });
    ui.separator();
    let tab = shared.run.tab;
    let scrolled = |ui: &mut Ui, shared: &mut Shared, draw: fn(&mut Ui, &mut Shared) -> _| {
        let area = egui::ScrollArea::vertical().id_salt(tab).auto_shrink(false);
        area.show(ui, |ui| draw(ui, shared)).inner
    };
    match tab {
        RunTab::Samples => samples::show(ui, shared),
        RunTab::Log => log::show(ui, shared),
        RunTab::Rate => charts::rate(ui, shared),
        RunTab::Speed => charts::speed(ui, shared),
        RunTab::Memory => charts::memory(ui, shared),
        RunTab::Plan => scrolled(ui, shared, plan::show),
        RunTab::Compare => scrolled(ui, shared, differences::show),
    }
}
