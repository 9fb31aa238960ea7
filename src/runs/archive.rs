//! A model folder as one zip file.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::checkpoint::STATE_FILE;
use crate::data::TOKENIZER_FILES;
use crate::disk;
use crate::model::{ARCHITECTURE_FILE, INDEX_FILE, WEIGHTS_FILE, has_weights, read_architecture};
use crate::protocol::Failure;

/// The largest file of a plain zip; larger ones need zip64.
const ZIP32_BYTES: u64 = u32::MAX as u64;

const MOST_FILES: usize = 64;

/// The advice about a zip that is none of a model.
const WHOLE_FOLDER: &str =
    "zip the folder of one model: config.json, model.safetensors and the files of its tokenizer";

/// The most bytes of all files but the weights. Qwen3's tokenizer.json has 11 MB.
const MOST_TEXT: u64 = 64 << 20;

/// The most bytes of weights and states per parameter: a weight and AdamW's two moments in f32, with room for an
/// embedding that is stored twice.
const BYTES_PER_PARAMETER: u64 = 16;

/// The most bytes of tensors that are not parameters, like the masks in old files of GPT-2.
const MOST_OTHER_TENSORS: u64 = 256 << 20;

const WEIGHTS_ENDING: &str = ".safetensors";

/// Writes the files of a folder to a zip, without its subfolders.
pub fn pack(folder: &Path, to: impl Write + Seek) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let mut zip = ZipWriter::new(to);
        for entry in disk::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if disk::is_dir(&path) {
                continue;
            }
            let mut file = disk::open_regular(&path)?;
            let bytes = file.metadata()?.len();
            // Weights do not compress.
            let method = if path.extension().is_some_and(|ending| ending == "safetensors") {
                CompressionMethod::Stored
            } else {
                CompressionMethod::Deflated
            };
            let options = SimpleFileOptions::default()
                .compression_method(method)
                .large_file(bytes >= ZIP32_BYTES);
            zip.start_file(entry.file_name().to_string_lossy(), options)?;
            io::copy(&mut file, &mut zip)?;
        }
        zip.finish()?;
        Ok(())
    };
    write().map_err(Failure::io("pack", folder))
}

/// Extracts the files that wgpt reads from the zip of a model folder into `folder`. They may be in a folder of
/// the zip. `name` is the zip in errors.
///
/// # Errors
/// If the zip is damaged or has no model, or if its files are larger than the model can be. A small zip can
/// expand to a very large file.
pub fn unpack(from: impl Read + Seek, name: &Path, folder: &Path) -> Result<(), Failure> {
    let wrong = |reason: &dyn Display| Failure::checkpoint(name, reason);
    let lacks =
        |file: &str| Failure::bad_data(format!("{}: no {file}", name.display()), WHOLE_FOLDER);
    let mut zip = ZipArchive::new(from).map_err(|error| wrong(&error))?;
    if zip.len() > MOST_FILES {
        let text = format!("{}: too many files for a model folder", name.display());
        return Err(Failure::bad_data(text, WHOLE_FOLDER));
    }
    disk::create_dir_all(folder).map_err(Failure::io("create", folder))?;
    let is_text = |file: &str| {
        let is_of_model =
            [ARCHITECTURE_FILE, INDEX_FILE, STATE_FILE, "generation_config.json"].contains(&file);
        is_of_model || TOKENIZER_FILES.contains(&file)
    };
    extract(&mut zip, is_text, MOST_TEXT, folder).map_err(|error| wrong(&error))?;
    if !disk::exists(&folder.join(ARCHITECTURE_FILE)) {
        return Err(lacks(ARCHITECTURE_FILE));
    }
    let parameters = read_architecture(folder)?.parameters() as u64;
    let most = parameters.saturating_mul(BYTES_PER_PARAMETER).saturating_add(MOST_OTHER_TENSORS);
    extract(&mut zip, |file| file.ends_with(WEIGHTS_ENDING), most, folder)
        .map_err(|error| wrong(&error))?;
    if has_weights(folder) { Ok(()) } else { Err(lacks(WEIGHTS_FILE)) }
}

/// Extracts the files that `takes` selects, at most `most` bytes in total.
fn extract<R: Read + Seek>(
    zip: &mut ZipArchive<R>,
    takes: impl Fn(&str) -> bool,
    most: u64,
    folder: &Path,
) -> io::Result<()> {
    let mut left = most;
    for index in 0..zip.len() {
        let mut file = zip.by_index(index)?;
        // Folders in the name are dropped: a zip must not write outside `folder`.
        let name = file.enclosed_name().and_then(|path| Some(path.file_name()?.to_owned()));
        let name = name.and_then(|name| name.into_string().ok());
        let Some(name) = name.filter(|name| file.is_file() && takes(name)) else { continue };
        // The crate refuses a file that is larger than its size in the zip.
        left = left.checked_sub(file.size()).ok_or_else(|| {
            let text = format!("{name} is larger than it can be for this model");
            io::Error::new(ErrorKind::InvalidData, text)
        })?;
        // A file is whole when it has its name.
        let part = folder.join(format!("{name}.part"));
        let mut to = disk::create_own(&part)?;
        io::copy(&mut file, &mut to)?;
        to.sync_all()?;
        disk::publish(&part, &folder.join(&name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::data::Tokenizer;
    use crate::disk::recorder::{Call, record};
    use crate::protocol::Exit;

    /// A model of 6,128 parameters.
    const CONFIG: &str =
        r#"{"n_layer":1,"n_head":1,"n_embd":16,"n_positions":16,"vocab_size":160}"#;

    fn zip_of(files: &[(&str, &[u8])]) -> Cursor<Vec<u8>> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in files {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap()
    }

    fn unpack_to(zip: Cursor<Vec<u8>>, folder: &Path) -> Result<(), String> {
        unpack(zip, Path::new("a.zip"), folder).map_err(|error| {
            assert_eq!(error.exit, Exit::BadData, "{error}");
            error.to_string()
        })
    }

    #[test]
    fn a_folder_is_unpacked_as_it_was_packed() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir_all(from.join("below")).unwrap();
        std::fs::write(from.join("config.json"), CONFIG).unwrap();
        std::fs::write(from.join("model.safetensors"), vec![7; 100_000]).unwrap();
        std::fs::write(from.join("state.json"), "{}".repeat(1000)).unwrap();
        // A checkpoint knows the hashes of its tokenizer's files.
        for (file, text) in Tokenizer::GPT2.hugging_face_files() {
            std::fs::write(from.join(file), text).unwrap();
        }
        let mut zip = Cursor::new(Vec::new());
        pack(&from, &mut zip).unwrap();
        let (unpacked, calls) = record(|| unpack_to(zip, &to));
        unpacked.unwrap();
        let (part, whole) = (to.join("model.safetensors.part"), to.join("model.safetensors"));
        let named = [Call::Rename(part, whole), Call::SyncFolder(to.clone())];
        assert!(calls.windows(2).any(|pair| pair == named), "{calls:?}");
        for name in ["config.json", "model.safetensors", "state.json"] {
            let [before, after] =
                [&from, &to].map(|folder| std::fs::read(folder.join(name)).unwrap());
            assert!(before == after, "{name}");
        }
        for (file, _) in Tokenizer::GPT2.hugging_face_files() {
            assert!(to.join(file).exists(), "{file}");
        }
        assert!(unpack_to(Cursor::new(b"not a zip".to_vec()), &to).is_err());
    }

    #[test]
    fn a_zip_writes_known_files_into_its_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("in");
        let zip = zip_of(&[
            ("../tokenizer.json", b"{}"),
            ("gpt2/config.json", CONFIG.as_bytes()),
            ("gpt2/model.safetensors", b"x"),
            ("gpt2/run.sh", b"x"),
            ("__MACOSX/gpt2/._config.json", b"x"),
        ]);
        unpack_to(zip, &to).unwrap();
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let expected = vec!["config.json".into(), "model.safetensors".into()];
        assert_eq!((names(&to), names(folder.path())), (expected, vec!["in".into()]));
        assert_eq!(unpack_to(zip_of(&[]), &to.join("b")).unwrap_err(), "a.zip: no config.json");
    }

    #[test]
    fn a_zip_of_too_many_files_is_refused() {
        for (files, is_unpacked) in [(MOST_FILES - 2, true), (MOST_FILES - 1, false)] {
            let folder = tempfile::tempdir().unwrap();
            let names: Vec<String> = (0..files).map(|file| format!("{file}.txt")).collect();
            let mut files: Vec<(&str, &[u8])> =
                vec![("config.json", CONFIG.as_bytes()), ("model.safetensors", b"x")];
            files.extend(names.iter().map(|name| (name.as_str(), &b""[..])));
            let to = folder.path().join("in");
            let unpacked = unpack_to(zip_of(&files), &to);
            assert_eq!((unpacked.is_ok(), to.exists()), (is_unpacked, is_unpacked), "{unpacked:?}");
        }
    }

    /// A file of zeros takes a thousandth of its size in a zip.
    #[test]
    fn a_zip_that_is_larger_than_its_model_is_refused() {
        let most = 16 * 6_128 + MOST_OTHER_TENSORS as usize;
        let zeros = vec![0; most + 1];
        let text = &zeros[..=MOST_TEXT as usize];
        let config = ("config.json", CONFIG.as_bytes());
        // A wrong size in the header. The directory at the end has a copy of the true one.
        let mut understated = zip_of(&[config, ("model.safetensors", &zeros)]).into_inner();
        let size = (most as u32 + 1).to_le_bytes();
        let places: Vec<usize> =
            (0..understated.len() - 4).filter(|at| understated[*at..at + 4] == size).collect();
        for at in places {
            understated[at..at + 4].copy_from_slice(&7_u32.to_le_bytes());
        }
        for (zip, refused) in [
            (zip_of(&[config, ("model.safetensors", &zeros[..most])]), None),
            (zip_of(&[config, ("model.safetensors", &zeros)]), Some("model.safetensors")),
            (
                zip_of(&[config, ("a.safetensors", &zeros[..most]), ("b.safetensors", &[0])]),
                Some("b."),
            ),
            (zip_of(&[config, ("tokenizer.json", text)]), Some("tokenizer.json")),
            (Cursor::new(understated), Some("declared uncompressed size")),
        ] {
            assert!(zip.get_ref().len() < 1 << 20, "{refused:?}");
            let folder = tempfile::tempdir().unwrap();
            match (unpack_to(zip, folder.path()), refused) {
                (Ok(()), None) => {}
                (Err(error), Some(name)) => assert!(error.contains(name), "{error}"),
                (other, _) => panic!("{other:?}, {refused:?}"),
            }
        }
    }
}
