//! The data and the models in the storage of a page.

use std::io::Cursor;
use std::path::Path;

use super::answer::name_of;
use crate::data::Dataset;
use crate::disk;
use crate::protocol::{Failure, Reply, StorageUsage, StoredData, StoredModel};
use crate::runs::{ModelSource, archive};

/// Packs a model in memory.
pub(super) fn export_zip(checkpoint: &Path) -> Result<Reply, Failure> {
    let source = ModelSource::open(checkpoint)?;
    let mut zip = Cursor::new(Vec::new());
    archive::pack(&source.path, &mut zip)?;
    let iteration = source.state.map(|state| format!("-{}", state.iteration));
    let file = format!("{}{}.zip", name_of(checkpoint), iteration.unwrap_or_default());
    Ok(Reply::Exported { to: file.into(), next: String::new(), zip: zip.into_inner() })
}

/// Unpacks a model into `folder`, which is removed again if the zip has no model.
pub(super) fn import(folder: &Path, zip: Vec<u8>) -> Result<StoredModel, Failure> {
    let unpacked =
        archive::unpack(Cursor::new(zip), folder, folder).and_then(|()| stored_model(folder));
    if unpacked.is_err() {
        // The error of the import is the one to report.
        let _ = disk::remove_dir_all(folder);
    }
    unpacked
}

/// Lists the data and the models.
pub(super) fn stored(root: &Path, usage: StorageUsage) -> Reply {
    let folders = |name: &str| {
        let entries = disk::read_dir(root.join(name)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let data = folders("data").filter_map(|path| {
        let spec = path.display().to_string();
        let name = Dataset::open(&spec, 1).ok()?.name;
        Some(StoredData { spec, name })
    });
    let models = folders("models").filter_map(|path| stored_model(&path).ok());
    Reply::Stored { data: data.collect(), models: models.collect(), usage }
}

fn stored_model(folder: &Path) -> Result<StoredModel, Failure> {
    let source = ModelSource::open(folder)?;
    Ok(StoredModel {
        path: folder.to_path_buf(),
        name: name_of(folder),
        architecture: source.architecture,
        has_tokenizer: source.tokenizer.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Texts;
    use crate::worker::data_requests::{describe, prepare};

    #[test]
    fn prepared_data_is_stored_and_described() {
        let root = tempfile::tempdir().unwrap();
        let text = "The fox saw nine red baskets and went home.\n".repeat(200);
        let texts = Texts::Text { name: "foxes".into(), text };
        let Ok(Reply::Prepared { spec, .. }) =
            prepare(texts, &root.path().join("data"), None, &mut |_| {})
        else {
            panic!("no data")
        };
        let Reply::Stored { data, models, .. } = stored(root.path(), StorageUsage::default())
        else {
            panic!("no list")
        };
        assert_eq!((data[0].spec.as_str(), data[0].name.as_str()), (spec.as_str(), "foxes"));
        assert_eq!((data.len(), models.len()), (1, 0));
        assert!(describe(&spec).is_ok());
    }

    #[test]
    fn an_import_that_fails_leaves_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        // Of a folder without a model.
        let mut zip = Cursor::new(Vec::new());
        archive::pack(folder.path(), &mut zip).unwrap();
        assert!(import(&folder.path().join("model"), zip.into_inner()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(export_zip(folder.path()).is_err());
    }
}
