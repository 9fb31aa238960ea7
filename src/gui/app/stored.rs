//! The settings that are stored when the window closes.

use eframe::Storage;

use crate::disk;
use crate::gui::state::{Settings, SettingsForm, Shared};
use crate::protocol::RunSettings;

const SETTINGS: &str = "wgpt";

/// Reads what the last window has stored; what another version wrote may not be readable.
pub fn load(storage: Option<&dyn Storage>) -> Settings {
    let stored = storage.and_then(|storage| eframe::get_value(storage, SETTINGS));
    let mut settings: Settings = stored.unwrap_or_default();
    settings.opened.retain(|model| disk::exists(model));
    settings
}

/// A form that options have replaced. It is stored until the user edits the new one.
pub struct ReplacedForm {
    form: SettingsForm,
    /// The settings of the form in its place.
    by: RunSettings,
}

impl ReplacedForm {
    /// `None` if both forms have the same settings.
    pub fn new(form: SettingsForm, by: &SettingsForm) -> Option<Self> {
        let by = by.settings();
        (form.settings() != by).then_some(Self { form, by })
    }
}

/// Stores the settings. What a chosen time has put into the form is not stored, and would look typed later.
pub fn save(storage: &mut dyn Storage, shared: &mut Shared, replaced: &mut Option<ReplacedForm>) {
    let Shared { settings, start, .. } = shared;
    replaced.take_if(|replaced| replaced.by != settings.form.settings());
    let typed = start.times.without_recipe(&settings.form);
    let own = replaced.as_ref().map_or(typed, |own| own.form.clone());
    let edited = std::mem::replace(&mut settings.form, own);
    eframe::set_value(storage, SETTINGS, settings);
    settings.form = edited;
}
