//! The state of the run in a hidden element of the page, for screen readers and for tests.

use std::time::Duration;

use eframe::egui::Context;
use wasm_bindgen::prelude::JsValue;
use web_sys::Element;

use crate::browser::document;
use crate::gui::status::status;
use crate::protocol::{Progress, RunPhase};

const ELEMENT: &str = "status";

/// The least time between two changes of the attributes, and of the text, which is read aloud, in
/// seconds.
const ATTRIBUTES: f64 = 0.25;
const TEXT: f64 = 5.0;

/// The last contents of the element.
#[derive(Default)]
pub(super) struct PageStatus {
    updated: Option<f64>,
    text: String,
    text_updated: f64,
}

impl PageStatus {
    pub fn update(&mut self, ctx: &Context, progress: &Progress, pace: Duration) {
        let now = ctx.input(|input| input.time);
        let pause = pace.as_secs_f64().max(ATTRIBUTES);
        let next = self.updated.map_or(0.0, |updated| updated + pause - now);
        if next > 0.0 {
            ctx.request_repaint_after_secs(next as f32);
            return;
        }
        self.updated = Some(now);
        let element = document().ok().and_then(|page| page.get_element_by_id(ELEMENT));
        let Some(element) = element else { return };
        // A screen reader without an attribute is all that a failure costs.
        let _ = set_attributes(&element, progress);
        let (status, _) = status(progress);
        let is_new_state = !self.text.starts_with(&status);
        if is_new_state || now - self.text_updated >= TEXT {
            let text = sentence(&status, progress);
            if text != self.text {
                element.set_text_content(Some(&text));
                self.text = text;
                self.text_updated = now;
            }
        }
    }
}

fn set_attributes(element: &Element, progress: &Progress) -> Result<(), JsValue> {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let step = progress.last_step.as_ref();
    let error = match &progress.state {
        RunPhase::Failed(error) => error.text.clone(),
        _ => String::new(),
    };
    let run = progress.run.as_ref().map_or(String::new(), |run| run.display().to_string());
    let checkpoint = progress.checkpoints.last().map(|checkpoint| checkpoint.iter.to_string());
    for (name, value) in [
        ("data-state", state_name(&progress.state).to_string()),
        ("data-run", run),
        ("data-iter", progress.iteration.to_string()),
        ("data-max-iters", progress.max_iters.to_string()),
        ("data-loss", number(progress.loss)),
        ("data-val-loss", number(progress.val_loss)),
        ("data-tokens-per-s", number(progress.tokens_per_s)),
        ("data-memory", number(step.and_then(|step| step.vram_bytes).map(|bytes| bytes as f64))),
        ("data-checkpoint", checkpoint.unwrap_or_default()),
        ("data-samples", progress.samples.len().to_string()),
        ("data-error", error),
    ] {
        if element.get_attribute(name).as_deref() != Some(&value) {
            element.set_attribute(name, &value)?;
        }
    }
    Ok(())
}

fn state_name(state: &RunPhase) -> &'static str {
    match state {
        RunPhase::Idle => "idle",
        RunPhase::Starting => "starting",
        RunPhase::Running => "running",
        RunPhase::Paused => "paused",
        RunPhase::Recovering => "recovering",
        RunPhase::Waiting(_) => "waiting",
        RunPhase::Finished(_) => "finished",
        RunPhase::Interrupted => "interrupted",
        RunPhase::Failed(_) => "failed",
    }
}

fn sentence(status: &str, progress: &Progress) -> String {
    let mut text = status.to_string();
    if progress.max_iters > 0 {
        text += &format!(": iteration {} of {}", progress.iteration, progress.max_iters);
    }
    if let Some(loss) = progress.loss {
        text += &format!(", loss {loss:.3}");
    }
    text
}
