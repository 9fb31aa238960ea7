//! The first question: the demo, a text, or a trained model on a text.

use std::path::Path;

use eframe::egui::text::{LayoutJob, TextFormat, TextWrapping};
use eframe::egui::{self, FontId, Label, Rect, RichText, Sense, Stroke, TextStyle, Ui, vec2};

use super::data;
use crate::gui::intent::{FileChoice, Intent};
use crate::gui::state::{ADAPTER_RANK, Catalog, Shared, What, name_of};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{button, labelled_row};

/// The height of a card and the distance between two, in points.
const HEIGHT: f32 = 66.0;
const GAP: f32 = 8.0;

/// Draws the ways to a run, then the model and the data of the chosen one.
pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    ui.label(RichText::new("1.  What do you want to train?").size(16.0).strong());
    ui.add_space(4.0);
    let mut intent = cards(ui, shared);
    match shared.start.what {
        None => {}
        Some(What::Text) => {
            ui.add_space(8.0);
            intent = intent.or(data::show(ui, shared));
        }
        Some(What::FineTune) => {
            ui.add_space(8.0);
            intent = intent.or(base(ui, shared));
            if shared.settings.form.model().is_some() {
                intent = intent.or(data::show(ui, shared));
            }
        }
    }
    let job = shared.start.data.job.as_ref();
    intent.or(job.and_then(|job| data::progress(ui, job)))
}

fn cards(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let what = shared.start.what;
    let is_busy = shared.shown.has_own_trainer();
    let width = ((ui.available_width() - GAP) / 2.0).floor();
    let demo = Card {
        title: "Start the demo",
        text: "Two minutes: a tiny model learns to tell stories while you watch.",
        // At any moment there is one button to press next.
        is_primary: what.is_none() && !is_busy,
        is_disabled: is_busy,
        ..Card::default()
    };
    let text = Card {
        title: "Your text",
        text: "A book, notes, code: files, a folder, or the clipboard.",
        is_chosen: what == Some(What::Text),
        ..Card::default()
    };
    let list = Card {
        title: "A text from the list",
        text: "Stories, an encyclopedia, web pages, with their licences.",
        ..Card::default()
    };
    let tune = Card {
        title: "Fine-tune a model",
        text: "Teach a trained model your conversations or your texts.",
        is_chosen: what == Some(What::FineTune),
        ..Card::default()
    };
    let mut intent = None;
    ui.spacing_mut().item_spacing = vec2(GAP, GAP);
    ui.horizontal(|ui| {
        if demo.show(ui, width) {
            intent = Some(Intent::Demo);
        }
        if text.show(ui, width) {
            shared.set_up(What::Text);
        }
    });
    ui.horizontal(|ui| {
        // A page connects to nothing.
        if !IS_PAGE && list.show(ui, width) {
            intent = Some(Intent::List(Catalog::Texts));
        }
        if tune.show(ui, width) {
            shared.set_up(What::FineTune);
        }
    });
    ui.spacing_mut().item_spacing = ui.ctx().global_style().spacing.item_spacing;
    intent
}

#[derive(Default)]
struct Card {
    title: &'static str,
    text: &'static str,
    is_primary: bool,
    is_chosen: bool,
    is_disabled: bool,
}

impl Card {
    /// Draws the card. Returns true if it was clicked.
    fn show(&self, ui: &mut Ui, width: f32) -> bool {
        let Self { title, text, is_primary, is_chosen, is_disabled } = *self;
        let is_enabled = !is_disabled;
        let sense = if is_enabled { Sense::click() } else { Sense::hover() };
        let (rect, response) = ui.allocate_exact_size(vec2(width, HEIGHT), sense);
        response.widget_info(|| {
            egui::WidgetInfo::selected(egui::Role::Button, is_enabled, is_chosen, title)
        });
        let visuals = ui.visuals();
        let selection = visuals.selection;
        let is_near = response.hovered() || response.has_focus();
        let fill = if is_primary { selection.bg_fill } else { visuals.faint_bg_color };
        let edge = if response.has_focus() {
            Stroke::new(2.0, visuals.strong_text_color())
        } else if is_chosen {
            Stroke::new(2.0, selection.stroke.color)
        } else if is_near && is_enabled {
            Stroke::new(1.0, visuals.widgets.hovered.bg_stroke.color)
        } else {
            visuals.widgets.noninteractive.bg_stroke
        };
        let strong = if is_primary { selection.stroke.color } else { visuals.strong_text_color() };
        let plain = if is_primary { selection.stroke.color } else { visuals.text_color() };
        let [strong, plain] =
            [strong, plain].map(|color| if is_enabled { color } else { visuals.weak_text_color() });
        ui.painter().rect(rect, 6.0, fill, edge, egui::StrokeKind::Inside);
        let inner = rect.shrink2(vec2(12.0, 8.0));
        let mut job = LayoutJob::default();
        let body = TextStyle::Body.resolve(ui.style());
        job.append(title, 0.0, TextFormat::simple(FontId::proportional(body.size + 2.0), strong));
        let format =
            TextFormat { line_height: Some(body.size + 4.0), ..TextFormat::simple(body, plain) };
        job.append(&format!("\n{text}"), 0.0, format);
        job.wrap = TextWrapping { max_width: inner.width(), max_rows: 3, ..Default::default() };
        let galley = ui.painter().layout_job(job);
        let top = inner.center().y - galley.size().y / 2.0;
        let place = Rect::from_min_size(egui::pos2(inner.left(), top), galley.size());
        ui.painter().galley(place.min, galley, plain);
        response.clicked()
    }
}

/// Draws the model that the run begins with.
fn base(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let form = &mut shared.settings.form;
    let model = form.model();
    let mut intent = None;
    labelled_row(ui, "Model", |ui, _| match &model {
        None => ui.weak("none yet"),
        Some(model) => {
            ui.add(Label::new(name_of(Path::new(model))).truncate()).on_hover_text(model)
        }
    });
    ui.horizontal_wrapped(|ui| {
        if IS_PAGE {
            for stored in &shared.library.models {
                if button(ui, stored.name.as_str(), None, "Begin with this model") {
                    intent = Some(Intent::FineTune(stored.path.clone()));
                }
            }
            let help = "Import a zip with a Hugging Face folder; it is listed here then";
            if button(ui, "Import...", None, help) {
                intent = Some(Intent::Choose(FileChoice::Model));
            }
            return;
        }
        let help = "A Hugging Face folder, a checkpoint, or a run";
        if button(ui, "Choose a model...", None, help) {
            intent = Some(Intent::Choose(FileChoice::Base));
        }
        if button(ui, "Get a model...", None, "A list of good models, with their licences") {
            intent = Some(Intent::List(Catalog::Models));
        }
    });
    if model.is_some() {
        let mut has_adapter = form.text("lora_rank") != "0";
        let help = "The model stays as it is, and small matrices are trained that are added to it: that \
                    takes a fraction of the memory";
        let changed = ui.checkbox(&mut has_adapter, "Train an adapter (LoRA)").on_hover_text(help);
        if changed.changed() {
            form.set("lora_rank", if has_adapter { ADAPTER_RANK } else { "0" });
        }
    }
    intent
}
