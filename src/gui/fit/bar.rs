//! Memory as one bar: what it is for, beside the budget.

use eframe::egui::{self, Align2, Color32, Rect, TextStyle, accesskit::Role, pos2, vec2};

use crate::config::bytes;
use crate::gui::theme;
use crate::plan::{Class, Forecast};
use crate::protocol::Step;

/// What the bar shows.
pub(super) struct Contents<'a> {
    /// What the run takes.
    pub forecast: &'a Forecast,
    /// What other programs take, in bytes.
    pub others: Option<u64>,
    /// What the device has, in bytes.
    pub total: Option<u64>,
    /// The last step of a run that is going on.
    pub now: Option<&'a Step>,
}

/// A piece of the bar.
struct Segment {
    name: &'static str,
    help: &'static str,
    bytes: u64,
    color: Color32,
}

const HEIGHT: f32 = 20.0;

/// Height of the line for what the run holds now.
const THIN: f32 = 5.0;

/// The bar, and below it what its colours mean.
pub(super) fn show(ui: &mut egui::Ui, contents: &Contents<'_>) {
    let segments = segments(ui, contents);
    let taken: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let budget = contents.forecast.budget_bytes;
    let held = contents.now.and_then(|step| step.vram_peak_bytes.or(step.vram_bytes));
    let known = [Some(taken), contents.total, budget, held];
    let scale = known.into_iter().flatten().max().unwrap_or(1).max(1);
    let caption = ui.text_style_height(&TextStyle::Small);
    let thin = if held.is_some() { THIN + 2.0 } else { 0.0 };
    let size = vec2(ui.available_width(), HEIGHT + thin + caption + 4.0);
    let (all, response) = ui.allocate_exact_size(size, egui::Sense::hover());
    response
        .widget_info(|| egui::WidgetInfo::labeled(Role::Meter, ui.is_enabled(), name(contents)));
    let bar = Rect::from_min_size(all.min, vec2(all.width(), HEIGHT));
    ui.painter().rect_filled(bar, 2.0, ui.visuals().extreme_bg_color);
    let at = |bytes: u64| bar.left() + bar.width() * (bytes as f64 / scale as f64) as f32;
    let mut before = 0;
    for segment in &segments {
        let (left, right) = (at(before), at(before + segment.bytes));
        let rect = Rect::from_min_max(pos2(left, bar.top()), pos2(right, bar.bottom()));
        ui.painter().rect_filled(rect, 0.0, segment.color);
        let Segment { name, help, bytes: count, .. } = segment;
        let id = response.id.with(name);
        let hover = format!("{name}: {}\n{help}", bytes(*count));
        ui.interact(rect, id, egui::Sense::hover()).on_hover_text(hover);
        before += segment.bytes;
    }
    if let Some(step) = contents.now {
        line_of_now(ui, step, bar, &at);
    }
    if let Some(budget) = budget {
        let bottom = bar.bottom() + thin;
        let over = contents.forecast.predicted_bytes > budget;
        let color = if over { theme::error(ui) } else { ui.visuals().strong_text_color() };
        ui.painter().vline(at(budget), bar.top()..=bottom + 3.0, (2.0, color));
        let text = format!("budget {}", bytes(budget));
        let left = at(budget) < bar.center().x;
        let anchor = if left { Align2::LEFT_TOP } else { Align2::RIGHT_TOP };
        let place = pos2(at(budget), bottom + 4.0);
        ui.painter().text(place, anchor, text, TextStyle::Small.resolve(ui.style()), color);
    }
    legend(ui, &segments);
}

/// The bar in words.
fn name(contents: &Contents<'_>) -> String {
    let need = bytes(contents.forecast.predicted_bytes);
    match contents.forecast.budget_bytes {
        Some(budget) => format!("Memory: {need} of a budget of {}", bytes(budget)),
        None => format!("Memory: {need}"),
    }
}

fn segments(ui: &egui::Ui, contents: &Contents<'_>) -> Vec<Segment> {
    let of_class = |class: Class| {
        let (name, help) = described(class);
        let bytes = contents.forecast.classes.get(&class).copied().unwrap_or(0);
        Segment { name, help, bytes, color: theme::class_color(ui, class) }
    };
    let others = Segment {
        name: "other programs",
        help: "The desktop, browsers and games: close some to have more",
        bytes: contents.others.unwrap_or(0),
        color: ui.visuals().weak_text_color().gamma_multiply(0.4),
    };
    let all = Class::ALL.into_iter().map(of_class).chain([others]);
    all.filter(|segment| segment.bytes > 0).collect()
}

fn described(class: Class) -> (&'static str, &'static str) {
    match class {
        Class::Weights => ("weights", "What the model has learned"),
        Class::Gradients => ("gradients", "How each weight is to change"),
        Class::Optimizer => ("Adam", "What the optimizer remembers: two numbers for each weight"),
        Class::Activations => ("activations", "What is kept from a pass forward for the way back"),
        Class::Logits => ("logits", "A score for each token of the vocabulary"),
        Class::Workspace => ("workspace", "What a single operation needs in passing"),
        Class::Slack => ("slack", "Room left over in the pieces that memory is taken in"),
    }
}

/// Below the bar: what the run holds now, and the most that it held.
fn line_of_now(ui: &egui::Ui, step: &Step, bar: Rect, at: &dyn Fn(u64) -> f32) {
    let (top, bottom) = (bar.bottom() + 2.0, bar.bottom() + 2.0 + THIN);
    let color = theme::good(ui);
    if let Some(held) = step.vram_bytes {
        let rect = Rect::from_min_max(pos2(bar.left(), top), pos2(at(held), bottom));
        ui.painter().rect_filled(rect, 0.0, color);
    }
    if let Some(peak) = step.vram_peak_bytes {
        ui.painter().vline(at(peak), top..=bottom, (2.0, color));
    }
}

fn legend(ui: &mut egui::Ui, segments: &[Segment]) {
    ui.horizontal_wrapped(|ui| {
        for Segment { name, help, bytes: count, color } in segments {
            let text = format!("{name} {}", bytes(*count));
            let font = TextStyle::Small.resolve(ui.style());
            let galley = ui.painter().layout_no_wrap(text.clone(), font, ui.visuals().text_color());
            let side = galley.size().y * 0.7;
            let size = vec2(side + 4.0 + galley.size().x, galley.size().y);
            // As one piece, so that no line breaks between a colour and its name.
            let (rect, response) = ui.allocate_exact_size(size, egui::Sense::hover());
            let square = Rect::from_center_size(
                pos2(rect.left() + side / 2.0, rect.center().y),
                vec2(side, side),
            );
            ui.painter().rect_filled(square, 1.0, *color);
            let place = pos2(rect.left() + side + 4.0, rect.top());
            ui.painter().galley(place, galley, ui.visuals().text_color());
            response.widget_info(|| egui::WidgetInfo::labeled(Role::Label, ui.is_enabled(), &text));
            response.on_hover_text(*help);
        }
    });
}
