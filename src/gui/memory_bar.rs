//! Memory as one stacked bar with a segment for each class and a mark at the budget.

use eframe::egui::text::{LayoutJob, TextFormat};
use eframe::egui::{
    self, Align2, Color32, FontId, Rect, TextStyle, Ui, accesskit::Role, pos2, vec2,
};

use crate::gui::theme;
use crate::plan::{Class, Forecast};
use crate::protocol::Step;
use crate::text::bytes;

struct MemorySegment {
    name: String,
    help: &'static str,
    bytes: u64,
    color: Color32,
}

const HEIGHT: f32 = 20.0;

/// Height of the line below it that shows the memory in use, in points.
const THIN: f32 = 5.0;

/// Draws the bar and its legend: the memory that the run needs, by class, and the memory of `others`, within
/// the `total` of the device. `now` is the last step of an active run.
pub fn show(
    ui: &mut Ui,
    forecast: &Forecast,
    others: Option<u64>,
    total: Option<u64>,
    now: Option<&Step>,
) {
    let segments = segments(ui, forecast, others);
    let sum: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let budget = forecast.budget_bytes;
    let held = now.and_then(|step| step.vram_peak_bytes.or(step.vram_bytes));
    let scale = [Some(sum), total, budget, held].into_iter().flatten().fold(1, u64::max);
    let caption = ui.text_style_height(&TextStyle::Small);
    let thin = if held.is_some() { THIN + 2.0 } else { 0.0 };
    let size = vec2(ui.available_width(), HEIGHT + thin + caption + 4.0);
    let (all, response) = ui.allocate_exact_size(size, egui::Sense::hover());
    response.widget_info(|| {
        let need = bytes(forecast.predicted_bytes);
        let of = budget.map(|budget| format!(" of a {} budget", bytes(budget)));
        let name = format!("Memory: {need}{}", of.unwrap_or_default());
        egui::WidgetInfo::labeled(Role::Meter, ui.is_enabled(), name)
    });
    let bar = Rect::from_min_size(all.min, vec2(all.width(), HEIGHT));
    ui.painter().rect_filled(bar, 2.0, ui.visuals().extreme_bg_color);
    let at = |bytes: u64| bar.left() + bar.width() * (bytes as f64 / scale as f64) as f32;
    let mut start = 0;
    for segment in &segments {
        let rect = Rect::from_x_y_ranges(at(start)..=at(start + segment.bytes), bar.y_range());
        ui.painter().rect_filled(rect, 0.0, segment.color);
        let MemorySegment { name, help, bytes: count, .. } = segment;
        let id = response.id.with(name);
        let hover = format!("{name}: {}\n{help}", bytes(*count));
        ui.interact(rect, id, egui::Sense::hover()).on_hover_text(hover);
        start += segment.bytes;
    }
    // The memory in use as a thin line below the bar, with a mark at its peak.
    let line = egui::Rangef::new(bar.bottom() + 2.0, bar.bottom() + 2.0 + THIN);
    if let Some(held) = now.and_then(|step| step.vram_bytes) {
        let rect = Rect::from_x_y_ranges(bar.left()..=at(held), line);
        ui.painter().rect_filled(rect, 0.0, theme::good(ui));
    }
    if let Some(peak) = now.and_then(|step| step.vram_peak_bytes) {
        ui.painter().vline(at(peak), line, (2.0, theme::good(ui)));
    }
    if let Some(budget) = budget {
        let bottom = bar.bottom() + thin;
        let is_over = forecast.predicted_bytes > budget;
        let color = if is_over { theme::error(ui) } else { ui.visuals().strong_text_color() };
        ui.painter().vline(at(budget), bar.top()..=bottom + 3.0, (2.0, color));
        let text = format!("budget {}", bytes(budget));
        let is_left = at(budget) < bar.center().x;
        let anchor = if is_left { Align2::LEFT_TOP } else { Align2::RIGHT_TOP };
        let position = pos2(at(budget), bottom + 4.0);
        ui.painter().text(position, anchor, text, TextStyle::Small.resolve(ui.style()), color);
    }
    legend(ui, &segments);
}

/// Returns the classes of memory and other programs, without empty ones.
fn segments(ui: &Ui, forecast: &Forecast, others: Option<u64>) -> Vec<MemorySegment> {
    let of_class = |&class: &Class| {
        let help = match class {
            Class::Weights => "The parameters of the model",
            Class::Gradients => "The gradient of the loss, one number for each weight",
            Class::Optimizer => "AdamW's two moments or Muon's momentum for each weight",
            Class::Activations => "Saved in the forward pass for the backward pass",
            Class::Logits => "One score for each token of the vocabulary",
            Class::Workspace => "Temporary buffers of single operations",
            Class::Slack => "Memory that the allocator holds beyond the tensors",
        };
        let is_slack = class == Class::Slack;
        let name = if is_slack { "allocator overhead".into() } else { class.to_string() };
        let bytes = forecast.classes.get(&class).copied().unwrap_or(0);
        MemorySegment { name, help, bytes, color: theme::class_color(ui, class) }
    };
    let others = MemorySegment {
        name: "other programs".into(),
        help: "The desktop, browsers and games. Close some to free memory.",
        bytes: others.unwrap_or(0),
        color: ui.visuals().weak_text_color().gamma_multiply(0.4),
    };
    let all = Class::ALL.iter().map(of_class).chain([others]);
    all.filter(|segment| segment.bytes > 0).collect()
}

fn legend(ui: &mut Ui, segments: &[MemorySegment]) {
    ui.horizontal_wrapped(|ui| {
        for MemorySegment { name, help, bytes: count, color } in segments {
            let small = TextStyle::Small.resolve(ui.style());
            // The proportional font has no square.
            let mono = FontId::monospace(small.size + 3.0);
            // One label: no line may break between a color and its name.
            let mut job = LayoutJob::default();
            job.append("■ ", 0.0, TextFormat::simple(mono, *color));
            let text = format!("{name} {}", bytes(*count));
            job.append(&text, 0.0, TextFormat::simple(small, ui.visuals().text_color()));
            ui.add(egui::Label::new(job).extend()).on_hover_text(*help);
        }
    });
}
