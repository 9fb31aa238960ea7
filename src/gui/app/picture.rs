//! A picture of the window, for pages that show it.

use eframe::egui;

use super::{App, Closing, FOLLOW};

/// How long a window without a run takes to know its surroundings, in seconds.
const IDLE: f64 = 2.0;

impl App {
    /// The picture that was asked for, once there is something to see; then the window closes.
    pub(super) fn picture(&mut self, ctx: &egui::Context) {
        let Some(path) = self.options.screenshot.clone().filter(|_| !self.pictured) else { return };
        let idle = !self.options.demo && ctx.input(|input| input.time) > IDLE;
        if !idle && !self.progress.has_ended() {
            ctx.request_repaint_after(FOLLOW);
            return;
        }
        self.pictured = true;
        self.closing = Closing::Yes;
        let close = ctx.clone();
        ctx.request_screenshot(move |image| {
            let [width, height] = image.size.map(|size| size as u32);
            let pixels = image.as_raw().to_vec();
            let saved = image::RgbaImage::from_raw(width, height, pixels)
                .map(|picture| picture.save(&path));
            if let Some(Err(error)) = saved {
                // Nobody but the terminal is there to be told.
                let _ = std::io::Write::write_fmt(
                    &mut std::io::stderr(),
                    format_args!("cannot write {}: {error}\n", path.display()),
                );
            }
            close.send_viewport_cmd(egui::ViewportCommand::Close);
        });
    }
}
