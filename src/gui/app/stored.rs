//! Data and models in the browser's storage, as panels show them. Empty on the desktop.

use std::path::PathBuf;

use crate::model::Architecture;
use crate::protocol::{StorageUsage, StoredData, StoredModel};
use crate::text::bytes;

/// The contents of the browser's storage besides runs.
#[derive(Default)]
pub(super) struct Stored {
    /// Data sets: as the form takes them, and their names.
    pub data: Vec<(String, String)>,
    /// Models: their folders, and what they are.
    pub models: Vec<(PathBuf, String)>,
    /// The space in use.
    pub usage: String,
}

impl Stored {
    pub fn new(data: Vec<StoredData>, models: Vec<StoredModel>, usage: StorageUsage) -> Self {
        Self {
            data: data.into_iter().map(|data| (data.spec, data.name)).collect(),
            models: models.into_iter().map(described).collect(),
            usage: in_words(usage),
        }
    }
}

fn described(model: StoredModel) -> (PathBuf, String) {
    let Architecture { n_layer, n_embd, .. } = model.architecture;
    let tokenizer = if model.has_tokenizer { "" } else { ", tokenizer unknown" };
    let text = format!("{}: {n_layer} blocks of {n_embd}{tokenizer}", model.name);
    (model.path, text)
}

fn in_words(usage: StorageUsage) -> String {
    let StorageUsage { quota, used, persisted } = usage;
    let share = format!("{} of {}", bytes(used), bytes(quota));
    match (quota, persisted) {
        (0, _) => "Not stored: runs are lost when this page closes".into(),
        (_, true) => format!("Stored in this browser: {share}"),
        (_, false) => format!("Stored in this browser: {share}, until it needs the space"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_says_whether_runs_stay() {
        let usage = |quota, persisted| in_words(StorageUsage { quota, used: 1 << 20, persisted });
        assert!(usage(0, false).starts_with("Not stored"));
        assert_eq!(usage(1 << 30, true), "Stored in this browser: 1.0 MiB of 1.00 GiB");
        assert!(usage(1 << 30, false).ends_with("until it needs the space"));
    }
}
