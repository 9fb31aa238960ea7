//! Text with tokens colored by their probability. The tooltip of a token lists the likeliest tokens in its
//! place.

use std::ops::Range;

use eframe::egui::text::{CCursor, LayoutJob};
use eframe::egui::{
    self, Color32, EventFilter, Galley, Grid, Key, Label, Rect, RichText, Role, Sense, TextFormat,
    TextStyle, Ui, WidgetInfo, pos2,
};

use crate::gui::widgets::focus_ring;
use crate::protocol::{ProbabilityClass, ScoredToken, TextLoss, probability_text};

/// Returns the background of a class; likely tokens have none. The colors have one hue and differ only in
/// lightness, which color-blind people also see. Text of the strongest color is readable on each.
fn background(dark: bool, class: ProbabilityClass) -> Color32 {
    let (on_dark, on_light) = match class {
        ProbabilityClass::Likely => return Color32::TRANSPARENT,
        ProbabilityClass::Possible => ([58, 44, 18], [255, 243, 214]),
        ProbabilityClass::Unlikely => ([96, 66, 16], [255, 224, 160]),
        ProbabilityClass::Rare => ([135, 84, 8], [252, 196, 96]),
        ProbabilityClass::Surprising => ([170, 98, 0], [240, 158, 40]),
    };
    let [r, g, b] = if dark { on_dark } else { on_light };
    Color32::from_rgb(r, g, b)
}

/// Returns the format of generated text: the brightest of the window, and larger than captions and
/// settings.
pub fn format(ui: &Ui) -> TextFormat {
    let mut font = TextStyle::Body.resolve(ui.style());
    font.size += 2.0;
    TextFormat::simple(font, ui.visuals().strong_text_color())
}

/// Replaces bytes that are not characters by dots, because the fonts of the window would draw boxes.
pub fn readable(text: &str) -> String {
    text.replace('\u{fffd}', "\u{b7}")
}

/// Begins a sample with its prompt, which is less bright than the text of the model.
pub fn prompt(ui: &Ui, prompt: &str) -> LayoutJob {
    let mut job = LayoutJob::default();
    // A prompt that is only a line break, as in the demo, would draw an empty line.
    if !prompt.trim().is_empty() {
        let color = ui.visuals().widgets.inactive.text_color();
        job.append(&readable(prompt), 0.0, TextFormat { color, ..format(ui) });
    }
    job
}

/// Draws the tokens after the text that `job` already has.
pub fn show(ui: &mut Ui, mut job: LayoutJob, tokens: &[ScoredToken]) {
    let format = format(ui);
    let dark = ui.visuals().dark_mode;
    // The characters of each token.
    let mut places: Vec<Range<usize>> = Vec::with_capacity(tokens.len());
    let mut end = job.text.chars().count();
    for token in tokens {
        let text = if job.text.is_empty() { token.text.trim_start() } else { &token.text };
        let class = token.probability.map_or(ProbabilityClass::Likely, Into::into);
        job.append(
            &readable(text),
            0.0,
            TextFormat { background: background(dark, class), ..format.clone() },
        );
        let start = end;
        end += text.chars().count();
        places.push(start..end);
    }
    job.wrap.max_width = ui.available_width();
    let galley = ui.fonts_mut(|fonts| fonts.layout_job(job));
    let drawn = ui.add(Label::new(galley.clone()).selectable(true));
    if let Some(chosen) = chosen_by_keys(ui, drawn.rect, &places) {
        let [start, end] = [places[chosen].start, places[chosen].end]
            .map(|at| galley.pos_from_cursor(CCursor::new(at)).translate(drawn.rect.min.to_vec2()));
        // A token at the end of a row ends in the next one.
        let right = if end.top() > start.top() { start.left() + 4.0 } else { end.left() };
        let place = Rect::from_min_max(start.left_top(), pos2(right, start.bottom()));
        let ring = ui.visuals().selection.stroke;
        ui.painter().rect_stroke(place, 1.0, ring, egui::StrokeKind::Outside);
        let (ctx, layer) = (ui.ctx().clone(), ui.layer_id());
        let open = egui::Tooltip::always_open(ctx, layer, drawn.id.with("chosen"), place);
        open.show(|ui| tooltip(ui, &tokens[chosen]));
        return;
    }
    let Some(pointer) = drawn.hover_pos() else { return };
    let pointed_at = character_at(&galley, pointer - drawn.rect.min);
    let token = pointed_at.and_then(|at| places.iter().position(|place| place.contains(&at)));
    if let Some(token) = token.map(|index| &tokens[index]) {
        drawn.on_hover_ui_at_pointer(|ui| tooltip(ui, token));
    }
}

/// Returns the token that was chosen by the arrow keys, while the text has the focus.
fn chosen_by_keys(ui: &Ui, rect: Rect, places: &[Range<usize>]) -> Option<usize> {
    let id = ui.scope_id().with("tokens");
    let text = ui.interact(rect, id, Sense::focusable_noninteractive());
    let info = || WidgetInfo::labeled(Role::Image, true, "Tokens, one by one with the arrow keys");
    text.widget_info(info);
    focus_ring(ui, &text);
    if !text.has_focus() || places.is_empty() {
        return None;
    }
    let filter = EventFilter { horizontal_arrows: true, ..Default::default() };
    let [back, forth] =
        [Key::ArrowLeft, Key::ArrowRight].map(|key| ui.input(|input| input.num_presses(key)));
    ui.memory_mut(|memory| {
        memory.set_focus_lock_filter(id, filter);
        let chosen: &mut usize = memory.data.get_temp_mut_or_default(id);
        *chosen = (*chosen + forth).saturating_sub(back).min(places.len() - 1);
        Some(*chosen)
    })
}

/// Returns the number of the character at a position in laid-out text.
fn character_at(galley: &Galley, position: egui::Vec2) -> Option<usize> {
    let mut first = 0;
    for row in &galley.rows {
        let place = position - row.pos.to_vec2();
        if (0.0..row.size.y).contains(&place.y) {
            let covers = row.glyphs.iter().position(|glyph| {
                (glyph.pos.x..glyph.pos.x + glyph.advance_width).contains(&place.x)
            });
            return covers.map(|column| first + column);
        }
        first += row.glyphs.len() + usize::from(row.ends_with_newline);
    }
    None
}

fn tooltip(ui: &mut Ui, token: &ScoredToken) {
    let (Some(probability), Some(loss)) = (token.probability, token.loss()) else {
        ui.label("The first token: nothing comes before it.");
        return;
    };
    let text = format!("{:?} had {}, loss {loss:.2}", token.text, probability_text(probability));
    ui.label(RichText::new(text).strong());
    ui.weak("The likeliest tokens here:");
    Grid::new("likeliest").num_columns(2).show(ui, |ui| {
        for other in &token.likeliest {
            ui.monospace(format!("{:?}", other.text));
            ui.monospace(format!("{:>6}", probability_text(other.probability)));
            ui.end_row();
        }
    });
}

/// Draws what the colors mean.
pub fn legend(ui: &mut Ui) {
    let dark = ui.visuals().dark_mode;
    let color = ui.visuals().strong_text_color();
    for class in ProbabilityClass::ALL {
        let text = RichText::new(format!(" {class} ")).small().color(color);
        // In one piece: no line may break between a color and what it means.
        ui.add(Label::new(text.background_color(background(dark, class))).extend());
    }
}

/// Draws the mean loss on the tokens.
pub fn loss(ui: &mut Ui, tokens: &[ScoredToken]) {
    let TextLoss { tokens, loss, bits_per_byte } = TextLoss::of(tokens);
    if tokens > 0 {
        let bits =
            bits_per_byte.map_or_else(String::new, |bits| format!(", {bits:.3} bits per byte"));
        ui.label(format!("Loss {loss:.3} on {tokens} tokens, perplexity {:.2}{bits}", loss.exp()));
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    use super::*;
    use crate::gui::theme::tests::{contrast, luminance};

    #[test]
    fn arrow_keys_go_from_token_to_token() {
        let token = |text: &str| ScoredToken {
            text: text.into(),
            probability: Some(0.5),
            likeliest: Vec::new(),
        };
        let tokens = ["Once", " upon", " a", " time"].map(token);
        let draw = move |ui: &mut Ui| show(ui, LayoutJob::default(), &tokens);
        let mut harness = Harness::new_ui(draw);
        harness.step();
        assert!(harness.query_by_label_contains("had 50.0%").is_none());
        harness.get_by_label_contains("arrow keys").focus();
        for (key, text) in [
            (Key::ArrowRight, " upon"),
            (Key::ArrowRight, " a"),
            (Key::ArrowRight, " time"),
            (Key::ArrowRight, " time"),
            (Key::ArrowLeft, " a"),
        ] {
            harness.run_steps(2);
            harness.key_press(key);
            harness.run_steps(2);
            let shown = format!("{text:?} had 50.0%");
            assert!(harness.query_by_label_contains(&shown).is_some(), "{shown}");
        }
    }

    #[test]
    fn colors_differ_in_lightness_and_the_text_on_them_is_readable() {
        for visuals in [egui::Visuals::dark(), egui::Visuals::light()] {
            let text = visuals.strong_text_color();
            let mut before = luminance(visuals.panel_fill);
            for class in &ProbabilityClass::ALL[1..] {
                let color = background(visuals.dark_mode, *class);
                assert!(contrast(text, color) >= 4.5, "{class}: {}", contrast(text, color));
                // Each step is closer to the lightness of the text.
                let behind = luminance(color);
                assert_eq!(behind > before, visuals.dark_mode, "{class}: {behind} after {before}");
                before = behind;
            }
        }
    }
}
