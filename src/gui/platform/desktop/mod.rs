//! The window of a program: dialogs of the system, environment variables, its file manager.

mod display;
#[cfg(windows)]
pub(crate) mod explorer;
mod screenshot;
mod texts;
mod window;

use std::path::{Path, PathBuf};
use std::time::Duration;

use eframe::egui;

use super::outbox::Outbox;
use super::paths::{chosen, recognize};
use crate::config::VARIABLE_PREFIX;
use crate::gui::intent::{FileChoice, Intent, Overrides};
use crate::gui::options::WindowOptions;
use crate::gui::state::SettingsForm;
use crate::protocol::Progress;

pub use display::{front_end, open_front_end};
use screenshot::Screenshot;
pub use texts::texts;
pub use window::open;

/// The first folder in which runs are created and listed.
const RUNS: &str = "out";

pub const TEXTS_HINT: &str = "Your own text: .txt, .jsonl, .parquet, or any other text in UTF-8";

pub const DROP_HINT: &str = "Files and folders can be dropped on this window too.";

/// Returns the options that the environment variables give.
pub fn environment() -> WindowOptions {
    WindowOptions {
        overrides: overrides(),
        runs: RUNS.into(),
        // winit has no drag and drop on Wayland.
        no_drop: std::env::var_os("WAYLAND_DISPLAY").is_some(),
        ..WindowOptions::default()
    }
}

fn overrides() -> Overrides {
    let variable = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let settings = std::env::vars_os().filter_map(|(name, text)| {
        let key = name.to_str()?.strip_prefix(VARIABLE_PREFIX)?.to_ascii_lowercase();
        let text = text.to_str().filter(|text| !text.is_empty())?;
        Some((key, text.to_string()))
    });
    Overrides {
        preset: variable("WGPT_PRESET"),
        device: variable("WGPT_DEVICE"),
        settings: settings.collect(),
        ..Overrides::default()
    }
}

/// Opens a dialog and waits until it is closed. Returns the chosen paths, none if it was cancelled;
/// `None` if the system has no dialog.
fn dialog(choice: &FileChoice) -> Option<Vec<PathBuf>> {
    let dialog = rfd::FileDialog::new().set_title(choice.title());
    let chosen = match choice {
        FileChoice::Texts => {
            let kinds = &["txt", "jsonl", "csv", "parquet", "gz", "zst", "bin"];
            let dialog = dialog.add_filter("Texts", kinds).add_filter("All files", &["*"]);
            dialog.pick_files()
        }
        // All of these take one folder, the first.
        _ => dialog.pick_folders(),
    };
    // rfd has no errors. Where dialogs come from a portal or from zenity, it returns an empty list
    // for a dialog that was cancelled, and `None` if neither answers. Elsewhere a dialog exists.
    if cfg!(any(windows, target_os = "macos")) { Some(chosen.unwrap_or_default()) } else { chosen }
}

pub struct Platform {
    outbox: Outbox,
    screenshot: Option<Screenshot>,
}

impl Platform {
    pub fn new(outbox: Outbox, options: &WindowOptions) -> Self {
        let path = options.screenshot.clone();
        let screenshot = path.map(|path| Screenshot { path, wait_for_run: options.demo });
        Self { outbox, screenshot }
    }

    /// Recognizes files that were dropped on the window.
    pub fn read_dropped(&self) {
        let take = |input: &mut egui::InputState| std::mem::take(&mut input.raw.dropped_files);
        let files = self.outbox.ctx.input_mut(take);
        let dropped = recognize(files.iter().map(|file| file.path().to_path_buf()).collect());
        dropped.into_iter().for_each(|intent| self.outbox.send(intent));
    }

    /// Reports the state of the window: takes the requested screenshot.
    pub fn report(&mut self, _: &SettingsForm, progress: &Progress, _pace: Duration) {
        let ctx = &self.outbox.ctx;
        if let Some(due) = self.screenshot.take_if(|shot| shot.is_due(ctx, progress)) {
            self.outbox.send(Intent::Close);
            due.take(ctx);
        }
    }

    /// Opens a dialog, on a thread: it blocks until it is closed.
    pub fn choose(&mut self, choice: FileChoice) {
        let outbox = self.outbox.clone();
        std::thread::spawn(move || {
            let intent = match dialog(&choice) {
                Some(paths) => chosen(choice, paths),
                None => Some(Intent::TypePath(choice)),
            };
            intent.into_iter().for_each(|intent| outbox.send(intent));
        });
    }

    pub fn set_title(&self, title: &str) {
        self.outbox.ctx.send_viewport_cmd(egui::ViewportCommand::Title(title.into()));
    }

    /// Notifies a person who looks at something else that a run has ended.
    pub fn notify(&self, title: &str, text: &str) {
        let ctx = &self.outbox.ctx;
        if !ctx.input(|input| input.focused) {
            let attention = egui::UserAttentionType::Informational;
            ctx.send_viewport_cmd(egui::ViewportCommand::RequestUserAttention(attention));
            crate::worker::notify(title, text);
        }
    }

    pub fn open_folder(&self, folder: &Path) -> std::io::Result<()> {
        let program = match std::env::consts::OS {
            "windows" => "explorer",
            "macos" => "open",
            _ => "xdg-open",
        };
        let mut process = std::process::Command::new(program);
        #[cfg(windows)]
        // Explorer splits an unquoted path at commas. No path has quotes.
        std::os::windows::process::CommandExt::raw_arg(
            &mut process,
            format!("\"{}\"", folder.display()),
        );
        #[cfg(not(windows))]
        process.arg(folder);
        let mut child = process.spawn()?;
        // Until it is waited for, a process that has ended stays in the system's table.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Returns `None`: a program has no URL that opens its window with the same settings.
    pub fn link(&self) -> Option<String> {
        None
    }
}
