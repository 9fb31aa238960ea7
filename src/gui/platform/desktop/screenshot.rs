//! A screenshot of the window, for documentation.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use eframe::egui;

use crate::protocol::Progress;

/// The time that a window without a run takes to list devices and runs, in seconds.
const IDLE: f64 = 2.0;

/// The time between two checks that the run has ended.
const CHECK: Duration = Duration::from_millis(200);

pub(super) struct Screenshot {
    pub path: PathBuf,
    /// True if the run has to end first.
    pub wait_for_run: bool,
}

impl Screenshot {
    pub fn is_due(&self, ctx: &egui::Context, progress: &Progress) -> bool {
        let is_idle = !self.wait_for_run && ctx.input(|input| input.time) > IDLE;
        let is_due = is_idle || progress.has_ended();
        if !is_due {
            ctx.request_repaint_after(CHECK);
        }
        is_due
    }

    /// Writes the file after the next frame, and closes the window.
    pub fn take(self, ctx: &egui::Context) {
        let close = ctx.clone();
        ctx.request_screenshot(move |image| {
            let [width, height] = image.size.map(|size| size as u32);
            let pixels = image.as_raw().to_vec();
            let saved = image::RgbaImage::from_raw(width, height, pixels)
                .map(|screenshot| screenshot.save(&self.path));
            if let Some(Err(error)) = saved {
                let path = self.path.display();
                // Without a terminal the message is lost.
                let _ = writeln!(std::io::stderr(), "cannot write {path}: {error}");
            }
            close.send_viewport_cmd(egui::ViewportCommand::Close);
        });
    }
}
