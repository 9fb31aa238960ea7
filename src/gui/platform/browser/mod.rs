//! The window of a page: the browser's file dialogs, the page's URL, its element for screen
//! readers.

mod files;
mod status;
mod url;

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::{WebRunner, egui};
use wasm_bindgen::prelude::JsValue;
use web_sys::{File, HtmlCanvasElement};

use super::outbox::Outbox;
use crate::browser::{document, error_text};
use crate::doctor::FrontEnd;
use crate::gui::intent::{FileChoice, Intent};
use crate::gui::options::WindowOptions;
use crate::gui::state::{SettingsForm, Shared};
use crate::protocol::{Progress, Request};
use crate::worker::browser::RUNS;
use files::FileDialog;
use status::PageStatus;

pub const TEXTS_HINT: &str = "Your own text, in UTF-8. It stays on this computer.";

pub const DROP_HINT: &str = "Texts can be dropped on this page too, or pasted with Ctrl+V.";

/// Returns the options that the page's URL gives.
pub fn environment() -> WindowOptions {
    WindowOptions { overrides: url::overrides(), runs: RUNS.into(), ..WindowOptions::default() }
}

/// Draws nothing: a page connects to nothing, so it has no list of texts to fetch.
pub fn texts(_: &egui::Ui, _: &mut Shared) -> Option<Intent> {
    None
}

/// Describes the page, which creates runs in `runs`.
pub fn open_front_end(runs: &Path) -> FrontEnd {
    FrontEnd { display: None, runs: runs.to_path_buf(), settings: None }
}

/// Draws the app that `create` returns on a canvas from now on.
pub async fn open<A: eframe::App + 'static>(
    canvas: HtmlCanvasElement,
    options: WindowOptions,
    create: impl FnOnce(&eframe::CreationContext<'_>, WindowOptions) -> A + 'static,
) -> Result<(), JsValue> {
    let creator: eframe::AppCreator<'static> =
        Box::new(move |creation| Ok(Box::new(create(creation, options))));
    WebRunner::new().start(canvas, eframe::WebOptions::default(), creator).await
}

pub struct Platform {
    outbox: Outbox,
    /// The last dialog: the browser calls it when files are chosen.
    dialog: Option<FileDialog>,
    /// The fragment of the URL as it was written last, without its `#`.
    fragment: Option<String>,
    status: PageStatus,
}

impl Platform {
    pub fn new(outbox: Outbox, _: &WindowOptions) -> Self {
        Self { outbox, dialog: None, fragment: None, status: PageStatus::default() }
    }

    pub fn read_dropped(&self) {
        let take = |input: &mut egui::InputState| std::mem::take(&mut input.raw.dropped_files);
        let files = self.outbox.ctx.input_mut(take);
        read(files.iter().filter_map(|file| file.web_file().cloned()).collect(), &self.outbox);
    }

    /// Reports the state of the window: in the URL and in the page's status.
    pub fn report(&mut self, form: &SettingsForm, progress: &Progress, pace: Duration) {
        if let Some(changed) = url::update(&mut self.fragment, form) {
            self.outbox.send(Intent::Override(changed));
        }
        self.status.update(&self.outbox.ctx, progress, pace);
    }

    /// Opens a dialog for texts or the zip of a model. Exports need none.
    pub fn choose(&mut self, choice: FileChoice) {
        let accept = match choice {
            FileChoice::Texts => files::TEXTS,
            FileChoice::DataFolder
            | FileChoice::RunsFolder
            | FileChoice::Model
            | FileChoice::Base => files::ZIPS,
            // The best checkpoint of the run, or a model, as a zip for the browser's downloads.
            FileChoice::Export(checkpoint, format) => {
                // `runs/NAME` of a checkpoint in it.
                let checkpoint = checkpoint.components().take(2).collect();
                let request = Request::Export { checkpoint, format, folder: PathBuf::new() };
                return self.outbox.send(Intent::Ask(request));
            }
        };
        let outbox = self.outbox.clone();
        match FileDialog::open(accept, move |files| read(files, &outbox)) {
            Ok(dialog) => self.dialog = Some(dialog),
            Err(error) => {
                let text = format!("the file dialog did not open: {}", error_text(&error));
                self.outbox.send(Intent::Unreadable(text));
            }
        }
    }

    pub fn set_title(&self, title: &str) {
        if let Ok(page) = document() {
            page.set_title(title);
        }
    }

    /// Does nothing: the title of the page says that a run has ended. Notifications would need a
    /// permission.
    pub fn notify(&self, _: &str, _: &str) {}

    /// Returns an error, because a page has no folders to show.
    pub fn open_folder(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Returns the URL that opens this window with the same settings.
    pub fn link(&self) -> Option<String> {
        url::href()
    }
}

/// Reads files into intents: texts, or the zip of a model.
fn read(files: Vec<File>, outbox: &Outbox) {
    let Some(first) = files.first().map(File::name) else { return };
    let is_model = first.to_ascii_lowercase().ends_with(".zip");
    if !is_model {
        outbox.send(Intent::Reading(first));
    }
    let outbox = outbox.clone();
    wasm_bindgen_futures::spawn_local(async move {
        let read =
            if is_model { files::model(&files[0]).await } else { files::texts(&files).await };
        outbox.send(read.unwrap_or_else(Intent::Unreadable));
    });
}
