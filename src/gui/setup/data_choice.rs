//! The data of the next run: buttons that choose it, a preview, and the preset that suits it.

use eframe::egui::{self, Ui, text::LayoutJob};

use super::{row, title};
use crate::config::{BUILTIN_STORIES, Budget, Config, Dtype, InitFrom, Layer, resolve};
use crate::data::TokenizerKind;
use crate::gui::form::SettingsForm;
use crate::gui::platform::{self, Choice, IS_PAGE};
use crate::gui::widgets::{action, button, note, weak_note};
use crate::gui::{AUTO, Intent, Shared, theme};
use crate::plan::{self, Limits};
use crate::protocol::{DeviceLine, StoredData, Texts};
use crate::text::{count_in_words, percent};

/// Time to wait for the clipboard, in seconds. A clipboard without text never answers.
const PASTE_TIMEOUT: f64 = 0.5;

const EXCERPT_LINES: usize = 3;

/// A model with this many times the parameters is worth a suggestion.
const MUCH_LARGER: u64 = 4;

/// The data that is being prepared or was just chosen, and the preset for it.
#[derive(Default)]
pub(in crate::gui) struct DataChoice {
    /// The data that is being tokenized, and the completed fraction, 0 to 1.
    pub preparing: Option<(String, f32)>,
    /// Data that was tokenized, and sentences about what was skipped in it.
    pub warnings: (String, Vec<String>),
    /// Data that was just chosen: a preset whose model is too large for it is replaced once its
    /// size is known.
    chosen: Option<String>,
    /// The sentence about a preset that was replaced, and the preset in its place.
    replaced: Option<(String, &'static str)>,
    suited: Option<Suited>,
    paste: Paste,
}

/// A preset that suits the data, with what it was computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Suited {
    size: Corpus,
    limits: Limits,
    has_gpu: bool,
    preset: &'static str,
    parameters: u64,
}

/// A request for the text on the clipboard.
#[derive(Default)]
struct Paste {
    /// When it was requested, in seconds of egui's clock.
    requested: Option<f64>,
    /// True if the last request found no text.
    was_empty: bool,
}

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let pasted = shared.data.paste.text(ui);
    let form = &shared.settings.form;
    let selected = form.text("data");
    row(ui, "Data", |ui, _| match selected.as_str() {
        "" => ui.weak("none yet"),
        BUILTIN_STORIES => ui.label("built-in stories"),
        path => ui.add(egui::Label::new(path).truncate()),
    });
    preview(ui, form, &selected);
    let (prepared, warnings) = &shared.data.warnings;
    for warning in warnings.iter().filter(|_| *prepared == selected) {
        note(ui, warning, theme::warning(ui));
    }
    suggestion(ui, shared);
    if let Some((name, share)) = &shared.data.preparing {
        let text = egui::RichText::new(format!("Preparing {name}")).small();
        ui.add(egui::ProgressBar::new(*share).text(text));
    }
    let is_idle = shared.data.preparing.is_none();
    let buttons = |ui: &mut Ui| buttons(ui, shared);
    let intent = ui.add_enabled_ui(is_idle, |ui| ui.horizontal_wrapped(buttons).inner).inner;
    let no_text = "The clipboard has no text.";
    weak_note(ui, if shared.data.paste.was_empty { no_text } else { platform::drop_hint() });
    intent.or(pasted)
}

fn buttons(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let help = "Simple generated stories: nothing to download";
    let stories = button(ui, "Built-in stories", None, help);
    let mut chosen = stories.then(|| BUILTIN_STORIES.to_string());
    let files = button(ui, "Files...", None, platform::TEXTS_HINT);
    let files = files.then_some(Intent::Choose(Choice::Texts));
    if !shared.library.data.is_empty() {
        ui.menu_button("Stored", |ui| {
            for StoredData { spec, name } in &shared.library.data {
                if ui.button(name).clicked() {
                    chosen = Some(spec.clone());
                }
            }
        });
    }
    if let Some(spec) = chosen {
        shared.choose_data(&spec);
    }
    if IS_PAGE {
        return files;
    }
    let help = "A folder prepared by wgpt, nanoGPT or llm.c, or a folder of text files";
    let folder = button(ui, "Folder...", None, help);
    if button(ui, "Paste", None, "Train on the text on the clipboard") {
        ui.ctx().send_viewport_cmd(egui::ViewportCommand::RequestPaste);
        let requested = Some(ui.input(|input| input.time));
        shared.data.paste = Paste { requested, was_empty: false };
    }
    files.or(folder.then_some(Intent::Choose(Choice::DataFolder)))
}

fn preview(ui: &mut Ui, form: &SettingsForm, selected: &str) {
    match &form.data {
        // The start button says that data are missing.
        _ if selected.is_empty() => {}
        None => weak_note(ui, "Reading..."),
        Some(Err(error)) => {
            note(ui, error, theme::error(ui));
        }
        Some(Ok(info)) => {
            excerpt(ui, &info.excerpt);
            let tokenizer = match info.tokenizer {
                Some(TokenizerKind::Gpt2) => "GPT-2's tokenizer",
                Some(TokenizerKind::Char) => "a token per character",
                Some(TokenizerKind::Byte) => "a token per byte",
                Some(TokenizerKind::Bpe) => "byte pairs of its own",
                None => "an unknown tokenizer",
            };
            let counts = [info.train_tokens, info.val_tokens, info.vocab_size.into()];
            let [train, val, vocab] = counts.map(count_in_words);
            let text = format!(
                "{train} training tokens, {val} validation tokens; {tokenizer}, vocabulary of \
                 {vocab}"
            );
            weak_note(ui, text);
            if let Ok(config) = form.config() {
                weak_note(ui, epochs_in_words(epochs(config, info.train_tokens)));
            }
        }
    }
}

fn excerpt(ui: &mut Ui, text: &str) {
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

impl Shared {
    pub fn choose_data(&mut self, spec: &str) {
        let form = &mut self.settings.form;
        if form.text("data") != spec {
            form.set("data", spec);
            self.data.chosen = Some(spec.to_string());
        }
    }

    /// Replaces the preset if its model is too large for data that was just chosen. Sizes of the
    /// model that were typed are a decision, and stay.
    pub fn adapt_preset(&mut self) {
        let form = &self.settings.form;
        let is_typed = ["n_layer", "n_head", "n_embd"].iter().any(|key| form.is_changed(key));
        if self.data.chosen.take() != Some(form.text("data")) || is_typed {
            return;
        }
        let suited = self.suited();
        let form = &mut self.settings.form;
        let (Some(Suited { size, preset, .. }), Ok(config)) = (suited, form.config()) else {
            return;
        };
        if size.is_too_small_for(config) && preset != form.preset() {
            let former = title(form.preset());
            let text = format!("The preset was {former}: too large a model for this data.");
            form.set_preset(preset);
            self.data.replaced = Some((text, preset));
        }
    }

    /// Returns the preset that suits the data of the form, once its size is known.
    fn suited(&mut self) -> Option<Suited> {
        let Some(Ok(info)) = &self.settings.form.data else { return None };
        let size = Corpus { tokens: info.train_tokens, vocab: info.vocab_size };
        let limits = self.fit.limits(Budget::Auto, Dtype::Auto);
        let has_gpu = has_gpu(&self.devices, &self.settings.device);
        self.data
            .suited
            .take_if(|known| (known.size, known.limits, known.has_gpu) != (size, limits, has_gpu));
        Some(*self.data.suited.get_or_insert_with(|| {
            // As in the presets for GPUs: activation checkpointing makes a step longer.
            let fits = |config: &Config| {
                let forecast = plan::plan(config, size.vocab, &limits, None);
                forecast.is_ok_and(|forecast| !forecast.plan.grad_checkpoint)
            };
            let preset = size.preset(has_gpu, fits);
            let form = SettingsForm::of_preset(preset);
            let parameters = form.config().map_or(0, |config| config.parameters(size.vocab.into()));
            Suited { size, limits, has_gpu, preset, parameters }
        }))
    }
}

/// Returns true if the selected device is a GPU, and as long as the devices are unknown.
fn has_gpu(devices: &[DeviceLine], selected: &str) -> bool {
    let is_selected = |info: &&DeviceLine| selected == AUTO || info.id == selected;
    devices.is_empty() || devices.iter().filter(is_selected).any(|info| info.kind.is_gpu())
}

/// Draws the preset that suits the data better than the selected one, if any.
fn suggestion(ui: &mut Ui, shared: &mut Shared) {
    let suited = shared.suited();
    let form = &mut shared.settings.form;
    if let Some((text, _)) = shared.data.replaced.as_ref().filter(|(_, by)| *by == form.preset()) {
        note(ui, text, theme::warning(ui));
    }
    let (Some(suited), Ok(config)) = (suited, form.config()) else { return };
    let Suited { size, preset, has_gpu, parameters, .. } = suited;
    // A preset that brings its data suits it.
    if preset == form.preset() || form.preset_text("data") == config.data {
        return;
    }
    // Without a GPU, training is slow enough as it is.
    let much = MUCH_LARGER.saturating_mul(config.parameters(size.vocab.into()));
    let is_much_larger = has_gpu && parameters > much;
    if size.is_too_small_for(config) {
        let text = "This model is too large for this data: it would learn the text by heart.";
        note(ui, text, theme::warning(ui));
    } else if is_much_larger && config.init_from == InitFrom::Scratch {
        weak_note(ui, "This data suffices for a larger model.");
    } else {
        return;
    }
    let button = egui::Button::new(format!("Use {}", title(preset))).wrap();
    if action(ui, button, None, "Select this preset; the data stays") {
        form.set_preset(preset);
    }
}

impl Paste {
    /// Returns the requested text of the clipboard when it arrives. In a browser, Ctrl+V requests
    /// it.
    fn text(&mut self, ui: &Ui) -> Option<Intent> {
        let requested = match self.requested {
            // A page cannot read the clipboard for a button, only receive the browser's paste event.
            None if IS_PAGE && !ui.ctx().egui_wants_keyboard_input() => f64::NEG_INFINITY,
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
        self.was_empty = self.requested.take().is_some() && text.is_none();
        text.map(|text| Intent::Prepare(Texts::Text { name: "pasted".into(), text }))
    }
}

/// Parameters for each training token beyond which a model learns its text by heart.
///
/// nanoGPT's Shakespeare by character has 10.7. It needs dropout, and still overfits before its
/// schedule ends, so that only its best checkpoint is of use: a limit little above it. A model that
/// makes the most of its compute has 0.05 (Hoffmann et al., 2022), but few users have that much text.
const MAX_PER_TOKEN: u64 = 12;

/// Presets for any data, the smallest model first.
const BY_SIZE: [&str; 6] =
    ["demo", "shakespeare-char", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"];

/// The smallest parameter count of the models whose schedule takes months without a GPU: their
/// presets see 295 billion tokens.
const NEEDS_GPU: u64 = 100_000_000;

/// The size of the data of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Corpus {
    tokens: u64,
    vocab: u32,
}

impl Corpus {
    /// Returns true if the model of `config` starts from random weights and has enough parameters to
    /// learn the data by heart.
    fn is_too_small_for(self, config: &Config) -> bool {
        let max = self.tokens.saturating_mul(MAX_PER_TOKEN);
        config.init_from == InitFrom::Scratch && config.parameters(self.vocab.into()) > max
    }

    /// Returns the preset with the largest model that suits the data and the device: one that
    /// `fits`, and without a GPU none of the presets for GPUs. Data too small for any get the
    /// smallest.
    fn preset(self, has_gpu: bool, fits: impl Fn(&Config) -> bool) -> &'static str {
        let suits = |config: &Config| {
            let runs = has_gpu || config.parameters(self.vocab.into()) < NEEDS_GPU;
            runs && !self.is_too_small_for(config) && fits(config)
        };
        let config = |preset: &str| resolve(vec![Layer::preset(preset).ok()?]).ok();
        let suits = |preset: &&str| config(preset).is_some_and(|found| suits(&found.config));
        BY_SIZE.into_iter().rev().find(suits).unwrap_or(BY_SIZE[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::DataInfo;

    /// A window with a preset and data of this size.
    fn shared(preset: &str, tokens: u64) -> Shared {
        let mut shared = Shared::default();
        shared.settings.form.set_preset(preset);
        shared.choose_data("data/mine");
        let data = DataInfo { vocab_size: 65, train_tokens: tokens, ..DataInfo::default() };
        shared.settings.form.data = Some(Ok(data));
        shared
    }

    #[test]
    fn a_megabyte_does_not_stay_under_gpt2_xl() {
        let mut shared = shared("gpt2-xl", 1_000_000);
        shared.adapt_preset();
        let form = &mut shared.settings.form;
        assert_eq!((form.preset(), form.text("data").as_str()), ("shakespeare-char", "data/mine"));
        assert!(shared.data.replaced.is_some());
        // A later choice of a person stays.
        form.set_preset("gpt2-xl");
        shared.adapt_preset();
        assert_eq!(shared.settings.form.preset(), "gpt2-xl");
    }

    #[test]
    fn a_preset_stays_where_it_suits_or_its_model_was_typed() {
        for (preset, tokens, key) in [
            ("gpt2-xl", 9_000_000_000, None),
            ("demo", 1_000_000, None),
            ("gpt2-xl", 1_000_000, Some("n_layer")),
        ] {
            let mut shared = shared(preset, tokens);
            if let Some(key) = key {
                shared.settings.form.set(key, "2");
            }
            shared.adapt_preset();
            assert_eq!(shared.settings.form.preset(), preset, "{tokens}");
        }
    }

    #[test]
    fn the_schedule_is_measured_in_epochs() {
        let shared = shared("shakespeare-char", 1_003_854);
        let found = epochs(shared.settings.form.config().unwrap(), 1_003_854);
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

    #[test]
    fn a_preset_follows_the_size_of_the_data() {
        const GPT2: u32 = 50_257;
        for (text, tokens, vocab, expected) in [
            ("a pasted page, by character", 3_000, 60, "demo"),
            ("Shakespeare, 1 MB by character", 1_003_854, 65, "shakespeare-char"),
            ("Shakespeare, 1 MB as GPT-2's tokens", 301_966, GPT2, "demo"),
            ("5 MB by character", 5_000_000, 100, "shakespeare-char"),
            ("50 MB as GPT-2's tokens", 12_500_000, GPT2, "gpt2"),
            ("OpenWebText", 9_035_582_198, GPT2, "gpt2-xl"),
        ] {
            let preset = Corpus { tokens, vocab }.preset(true, |_| true);
            assert_eq!(preset, expected, "{text}");
        }
    }

    #[test]
    fn a_preset_suits_the_device_too() {
        let large = Corpus { tokens: 9_000_000_000, vocab: 50_257 };
        assert_eq!(large.preset(false, |_| true), "shakespeare-char");
        let fits = |config: &Config| config.parameters(50_257) < 400_000_000;
        assert_eq!(large.preset(true, fits), "gpt2-medium");
        assert_eq!(large.preset(true, |_| false), "demo");
    }

    #[test]
    fn a_model_with_weights_suits_any_data() {
        let config = Config::of_preset("gpt2-xl", &[]);
        let small = Corpus { tokens: 300_000, vocab: 50_257 };
        assert!(small.is_too_small_for(&config));
        let tuned = Config { init_from: InitFrom::Path("gpt2-xl".into()), ..config };
        assert!(!small.is_too_small_for(&tuned));
    }
}
