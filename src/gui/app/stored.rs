//! The settings and the layout that are stored when the window closes.

use eframe::Storage;

use crate::gui::layout::PanelLayout;
use crate::gui::state::{Settings, SettingsForm};
use crate::protocol::RunSettings;

const SETTINGS: &str = "wgpt";

/// The key of the layout. It is stored separately: if another version cannot read the layout, it keeps the
/// settings.
const LAYOUT: &str = "panels";

/// Reads what the last window has stored; what another version wrote may not be readable.
pub fn load(storage: Option<&dyn Storage>) -> (Settings, PanelLayout) {
    let settings = storage.and_then(|storage| eframe::get_value(storage, SETTINGS));
    let panels = storage.and_then(|storage| eframe::get_value(storage, LAYOUT));
    (settings.unwrap_or_default(), panels.unwrap_or_default())
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

pub fn save(
    storage: &mut dyn Storage,
    settings: &mut Settings,
    panels: &PanelLayout,
    replaced: &mut Option<ReplacedForm>,
) {
    let form = &mut settings.form;
    replaced.take_if(|replaced| replaced.by != form.settings());
    let edited = replaced.as_ref().map(|own| std::mem::replace(form, own.form.clone()));
    eframe::set_value(storage, SETTINGS, settings);
    eframe::set_value(storage, LAYOUT, panels);
    if let Some(edited) = edited {
        settings.form = edited;
    }
}
