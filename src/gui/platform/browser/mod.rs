//! The window of a page: the browser's file dialogs, the page's URL, its element for screen
//! readers.

mod dialogs;
mod files;
mod status;
mod url;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use eframe::{WebRunner, egui};
use wasm_bindgen::prelude::JsValue;
use web_sys::{File, HtmlCanvasElement};

use super::Choice;
use crate::doctor::FrontEnd;
use crate::gui::{App, Intent, Options, Shared};
use crate::protocol::{Destination, Request};
use crate::web::{document, error_text};
use dialogs::FileDialog;
use status::Status;
use url::Url;
pub(in crate::gui) use url::overrides;

/// The folder in which runs are created and listed.
pub(in crate::gui) use crate::worker::browser::RUNS;

/// The kinds of texts that can be chosen.
pub(in crate::gui) const TEXTS_HINT: &str =
    "Texts of yours, in UTF-8. They are read here and sent nowhere.";

/// The hint below the buttons that choose data.
pub(in crate::gui) fn drop_hint() -> &'static str {
    "Texts can be dropped on this page too, or pasted with Ctrl+V."
}

/// Describes the page, which creates runs in `runs`.
pub(in crate::gui) fn open_front_end(runs: &Path) -> FrontEnd {
    FrontEnd { display: None, runs: runs.to_path_buf(), settings: None }
}

/// Draws the window on a canvas from now on.
pub async fn open(canvas: HtmlCanvasElement, options: Options) -> Result<(), JsValue> {
    let create: eframe::AppCreator<'static> =
        Box::new(move |creation| Ok(Box::new(App::new(creation, options))));
    WebRunner::new().start(canvas, eframe::WebOptions::default(), create).await
}

/// The intents since the last frame, shared with the browser's callbacks.
type Intents = Rc<RefCell<Vec<Intent>>>;

/// Opens dialogs and collects what they return; updates the URL and the status.
pub(in crate::gui) struct Platform {
    ctx: egui::Context,
    intents: Intents,
    /// The last dialog: the browser calls it when files are chosen.
    dialog: Option<FileDialog>,
    url: Url,
    status: Status,
}

impl Platform {
    pub fn new(ctx: &egui::Context, _: &Options) -> Self {
        Self {
            ctx: ctx.clone(),
            intents: Intents::default(),
            dialog: None,
            url: Url::default(),
            status: Status::default(),
        }
    }

    /// Returns what to do with files that were dropped or chosen, and with changes of the URL, since
    /// the last call.
    pub fn intents(&mut self) -> Vec<Intent> {
        let files = self.ctx.input_mut(|input| std::mem::take(&mut input.raw.dropped_files));
        let dropped = files.iter().filter_map(|file| file.web_file().cloned()).collect();
        read(dropped, &self.intents, &self.ctx);
        self.intents.take()
    }

    /// Reports the state of the window: in the URL and in the page's status.
    pub fn report(&mut self, shared: &Shared, pace: Duration) {
        if let Some(changed) = self.url.update(&shared.settings.form) {
            self.intents.borrow_mut().push(Intent::Override(changed));
            self.ctx.request_repaint();
        }
        self.status.update(&self.ctx, &shared.shown.progress, pace);
    }

    /// Opens a dialog for texts or the zip of a model. Exports need none.
    pub fn choose(&mut self, choice: Choice) {
        let accept = match choice {
            Choice::Texts => dialogs::TEXTS,
            Choice::DataFolder | Choice::RunsFolder | Choice::Model => dialogs::ZIPS,
            Choice::Export(checkpoint) => return self.export(checkpoint),
        };
        let (intents, ctx) = (self.intents.clone(), self.ctx.clone());
        match FileDialog::open(accept, move |files| read(files, &intents, &ctx)) {
            Ok(dialog) => self.dialog = Some(dialog),
            Err(error) => {
                let text = format!("the file dialog did not open: {}", error_text(&error));
                self.intents.borrow_mut().push(Intent::Unreadable(text));
            }
        }
    }

    /// Exports the best checkpoint of the run, or a model, as a zip for the browser's downloads.
    fn export(&mut self, checkpoint: PathBuf) {
        // `runs/NAME` of a checkpoint in it.
        let checkpoint = checkpoint.components().take(2).collect();
        let request = Request::Export { checkpoint, to: Destination::Zip };
        self.intents.borrow_mut().push(Intent::Ask(request));
        self.ctx.request_repaint();
    }

    /// Sets the title of the page.
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

    /// The URL that opens this window with the same settings.
    pub fn link(&self) -> Option<String> {
        url::href()
    }
}

/// Reads files into intents: texts, or the zip of a model.
fn read(files: Vec<File>, intents: &Intents, ctx: &egui::Context) {
    let Some(first) = files.first().map(File::name) else { return };
    let is_model = first.to_ascii_lowercase().ends_with(".zip");
    if !is_model {
        intents.borrow_mut().push(Intent::Reading(first));
    }
    ctx.request_repaint();
    let (intents, ctx) = (intents.clone(), ctx.clone());
    wasm_bindgen_futures::spawn_local(async move {
        let read =
            if is_model { files::model(&files[0]).await } else { files::texts(&files).await };
        intents.borrow_mut().push(read.unwrap_or_else(Intent::Unreadable));
        ctx.request_repaint();
    });
}
