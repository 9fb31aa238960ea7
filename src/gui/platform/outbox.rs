//! Intents from other threads and from the browser.

use std::sync::mpsc::Sender;

use eframe::egui;

use crate::gui::intent::Intent;

/// Takes intents for the next frame, from any thread.
#[derive(Clone)]
pub struct Outbox {
    pub ctx: egui::Context,
    pub sender: Sender<Intent>,
}

impl Outbox {
    pub fn send(&self, intent: Intent) {
        // The window may have closed meanwhile.
        let _ = self.sender.send(intent);
        self.ctx.request_repaint();
    }
}
