//! What the page says of itself outside the canvas: its address has the configuration, a hidden
//! element the state, for screen readers and for tests.

use std::time::Duration;

use eframe::egui;
use wasm_bindgen::prelude::JsValue;
use web_sys::{Element, Location};

use super::dialog::document;
use crate::config::{KEYS, Layer, preset_names};
use crate::gui::app::FromOutside;
use crate::gui::control;
use crate::gui::form::Form;
use crate::progress::{Progress, State};

/// The element of the page that says how the run stands.
const ELEMENT: &str = "status";

/// How often attributes change at the most, and words, which are read out, in seconds.
const ATTRIBUTES: f64 = 0.25;
const WORDS: f64 = 5.0;

/// Settings that mean something in this browser only.
const OF_THIS_BROWSER: &[&str] = &["data", "init_from", "out_dir"];

/// Where the form begins, as the address has it.
const PRESET: &str = "preset";

/// What was said last.
#[derive(Default)]
pub(in crate::gui) struct Mirror {
    /// The fragment of the address as it was written, without its `#`.
    fragment: Option<String>,
    said: Option<f64>,
    words: String,
    spoke: f64,
}

impl Mirror {
    /// Writes the form into the address; gives what somebody else wrote there.
    pub fn address(&mut self, form: &Form) -> Option<FromOutside> {
        let now = fragment()?;
        let before = self.fragment.get_or_insert_with(|| now.clone());
        if *before != now {
            *before = now;
            return Some(read_address());
        }
        let wanted = written(form);
        if wanted != now && replace(&wanted).is_ok() {
            // The browser may write a character in another way.
            self.fragment = fragment();
        }
        None
    }

    /// Tells the page how the run stands.
    pub fn say(&mut self, ctx: &egui::Context, progress: &Progress, pace: Duration) {
        let now = ctx.input(|input| input.time);
        let pause = pace.as_secs_f64().max(ATTRIBUTES);
        let next = self.said.map_or(0.0, |said| said + pause - now);
        if next > 0.0 {
            ctx.request_repaint_after_secs(next as f32);
            return;
        }
        self.said = Some(now);
        let element = document().ok().and_then(|page| page.get_element_by_id(ELEMENT));
        let Some(element) = element else { return };
        // An attribute that cannot be set leaves a screen reader without it, nothing else.
        let _ = attributes(&element, progress);
        let (status, _) = control::status(progress);
        let is_news = !self.words.starts_with(&status);
        if is_news || now - self.spoke >= WORDS {
            let words = sentence(&status, progress);
            if words != self.words {
                element.set_text_content(Some(&words));
                (self.words, self.spoke) = (words, now);
            }
        }
    }
}

fn attributes(element: &Element, progress: &Progress) -> Result<(), JsValue> {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let step = progress.last_step.as_ref();
    let error = match &progress.state {
        State::Failed { text, .. } => text.clone(),
        _ => String::new(),
    };
    let run = progress.run.as_ref().map_or(String::new(), |run| run.display().to_string());
    let checkpoint = progress.checkpoints.last().map(|checkpoint| checkpoint.iter.to_string());
    for (name, value) in [
        ("data-state", state(&progress.state).to_string()),
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

fn state(state: &State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Starting => "starting",
        State::Running => "running",
        State::Paused => "paused",
        State::Recovering => "recovering",
        State::Waiting { .. } => "waiting",
        State::Finished(_) => "finished",
        State::Interrupted => "interrupted",
        State::Failed { .. } => "failed",
    }
}

fn sentence(status: &str, progress: &Progress) -> String {
    let mut words = status.to_string();
    if progress.max_iters > 0 {
        words += &format!(": iteration {} of {}", progress.iteration, progress.max_iters);
    }
    if let Some(loss) = progress.loss {
        words += &format!(", loss {loss:.3}");
    }
    words
}

fn location() -> Option<Location> {
    web_sys::window().map(|window| window.location())
}

/// What stands behind the `#`, as it stands there.
fn fragment() -> Option<String> {
    let hash = location()?.hash().ok()?;
    Some(hash.strip_prefix('#').unwrap_or(&hash).to_string())
}

/// The form as `name=value` pairs of what differs from the first preset.
fn written(form: &Form) -> String {
    let pairs = form.flags().into_iter().filter_map(|flag| {
        let (name, text) = flag.trim_start_matches("--").split_once('=')?;
        let is_first = name == PRESET && text == Form::default().preset();
        if is_first || OF_THIS_BROWSER.contains(&name) && !text.starts_with("builtin:") {
            return None;
        }
        Some(format!("{name}={}", String::from(js_sys::encode_uri_component(text))))
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// The page's address: whoever opens it finds the form as it is here.
pub(in crate::gui) fn address() -> String {
    location().and_then(|location| location.href().ok()).unwrap_or_default()
}

/// Shows another fragment without a step in the history.
fn replace(fragment: &str) -> Result<(), JsValue> {
    let Some(window) = web_sys::window() else { return Ok(()) };
    let location = window.location();
    let hash = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
    let address = format!("{}{}{hash}", location.pathname()?, location.search()?);
    window.history()?.replace_state_with_url(&JsValue::NULL, "", Some(&address))
}

/// What the address says, as it would be typed.
pub(super) fn read_address() -> FromOutside {
    let mut given = FromOutside::default();
    for pair in fragment().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        // As forms write spaces.
        let decoded = js_sys::decode_uri_component(&text.replace('+', " ")).map(String::from);
        let (name, text) = (name.replace('-', "_"), decoded.unwrap_or_else(|_| text.into()));
        given.is_whole = true;
        if name == PRESET && preset_names().all(|known| known != text) {
            given.problems.push(format!("the page's address: there is no preset `{text}`"));
        } else if name == PRESET {
            given.preset = Some(text);
        } else if KEYS.iter().any(|key| key.name == name) {
            given.settings.push((name, text));
        } else if let Err(error) = Layer::flags([(name, text)]) {
            given.problems.push(format!("the page's address: {error}"));
        }
    }
    given
}
