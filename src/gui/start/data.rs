//! The data of the next run: buttons that choose them, and a preview.

use std::path::Path;

use eframe::egui::{self, Ui, text::LayoutJob};

use crate::config::BUILTIN_STORIES;
use crate::data::TokenizerKind;
use crate::gui::intent::{FileChoice, Intent};
use crate::gui::state::{Catalog, DataJob, Paste, SettingsForm, Shared};
use crate::gui::target::IS_PAGE;
use crate::gui::widgets::{button, labelled_row, note, weak_note};
use crate::gui::{platform, theme};
use crate::protocol::{Request, StoredData, Texts};
use crate::text::count_in_words;

/// Time to wait for the clipboard, in seconds. A clipboard without text never answers.
const PASTE_TIMEOUT: f64 = 0.5;

const EXCERPT_LINES: usize = 3;

/// Draws the progress of a job. Returns the request of the stop button.
pub(super) fn progress(ui: &mut Ui, DataJob { name, share, fetched }: &DataJob) -> Option<Intent> {
    let text = fetched.clone().unwrap_or_else(|| format!("Preparing {name}"));
    ui.add(egui::ProgressBar::new(*share).text(egui::RichText::new(text).small()));
    fetched.as_ref()?;
    let stop = |ui: &mut Ui| button(ui, "Stop", None, "Keep what has arrived");
    let name = |ui: &mut Ui| weak_note(ui, format!("Fetching {name}"));
    let stopped = egui::Sides::new().shrink_left().show(ui, name, stop).1;
    stopped.then_some(Intent::Ask(Request::StopGet))
}

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let pasted = shared.start.data.paste.text(ui);
    let form = &shared.settings.form;
    let selected = form.text("data");
    labelled_row(ui, "Data", |ui, _| match selected.as_str() {
        "" if form.model().is_some() => ui.weak("none yet: conversations (.jsonl) or texts"),
        "" => ui.weak("none yet"),
        BUILTIN_STORIES => ui.label("built-in stories"),
        path => {
            let name =
                Path::new(path).file_name().map_or(path.into(), |name| name.to_string_lossy());
            ui.add(egui::Label::new(name).truncate()).on_hover_text(path)
        }
    });
    preview(ui, form, &selected);
    let state = &shared.start.data;
    let (prepared, warnings) = &state.warnings;
    for warning in warnings.iter().filter(|_| *prepared == selected) {
        note(ui, warning, theme::warning(ui));
    }
    let is_idle = state.job.is_none();
    let buttons = |ui: &mut Ui| buttons(ui, shared);
    let intent = ui.add_enabled_ui(is_idle, |ui| ui.horizontal_wrapped(buttons).inner).inner;
    let hint = if shared.start.data.paste.was_empty {
        "The clipboard has no text."
    } else if shared.no_drop {
        ""
    } else {
        platform::DROP_HINT
    };
    weak_note(ui, hint);
    intent.or(pasted)
}

fn buttons(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    // Other data are not in the tokens of a model.
    let is_new = shared.settings.form.model().is_none();
    let help = "Simple generated stories: nothing to download";
    let stories = is_new && button(ui, "Built-in stories", None, help);
    let mut chosen = stories.then(|| BUILTIN_STORIES.to_string());
    let files = button(ui, "Files...", None, platform::TEXTS_HINT);
    let files = files.then_some(Intent::Choose(FileChoice::Texts));
    if is_new && !shared.library.data.is_empty() {
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
        shared.start.data.paste = Paste { requested, was_empty: false };
    }
    let help = "A list of good texts to fetch, with their licences";
    let list = is_new && button(ui, "Get a text...", None, help);
    let list = list.then_some(Intent::List(Catalog::Texts));
    files.or(folder.then_some(Intent::Choose(FileChoice::DataFolder))).or(list)
}

fn preview(ui: &mut Ui, form: &SettingsForm, selected: &str) {
    match &form.data {
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
