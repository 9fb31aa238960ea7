//! The page's URL: its fragment has the settings, so a link opens the same form.

use wasm_bindgen::prelude::JsValue;
use web_sys::Location;

use crate::config::{KEYS, Layer, preset_names};
use crate::data::is_builtin;
use crate::gui::intent::Overrides;
use crate::gui::state::SettingsForm;

const OF_THIS_BROWSER: &[&str] = &["data", "init_from", "out_dir"];

const PRESET: &str = "preset";

/// Writes the form into the URL. Returns the settings if the user has changed them there: then its fragment
/// is not the `known` one.
pub(super) fn update(known: &mut Option<String>, form: &SettingsForm) -> Option<Overrides> {
    let now = fragment()?;
    let before = known.get_or_insert_with(|| now.clone());
    if *before != now {
        *before = now;
        return Some(overrides());
    }
    let wanted = fragment_of(form);
    if wanted != now && replace(&wanted).is_ok() {
        // The browser may write a character in another way.
        *known = fragment();
    }
    None
}

fn location() -> Option<Location> {
    web_sys::window().map(|window| window.location())
}

/// Returns the part after the `#`, still encoded.
fn fragment() -> Option<String> {
    let hash = location()?.hash().ok()?;
    Some(hash.strip_prefix('#').unwrap_or(&hash).to_string())
}

/// The form as `name=value` pairs of what differs from the first preset.
fn fragment_of(form: &SettingsForm) -> String {
    let preset = (PRESET, form.preset());
    let preset = Some(preset).filter(|(_, preset)| *preset != SettingsForm::default().preset());
    let means_something =
        |(name, text): &(&str, &str)| !OF_THIS_BROWSER.contains(name) || is_builtin(text);
    let pairs = preset.into_iter().chain(form.changes().filter(means_something));
    let pairs = pairs
        .map(|(name, text)| format!("{name}={}", String::from(js_sys::encode_uri_component(text))));
    pairs.collect::<Vec<_>>().join("&")
}

pub(super) fn href() -> Option<String> {
    location()?.href().ok()
}

/// Replaces the fragment without adding to the history.
fn replace(fragment: &str) -> Result<(), JsValue> {
    let Some(window) = web_sys::window() else { return Ok(()) };
    let location = window.location();
    let hash = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
    let url = format!("{}{}{hash}", location.pathname()?, location.search()?);
    window.history()?.replace_state_with_url(&JsValue::NULL, "", Some(&url))
}

pub(super) fn overrides() -> Overrides {
    let mut found = Overrides::default();
    for pair in fragment().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
        // HTML forms write spaces as `+`.
        let decoded = js_sys::decode_uri_component(&text.replace('+', " ")).map(String::from);
        let name = name.replace('-', "_");
        let text = decoded.unwrap_or_else(|_| text.into());
        found.replace_all = true;
        if name == PRESET && preset_names().all(|known| known != text) {
            found.problems.push(format!("the page's URL: `{text}` is not a preset"));
        } else if name == PRESET {
            found.preset = Some(text);
        } else if KEYS.iter().any(|key| key.name == name) {
            found.settings.push((name, text));
        } else if let Err(error) = Layer::flags([(name, text)]) {
            found.problems.push(format!("the page's URL: {error}; {}", error.hint()));
        }
    }
    found
}
