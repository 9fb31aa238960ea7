//! Semantic colors for the dark and the light theme, and the spacing of the window.

use eframe::egui::{self, Color32, Ui};

use crate::plan::Class;
use crate::protocol::Level;

fn pick(ui: &Ui, dark: [u8; 3], light: [u8; 3]) -> Color32 {
    let [r, g, b] = if ui.visuals().dark_mode { dark } else { light };
    Color32::from_rgb(r, g, b)
}

/// Returns the color of a memory class. The colors also differ in lightness, for color-blind
/// people.
pub fn class_color(ui: &Ui, class: Class) -> Color32 {
    match class {
        Class::Weights => pick(ui, [70, 130, 220], [40, 95, 190]),
        Class::Gradients => pick(ui, [120, 180, 245], [110, 165, 235]),
        Class::Optimizer => pick(ui, [45, 80, 150], [20, 55, 125]),
        Class::Activations => pick(ui, [235, 160, 70], [225, 140, 40]),
        Class::Logits => pick(ui, [220, 100, 90], [200, 75, 65]),
        Class::Workspace => pick(ui, [240, 205, 120], [235, 190, 90]),
        Class::Slack => pick(ui, [120, 120, 125], [165, 165, 170]),
    }
}

/// Returns the color of a curve: 0 is training, 1 validation, then other runs.
pub fn series_color(ui: &Ui, index: usize) -> Color32 {
    const DARK_AND_LIGHT: [([u8; 3], [u8; 3]); 6] = [
        ([90, 155, 240], [35, 95, 190]),
        ([240, 160, 70], [205, 110, 10]),
        ([110, 200, 140], [30, 130, 75]),
        ([205, 130, 220], [140, 60, 160]),
        ([225, 205, 90], [140, 115, 0]),
        ([235, 110, 120], [185, 45, 60]),
    ];
    let (dark, light) = DARK_AND_LIGHT[index % DARK_AND_LIGHT.len()];
    pick(ui, dark, light)
}

pub fn good(ui: &Ui) -> Color32 {
    pick(ui, [100, 200, 130], [20, 125, 60])
}

pub fn warning(ui: &Ui) -> Color32 {
    pick(ui, [235, 185, 80], [155, 95, 0])
}

pub fn error(ui: &Ui) -> Color32 {
    pick(ui, [240, 120, 110], [180, 35, 30])
}

pub fn level_color(ui: &Ui, level: Level) -> Color32 {
    match level {
        Level::Info => ui.visuals().weak_text_color(),
        Level::Warning => warning(ui),
        Level::Error => error(ui),
    }
}

/// Draws the choice of the theme as text, because egui's fonts lack the icons of its buttons.
pub fn choice(ui: &mut Ui) {
    use egui::ThemePreference::{Dark, Light, System};
    let mut preference = ui.options(|options| options.theme_preference);
    ui.label("Theme");
    ui.horizontal(|ui| {
        for (value, text) in [(System, "as the system"), (Dark, "dark"), (Light, "light")] {
            ui.selectable_value(&mut preference, value, text);
        }
    });
    ui.ctx().set_theme(preference);
}

/// Sets the style of the window: denser than egui's default.
pub fn apply(ctx: &egui::Context, is_dark: Option<bool>) {
    if let Some(is_dark) = is_dark {
        ctx.set_theme(egui::Theme::from_dark_mode(is_dark));
    }
    ctx.all_styles_mut(|style| {
        style.spacing.item_spacing = egui::vec2(6.0, 4.0);
        style.spacing.button_padding = egui::vec2(6.0, 2.0);
        style.spacing.indent = 12.0;
        // Without it, only the color of the text shows the focus.
        style.visuals.collapsing_header_frame = true;
        // The default of 9 points is hard to read, and whole sentences are set in this style.
        if let Some(small) = style.text_styles.get_mut(&egui::TextStyle::Small) {
            small.size = 10.5;
        }
    });
    // The default weak text has too little contrast, above all on a light background.
    for (theme, gray) in [(egui::Theme::Light, 95), (egui::Theme::Dark, 155)] {
        let weak = Some(Color32::from_gray(gray));
        ctx.style_mut_of(theme, |style| style.visuals.weak_text_color = weak);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the relative luminance of WCAG 2.
    pub fn luminance(color: Color32) -> f32 {
        let linear = |value: u8| {
            let share = f32::from(value) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(color.r()) + 0.7152 * linear(color.g()) + 0.0722 * linear(color.b())
    }

    /// Returns the contrast of two colors by WCAG 2.
    pub fn contrast(a: Color32, b: Color32) -> f32 {
        let [a, b] = [a, b].map(luminance);
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_of_every_color_can_be_read() {
        for theme in [egui::Theme::Dark, egui::Theme::Light] {
            let ctx = egui::Context::default();
            apply(&ctx, Some(theme == egui::Theme::Dark));
            let mut found = Vec::new();
            let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
                let visuals = ui.visuals();
                let selection = visuals.selection;
                let faint = visuals.panel_fill + visuals.faint_bg_color;
                let behind = [visuals.panel_fill, faint, visuals.extreme_bg_color];
                let texts = [
                    visuals.text_color(),
                    visuals.weak_text_color(),
                    visuals.strong_text_color(),
                    good(ui),
                    warning(ui),
                    error(ui),
                ];
                let pairs = texts.iter().flat_map(|text| behind.map(|behind| (*text, behind)));
                found = pairs.chain([(selection.stroke.color, selection.bg_fill)]).collect();
            });
            for (text, behind) in found {
                let contrast = contrast(text, behind);
                assert!(contrast >= 4.5, "{theme:?}: {text:?} on {behind:?} has {contrast}");
            }
        }
    }
}
