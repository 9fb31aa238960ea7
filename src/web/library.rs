//! What is stored, and what is done with it at once.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use super::messages::{Ask, DATA, DataInfo, MODELS, ModelInfo, RUNS, Reply, STORIES, Storage};
use crate::data::{
    self, Dataset, PrepareOptions, PrepareProgress, Tokenizer, TokenizerKind, stories,
};
use crate::disk;
use crate::run_index::{self, Tail};
use crate::train::{ModelSource, TrainError, archive, record};

/// Where a text lies while it is cut into tokens.
const TEXTS: &str = "texts";

/// Why something did not work.
pub(super) struct Problem {
    pub text: String,
    pub hint: String,
}

impl<E: Into<TrainError>> From<E> for Problem {
    fn from(error: E) -> Self {
        let error = error.into();
        Self { text: error.to_string(), hint: error.hint().to_string() }
    }
}

fn system(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> TrainError {
    let path = path.to_path_buf();
    move |source| TrainError::Io { action, path, source }
}

/// Answers what needs no device.
///
/// # Errors
/// If it does not work.
pub(super) fn answer(
    ask: Ask,
    bytes: Vec<u8>,
    say: &mut dyn FnMut(Reply, Option<&[u8]>),
) -> Result<(), Problem> {
    match ask {
        Ask::Prepare { name, text, tokenizer } => {
            let folder = Path::new(DATA).join(&name);
            prepare(&name, text, tokenizer, &folder, say)?;
            let data = data_info(&folder)?;
            say(Reply::Prepared { data }, None);
        }
        Ask::Show { run } => {
            let path = Path::new(&run);
            let events = Tail::open(path, true).read();
            let config = run_index::config(path).map(Box::new);
            say(Reply::Run { run, config, events }, None);
        }
        Ask::Remove { path } => {
            let path = Path::new(&path);
            disk::remove_dir_all(path).map_err(system("remove", path))?;
        }
        Ask::Export { path } => {
            let source = ModelSource::open(Path::new(&path))?;
            let mut zip = Cursor::new(Vec::new());
            archive::pack(&source.path, &mut zip)?;
            let name = file_name(Path::new(&path));
            let iteration = source.state.map(|state| format!("-{}", state.iteration));
            let file = format!("{name}{}.zip", iteration.unwrap_or_default());
            say(Reply::Exported { path, file }, Some(zip.get_ref()));
        }
        Ask::Import { name } => {
            let folder = Path::new(MODELS).join(name);
            let kept =
                archive::unpack(Cursor::new(bytes), &folder).and_then(|()| model_info(&folder));
            match kept {
                Ok(model) => say(Reply::Imported { model }, None),
                Err(error) => {
                    let _ = disk::remove_dir_all(&folder);
                    return Err(error.into());
                }
            }
        }
        Ask::Record { run, event } => record(Path::new(&run), &event)?,
        Ask::List | Ask::Tell { .. } | Ask::Start { .. } | Ask::Sample { .. } => {}
    }
    Ok(())
}

/// Everything that is stored.
pub(super) fn stored(storage: Storage) -> Reply {
    let data = folders(DATA).into_iter().filter_map(|path| data_info(&path).ok());
    Reply::Stored {
        runs: run_index::runs(Path::new(RUNS)),
        data: std::iter::once(built_in()).chain(data).collect(),
        models: folders(MODELS).into_iter().filter_map(|path| model_info(&path).ok()).collect(),
        storage,
    }
}

fn folders(of: &str) -> Vec<PathBuf> {
    let entries = disk::read_dir(of).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn prepare(
    name: &str,
    text: String,
    tokenizer: TokenizerKind,
    folder: &Path,
    say: &mut dyn FnMut(Reply, Option<&[u8]>),
) -> Result<(), TrainError> {
    let file = Path::new(TEXTS).join(format!("{name}.txt"));
    disk::write(&file, text).map_err(system("write", &file))?;
    let options = PrepareOptions { tokenizer, force: true, ..PrepareOptions::default() };
    let mut progress = |progress: PrepareProgress| {
        let share = progress.bytes_read as f64 / progress.bytes_total.max(1) as f64;
        say(Reply::Preparing { share }, None);
    };
    let prepared = data::prepare(std::slice::from_ref(&file), folder, &options, &mut progress);
    let _ = disk::remove_file(&file);
    prepared?;
    Ok(())
}

fn data_info(folder: &Path) -> Result<DataInfo, TrainError> {
    let spec = folder.display().to_string();
    let dataset = Dataset::open(&spec, 1)?;
    let tokenizer = match dataset.tokenizer {
        Some(Tokenizer::Char(_)) => TokenizerKind::Char,
        Some(Tokenizer::Byte) => TokenizerKind::Byte,
        Some(Tokenizer::Gpt2) | None => TokenizerKind::Gpt2,
    };
    Ok(DataInfo {
        spec,
        name: dataset.name,
        tokenizer,
        vocab_size: dataset.vocab_size,
        train_tokens: dataset.train.len(),
        val_tokens: dataset.val.len(),
    })
}

/// What [`Dataset::open`] makes of the built-in corpus, without making it.
fn built_in() -> DataInfo {
    DataInfo {
        spec: STORIES.into(),
        name: "stories".into(),
        tokenizer: TokenizerKind::Char,
        vocab_size: stories::VOCABULARY,
        train_tokens: stories::TRAIN_TOKENS,
        val_tokens: stories::VAL_TOKENS,
    }
}

fn model_info(folder: &Path) -> Result<ModelInfo, TrainError> {
    let source = ModelSource::open(folder)?;
    Ok(ModelInfo {
        path: folder.display().to_string(),
        name: file_name(folder),
        architecture: source.architecture,
        has_tokenizer: source.tokenizer.is_some(),
    })
}
