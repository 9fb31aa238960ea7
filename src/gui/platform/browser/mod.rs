//! The window of a page: the browser's file dialogs, the page's URL, its element for screen
//! readers.

mod dialogs;
mod files;
mod page;
mod status;
mod url;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use eframe::egui;
use web_sys::File;

use super::{Choice, Frame, Input, Overrides};
use crate::doctor::FrontEnd;
use crate::gui::Options;
use crate::protocol::Destination;
use crate::web::{document, error_text};
use dialogs::FileDialog;
pub use page::open;
use status::Status;
use url::Url;

/// True if the window is a page in a browser.
pub(in crate::gui) const IS_PAGE: bool = true;

/// The folder in which runs are created and listed.
pub(in crate::gui) use crate::worker::browser::RUNS;

/// The kinds of texts that can be chosen.
pub(in crate::gui) const TEXTS_HINT: &str =
    "Texts of yours, in UTF-8. They are read here and sent nowhere.";

/// The help of the button that chooses the budget.
pub(in crate::gui) const AUTO_BUDGET_HINT: &str = "Use the default budget for browsers";

/// The hint below the buttons that choose data.
pub(in crate::gui) fn drop_hint() -> &'static str {
    "Texts can be dropped on this page too, or pasted with Ctrl+V."
}

/// Returns an empty path: a page has no home folder.
pub(in crate::gui) fn home() -> PathBuf {
    PathBuf::new()
}

/// Describes the page, which creates runs in `runs`.
pub(in crate::gui) fn open_front_end(runs: &Path) -> FrontEnd {
    FrontEnd { display: None, runs: runs.to_path_buf(), settings: None }
}

/// Reads settings from the page's URL.
pub(in crate::gui) fn overrides() -> Overrides {
    url::read()
}

/// The inputs since the last frame, shared with the browser's callbacks.
type Inputs = Rc<RefCell<Vec<Input>>>;

/// Opens dialogs and collects what they return; updates the URL and the status.
pub(in crate::gui) struct Platform {
    ctx: egui::Context,
    inputs: Inputs,
    /// The last dialog: the browser calls it when files are chosen.
    dialog: Option<FileDialog>,
    url: Url,
    status: Status,
}

impl Platform {
    pub fn new(ctx: &egui::Context, _: &Options) -> Self {
        Self {
            ctx: ctx.clone(),
            inputs: Inputs::default(),
            dialog: None,
            url: Url::default(),
            status: Status::default(),
        }
    }

    /// Returns files that were dropped or chosen, and changes of the URL, since the last call.
    pub fn inputs(&mut self) -> Vec<Input> {
        let files = self.ctx.input_mut(|input| std::mem::take(&mut input.raw.dropped_files));
        let dropped = files.iter().filter_map(|file| file.web_file().cloned()).collect();
        read(dropped, &self.inputs, &self.ctx);
        self.inputs.take()
    }

    /// Reports the state of the window: in the URL and in the page's status.
    pub fn report(&mut self, frame: &Frame<'_>) {
        let changed = self.url.update(frame.form).map(Input::Overrides);
        if changed.is_some() {
            self.inputs.borrow_mut().extend(changed);
            self.ctx.request_repaint();
        }
        self.status.update(frame);
    }

    /// Opens a dialog for texts or the zip of a model. Exports need none.
    pub fn choose(&mut self, choice: Choice) {
        let accept = match choice {
            Choice::Texts => dialogs::TEXTS,
            Choice::DataFolder | Choice::RunsFolder | Choice::Model => dialogs::ZIPS,
            Choice::Export(checkpoint) => return self.export(checkpoint),
        };
        let (inputs, ctx) = (self.inputs.clone(), self.ctx.clone());
        match FileDialog::open(accept, move |files| read(files, &inputs, &ctx)) {
            Ok(dialog) => self.dialog = Some(dialog),
            Err(error) => {
                let text = format!("the file dialog did not open: {}", error_text(&error));
                self.inputs.borrow_mut().push(Input::Unreadable(text));
            }
        }
    }

    /// Exports the best checkpoint of the run, or a model, as a zip for the browser's downloads.
    fn export(&mut self, checkpoint: PathBuf) {
        // `runs/NAME` of a checkpoint in it.
        let checkpoint = checkpoint.components().take(2).collect();
        self.inputs.borrow_mut().push(Input::Export { checkpoint, to: Destination::Zip });
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

    /// Refuses: a page has no folders to show.
    ///
    /// # Errors
    /// Always.
    pub fn open_folder(&self, _: &Path) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// The URL that opens this window with the same settings.
    pub fn link(&self) -> Option<String> {
        url::href()
    }
}

/// Reads files into inputs: texts, or the zip of a model.
fn read(files: Vec<File>, inputs: &Inputs, ctx: &egui::Context) {
    let Some(first) = files.first().map(File::name) else { return };
    let is_model = first.to_ascii_lowercase().ends_with(".zip");
    if !is_model {
        inputs.borrow_mut().push(Input::Reading(first));
    }
    ctx.request_repaint();
    let (inputs, ctx) = (inputs.clone(), ctx.clone());
    wasm_bindgen_futures::spawn_local(async move {
        let read = match is_model {
            true => files::model(&files[0]).await,
            false => files::texts(&files).await,
        };
        inputs.borrow_mut().push(read.unwrap_or_else(Input::Unreadable));
        ctx.request_repaint();
    });
}
