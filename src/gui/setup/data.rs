//! The data of the next run: buttons that choose it, a preview, and the preset that suits it.

use eframe::egui::{self, RichText, text::LayoutJob};

use super::suggest::Corpus;
use super::{AUTO, Choices, SetupState, row, title, wrapped};
use crate::config::{Budget, Config, Dtype, InitFrom};
use crate::data::TokenizerKind;
use crate::gui::fit::FitState;
use crate::gui::form::Form;
use crate::gui::{Intent, platform, theme};
use crate::plan::{self, Limits};
use crate::protocol::{DataInfo, DeviceLine};
use crate::text::{count_in_words, percent};

/// The built-in data set.
const BUILTIN: &str = "builtin:stories";

/// Time to wait for the clipboard, in seconds. A clipboard without text never answers.
const PASTE_TIMEOUT: f64 = 0.5;

/// Lines of the excerpt.
const EXCERPT_LINES: usize = 3;

/// A model with this many times the parameters is worth a suggestion.
const MUCH_LARGER: u64 = 4;

/// A preset that suits the data, with what it was computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Suited {
    size: Corpus,
    limits: Limits,
    has_gpu: bool,
    preset: &'static str,
    /// Parameters of its model.
    parameters: u64,
}

/// Draws the data, and the buttons that choose other data.
pub(super) fn show(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    fit: &FitState,
    choices: &Choices<'_>,
) -> Option<Intent> {
    let pasted = pasted_text(ui, state);
    let selected = form.text("data");
    row(ui, "Data", |ui, _| match selected.as_str() {
        "" => ui.weak("none yet"),
        BUILTIN => ui.label("built-in stories"),
        path => ui.add(egui::Label::new(path).truncate()),
    });
    preview(ui, form, &selected);
    let (prepared, warnings) = &state.data_warnings;
    for warning in warnings.iter().filter(|_| *prepared == selected) {
        wrapped(ui, RichText::new(warning).small().color(theme::warning(ui)));
    }
    suggestion(ui, form, state, fit, choices.devices);
    if let Some((name, share)) = &state.preparing {
        let text = RichText::new(format!("Preparing {name}")).small();
        ui.add(egui::ProgressBar::new(*share).text(text));
    }
    let buttons = ui.add_enabled_ui(state.preparing.is_none(), |ui| {
        ui.horizontal_wrapped(|ui| buttons(ui, form, state, choices.data)).inner
    });
    let hint = match state.clipboard_was_empty {
        true => "The clipboard has no text.",
        false => platform::drop_hint(),
    };
    wrapped(ui, RichText::new(hint).small().weak());
    buttons.inner.or(pasted)
}

/// Draws the buttons that select data.
fn buttons(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    stored: &[(String, String)],
) -> Option<Intent> {
    let mut intent = None;
    let mut chosen = None;
    let hover = "Simple generated stories: nothing to download";
    if ui.button("Built-in stories").on_hover_text(hover).clicked() {
        chosen = Some(BUILTIN);
    }
    if ui.button("Files...").on_hover_text(platform::TEXTS_HINT).clicked() {
        intent = Some(Intent::ChooseTexts);
    }
    if !stored.is_empty() {
        ui.menu_button("Stored", |ui| {
            for (spec, name) in stored {
                if ui.button(name).clicked() {
                    chosen = Some(spec);
                }
            }
        });
    }
    if let Some(spec) = chosen {
        state.choose_data(form, spec);
    }
    if platform::IS_PAGE {
        return intent;
    }
    let hover = "A folder prepared by wgpt, nanoGPT or llm.c, or a folder of text files";
    if ui.button("Folder...").on_hover_text(hover).clicked() {
        intent = Some(Intent::ChooseData);
    }
    let hover = "Train on the text on the clipboard";
    if ui.button("Paste").on_hover_text(hover).clicked() {
        ui.ctx().send_viewport_cmd(egui::ViewportCommand::RequestPaste);
        state.paste_requested = Some(ui.input(|input| input.time));
        state.clipboard_was_empty = false;
    }
    intent
}

/// Draws the beginning and the size of the selected data, or why it cannot be used.
fn preview(ui: &mut egui::Ui, form: &Form, selected: &str) {
    let weak = |ui: &mut egui::Ui, text: &str| {
        wrapped(ui, RichText::new(text).small().weak());
    };
    match &form.data {
        // The start button says that data are missing.
        _ if selected.is_empty() => {}
        None => weak(ui, "Reading..."),
        Some(Err(error)) => {
            wrapped(ui, RichText::new(error).small().color(theme::error(ui)));
        }
        Some(Ok(info)) => {
            excerpt(ui, &info.excerpt);
            weak(ui, &size_in_words(info));
            if let Ok(config) = form.config() {
                weak(ui, &epochs_in_words(epochs(config, info.train_tokens)));
            }
        }
    }
}

/// Draws the beginning of the data, in a few lines.
fn excerpt(ui: &mut egui::Ui, text: &str) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return;
    }
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(6.0);
    frame.corner_radius(3.0).show(ui, |ui| {
        ui.set_min_width(ui.available_width());
        let font = egui::TextStyle::Small.resolve(ui.style());
        let color = ui.visuals().text_color();
        let mut job = LayoutJob::simple(text, font, color, ui.available_width());
        job.wrap.max_rows = EXCERPT_LINES;
        ui.add(egui::Label::new(job).wrap()).on_hover_text("The beginning of the data");
    });
}

fn size_in_words(info: &DataInfo) -> String {
    let tokenizer = match info.tokenizer {
        Some(TokenizerKind::Gpt2) => "GPT-2's tokenizer",
        Some(TokenizerKind::Char) => "a token per character",
        Some(TokenizerKind::Byte) => "a token per byte",
        Some(TokenizerKind::Bpe) => "byte pairs of its own",
        None => "an unknown tokenizer",
    };
    format!(
        "{} training tokens, {} validation tokens; {tokenizer}, vocabulary of {}",
        count_in_words(info.train_tokens),
        count_in_words(info.val_tokens),
        count_in_words(u64::from(info.vocab_size))
    )
}

/// Returns how many times the schedule of `config` goes over `tokens` training tokens.
fn epochs(config: &Config, tokens: u64) -> f64 {
    let per_update = config.global_batch() as f64 * f64::from(config.block_size.get());
    config.max_iters.get() as f64 * per_update / tokens.max(1) as f64
}

fn epochs_in_words(epochs: f64) -> String {
    match epochs {
        0.0..0.995 => format!("The schedule reads {} of them.", percent(epochs.max(0.01), 0)),
        0.995..10.0 => format!("The schedule goes over them {epochs:.1} times."),
        _ => {
            format!("The schedule goes over them {} times.", count_in_words(epochs.round() as u64))
        }
    }
}

impl SetupState {
    /// Selects data in the form.
    pub fn choose_data(&mut self, form: &mut Form, spec: &str) {
        if form.text("data") != spec {
            form.set("data", spec);
            self.chosen = Some(spec.to_string());
        }
    }

    /// Returns the preset that suits the data of the form, as long as it is to start from random
    /// weights.
    fn suited(&mut self, form: &Form, fit: &FitState, devices: &[DeviceLine]) -> Option<Suited> {
        let Some(Ok(info)) = &form.data else { return None };
        let size = Corpus { tokens: info.train_tokens, vocab: info.vocab_size };
        let limits = fit.limits(Budget::Auto, Dtype::Auto);
        let has_gpu = has_gpu(devices, &self.device);
        let is_current =
            |known: &Suited| (known.size, known.limits, known.has_gpu) == (size, limits, has_gpu);
        let known = self.suited.filter(is_current);
        let suited = known.unwrap_or_else(|| {
            // As the presets for graphics cards: activation checkpointing makes a step longer.
            let fits = |config: &Config| {
                let forecast = plan::plan(config, size.vocab, &limits, None);
                forecast.is_ok_and(|forecast| !forecast.plan.grad_checkpoint)
            };
            let preset = size.preset(has_gpu, fits);
            let form = Form::of_preset(preset);
            let parameters = form.config().map_or(0, |config| config.parameters(size.vocab.into()));
            Suited { size, limits, has_gpu, preset, parameters }
        });
        self.suited = Some(suited);
        Some(suited)
    }
}

/// Returns true if the selected device is a GPU, and as long as the devices are unknown.
fn has_gpu(devices: &[DeviceLine], selected: &str) -> bool {
    let is_gpu = |info: &DeviceLine| info.kind.is_gpu();
    let is_selected = |info: &&DeviceLine| selected == AUTO || info.id == selected;
    devices.is_empty() || devices.iter().filter(is_selected).any(is_gpu)
}

/// Replaces the preset if its model is too large for data that was just chosen. Sizes of the model
/// that were typed are a decision, and stay.
pub(in crate::gui) fn adapt_preset(
    form: &mut Form,
    state: &mut SetupState,
    fit: &FitState,
    devices: &[DeviceLine],
) {
    if state.chosen.take() != Some(form.text("data")) {
        return;
    }
    let is_typed = ["n_layer", "n_head", "n_embd"].iter().any(|key| form.is_changed(key));
    let suited = state.suited(form, fit, devices).filter(|_| !is_typed);
    let (Some(Suited { size, preset, .. }), Ok(config)) = (suited, form.config()) else { return };
    if size.is_too_small_for(config) && preset != form.preset() {
        let former = title(form.preset());
        let text = format!("The preset was {former}: too large a model for this data.");
        form.set_preset(preset);
        state.replaced = Some((text, preset));
    }
}

/// Draws the preset that suits the data better than the selected one, if any.
fn suggestion(
    ui: &mut egui::Ui,
    form: &mut Form,
    state: &mut SetupState,
    fit: &FitState,
    devices: &[DeviceLine],
) {
    if let Some((text, _)) = state.replaced.as_ref().filter(|(_, by)| *by == form.preset()) {
        wrapped(ui, RichText::new(text).small().color(theme::warning(ui)));
    }
    let Some(suited) = state.suited(form, fit, devices) else { return };
    let (Suited { size, preset, .. }, Ok(config)) = (suited, form.config()) else { return };
    // A preset that brings its data suits it.
    let is_own = form.preset_text("data") == config.data;
    if preset == form.preset() || is_own {
        return;
    }
    let is_too_large = size.is_too_small_for(config);
    // Without a GPU, training is slow enough as it is.
    let is_much_larger = suited.has_gpu
        && suited.parameters > MUCH_LARGER.saturating_mul(config.parameters(size.vocab.into()));
    let text = match is_too_large {
        true => "This model is too large for this data: it would learn the text by heart.",
        false if is_much_larger && config.init_from == InitFrom::Scratch => {
            "This data suffices for a larger model."
        }
        false => return,
    };
    let color = if is_too_large { theme::warning(ui) } else { ui.visuals().weak_text_color() };
    wrapped(ui, RichText::new(text).small().color(color));
    let button = egui::Button::new(format!("Use {}", title(preset))).wrap();
    if ui.add(button).on_hover_text("Select this preset; the data stays").clicked() {
        form.set_preset(preset);
    }
}

/// Returns the requested text of the clipboard when it arrives. In a browser, Ctrl+V requests it.
fn pasted_text(ui: &egui::Ui, state: &mut SetupState) -> Option<Intent> {
    let requested = match state.paste_requested {
        // A page cannot read the clipboard for a button, only receive the browser's paste event.
        None if platform::IS_PAGE && !ui.ctx().egui_wants_keyboard_input() => f64::NEG_INFINITY,
        requested => requested?,
    };
    // Removed from the input, so that a focused text field does not receive it too.
    let text = ui.input_mut(|input| {
        let is_paste = |event: &egui::Event| matches!(event, egui::Event::Paste(_));
        let at = input.events.iter().position(is_paste)?;
        match input.events.remove(at) {
            egui::Event::Paste(text) => Some(text),
            _ => None,
        }
    });
    if text.is_none() && ui.input(|input| input.time) - requested < PASTE_TIMEOUT {
        ui.ctx().request_repaint();
        return None;
    }
    let text = text.filter(|text| !text.trim().is_empty());
    state.clipboard_was_empty = state.paste_requested.take().is_some() && text.is_none();
    text.map(Intent::PrepareText)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form with a preset and data of this size.
    fn form(preset: &str, tokens: u64) -> (Form, SetupState) {
        let (mut form, mut state) = (Form::default(), SetupState::default());
        form.set_preset(preset);
        state.choose_data(&mut form, "data/mine");
        form.data = Some(Ok(DataInfo {
            vocab_size: 65,
            train_tokens: tokens,
            val_tokens: tokens / 10,
            tokenizer: Some(TokenizerKind::Char),
            excerpt: "Once".into(),
        }));
        (form, state)
    }

    #[test]
    fn a_megabyte_does_not_stay_under_gpt2_xl() {
        let (mut form, mut state) = form("gpt2-xl", 1_000_000);
        adapt_preset(&mut form, &mut state, &FitState::default(), &[]);
        assert_eq!((form.preset(), form.text("data").as_str()), ("shakespeare-char", "data/mine"));
        assert!(state.replaced.is_some());
        // A later choice of a person stays.
        form.set_preset("gpt2-xl");
        adapt_preset(&mut form, &mut state, &FitState::default(), &[]);
        assert_eq!(form.preset(), "gpt2-xl");
    }

    #[test]
    fn a_preset_stays_where_it_suits_or_its_model_was_typed() {
        for (preset, tokens, key) in [
            ("gpt2-xl", 9_000_000_000, None),
            ("demo", 1_000_000, None),
            ("gpt2-xl", 1_000_000, Some("n_layer")),
        ] {
            let (mut form, mut state) = form(preset, tokens);
            if let Some(key) = key {
                form.set(key, "2");
            }
            adapt_preset(&mut form, &mut state, &FitState::default(), &[]);
            assert_eq!(form.preset(), preset, "{tokens}");
        }
    }

    #[test]
    fn the_schedule_is_measured_in_epochs() {
        let (form, _) = form("shakespeare-char", 1_003_854);
        let found = epochs(form.config().unwrap(), 1_003_854);
        assert!((found - 5000.0 * 64.0 * 256.0 / 1_003_854.0).abs() < 1e-9);
        for (count, words) in [
            (found, "The schedule goes over them 82 times."),
            (1.0, "The schedule goes over them 1.0 times."),
            (0.25, "The schedule reads 25% of them."),
            (294_912.0, "The schedule goes over them 295 thousand times."),
        ] {
            assert_eq!(epochs_in_words(count), words);
        }
    }
}
