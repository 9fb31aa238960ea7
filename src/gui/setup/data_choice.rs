//! The data of the next run: buttons that choose it, and a preview.

use eframe::egui::{self, Ui, text::LayoutJob};

use crate::config::{BUILTIN_STORIES, Config};
use crate::data::TokenizerKind;
use crate::gui::intent::{FileChoice, Intent};
use crate::gui::state::{DataJob, Paste, SettingsForm, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{button, labelled_row, note, weak_note};
use crate::gui::{platform, theme};
use crate::protocol::{Request, StoredData, Texts};
use crate::text::{count_in_words, percent};

/// Time to wait for the clipboard, in seconds. A clipboard without text never answers.
const PASTE_TIMEOUT: f64 = 0.5;

const EXCERPT_LINES: usize = 3;

/// Draws the progress of a job. Returns the request of the stop button.
fn progress(ui: &mut Ui, DataJob { name, share, fetched }: &DataJob) -> Option<Intent> {
    let text = fetched.clone().unwrap_or_else(|| format!("Preparing {name}"));
    ui.add(egui::ProgressBar::new(*share).text(egui::RichText::new(text).small()));
    fetched.as_ref()?;
    let stop = |ui: &mut Ui| button(ui, "Stop", None, "Keep what has arrived");
    let name = |ui: &mut Ui| weak_note(ui, format!("Fetching {name}"));
    let stopped = egui::Sides::new().shrink_left().show(ui, name, stop).1;
    stopped.then_some(Intent::Ask(Request::StopGet))
}

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let pasted = shared.data.paste.text(ui);
    let form = &shared.settings.form;
    let selected = form.text("data");
    labelled_row(ui, "Data", |ui, _| match selected.as_str() {
        "" => ui.weak("none yet"),
        BUILTIN_STORIES => ui.label("built-in stories"),
        path => ui.add(egui::Label::new(path).truncate()),
    });
    preview(ui, form, &selected);
    let (prepared, warnings) = &shared.data.warnings;
    for warning in warnings.iter().filter(|_| *prepared == selected) {
        note(ui, warning, theme::warning(ui));
    }
    let stopped = shared.data.job.as_ref().and_then(|job| progress(ui, job));
    let is_idle = shared.data.job.is_none();
    let buttons = |ui: &mut Ui| buttons(ui, shared);
    let intent = ui.add_enabled_ui(is_idle, |ui| ui.horizontal_wrapped(buttons).inner).inner;
    let hint = if shared.data.paste.was_empty {
        "The clipboard has no text."
    } else if shared.no_drop {
        ""
    } else {
        platform::DROP_HINT
    };
    weak_note(ui, hint);
    intent.or(pasted).or(stopped)
}

fn buttons(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let help = "Simple generated stories: nothing to download";
    let stories = button(ui, "Built-in stories", None, help);
    let mut chosen = stories.then(|| BUILTIN_STORIES.to_string());
    let files = button(ui, "Files...", None, platform::TEXTS_HINT);
    let files = files.then_some(Intent::Choose(FileChoice::Texts));
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
        shared.settings.form.set("data", spec);
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
    let help = "A list of good texts to fetch, with their licences";
    let list = button(ui, "Get a text...", None, help).then_some(Intent::ListTexts);
    files.or(folder.then_some(Intent::Choose(FileChoice::DataFolder))).or(list)
}

fn preview(ui: &mut Ui, form: &SettingsForm, selected: &str) {
    match &form.data {
        // The start button says that there is no data.
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
                Some(TokenizerKind::Bpe) => "its own byte pairs",
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

/// Returns the number of passes of `config` over `tokens` training tokens.
fn epochs(config: &Config, tokens: u64) -> f64 {
    let per_update = config.global_batch() as f64 * f64::from(config.block_size.get());
    config.max_iters.get() as f64 * per_update / tokens.max(1) as f64
}

fn epochs_in_words(epochs: f64) -> String {
    match epochs {
        0.0..0.995 => format!("The run reads {} of the data.", percent(epochs.max(0.01), 0)),
        0.995..10.0 => format!("{epochs:.1} passes over the data."),
        _ => format!("{} passes over the data.", count_in_words(epochs.round() as u64)),
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
        // Removed from the input, because a focused text field would also receive it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_the_data_are_counted() {
        let found = epochs(&Config::of_preset("shakespeare-char", &[]), 1_003_854);
        assert!((found - 5000.0 * 64.0 * 256.0 / 1_003_854.0).abs() < 1e-9);
        for (count, words) in [
            (found, "82 passes over the data."),
            (1.0, "1.0 passes over the data."),
            (0.25, "The run reads 25% of the data."),
            (294_912.0, "295 thousand passes over the data."),
        ] {
            assert_eq!(epochs_in_words(count), words);
        }
    }
}
