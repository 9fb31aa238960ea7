//! Data sets: their sizes, and new ones from text.

use std::path::{Path, PathBuf};

use crate::config::{BUILTIN_STORIES, file_name};
use crate::data::{
    self, DataError, Dataset, PrepareOptions, PrepareProgress, TOKENIZER_FILE, TokenizerChoice,
    TokenizerKind, stories,
};
use crate::disk;
use crate::protocol::{DataInfo, Failure, Reply, Texts};
use crate::runs::ModelSource;

/// Tokens at the beginning of the training split that a preview shows.
const EXCERPT: u64 = 240;

/// Reads the size and the beginning of a data set.
pub(crate) fn describe(spec: &str) -> Result<DataInfo, String> {
    if spec == BUILTIN_STORIES {
        // Known without generating all of them.
        return Ok(DataInfo {
            vocab_size: stories::VOCABULARY,
            train_tokens: stories::TRAIN_TOKENS,
            val_tokens: stories::VAL_TOKENS,
            tokenizer: Some(TokenizerKind::Char),
            excerpt: stories::excerpt(EXCERPT as usize),
            markov_bits: None,
        });
    }
    match Dataset::open(spec, 1) {
        Ok(data) => Ok(DataInfo {
            vocab_size: data.vocab_size,
            train_tokens: data.train.len(),
            val_tokens: data.val.len(),
            tokenizer: data.tokenizer.as_ref().map(|tokenizer| tokenizer.base().kind()),
            excerpt: excerpt(&data).map_err(|error| advised(&error))?,
            markov_bits: None,
        }),
        // The hint of the error is a command, which a browser does not have.
        Err(error) if error.is_missing && cfg!(target_arch = "wasm32") => {
            Err(format!("this browser has no data called {spec}: choose the text again"))
        }
        Err(error) => Err(advised(&error)),
    }
}

/// Reads the same, and how well a Markov model predicts the data, which takes longer.
pub(super) fn describe_fully(spec: &str) -> Result<DataInfo, String> {
    let info = describe(spec)?;
    if spec == BUILTIN_STORIES {
        return Ok(info);
    }
    let data = Dataset::open(spec, 1).map_err(|error| advised(&error))?;
    let markov_bits = data::markov_bits(&data).map_err(|error| advised(&error))?;
    Ok(DataInfo { markov_bits, ..info })
}

/// Returns the text of an error with its hint.
fn advised(error: &DataError) -> String {
    format!("{error}; {}", error.hint())
}

/// Decodes the beginning of the training split.
fn excerpt(data: &Dataset) -> Result<String, DataError> {
    let Some(tokenizer) = &data.tokenizer else { return Ok(String::new()) };
    let tokens = data.train.window(0, data.train.len().min(EXCERPT) as usize)?;
    // The last character may end after the last token.
    Ok(tokenizer.decode(&tokens).trim_end_matches('\u{fffd}').to_string())
}

/// Tokenizes texts into a new folder below `folder`, as `model` does if there is one. Returns the last reply.
pub(super) fn prepare(
    texts: Texts,
    folder: &Path,
    model: Option<&Path>,
    reply: &mut dyn FnMut(Reply),
) -> Result<Reply, Failure> {
    let tokenizer = model.map_or(Ok(TokenizerChoice::Auto), tokenizer_of)?;
    let (inputs, written) = match texts {
        Texts::Files(files) => (files, None),
        Texts::Text { name, text } => {
            let file = free_path(folder, &name, ".txt");
            disk::create_dir_all(folder).map_err(Failure::io("create", folder))?;
            disk::write(&file, text).map_err(Failure::io("write", &file))?;
            (vec![file.clone()], Some(file))
        }
    };
    let stem = inputs.first().and_then(|first| first.file_stem()).unwrap_or_default();
    let prepared = prepare_files(&inputs, &stem.to_string_lossy(), folder, tokenizer, reply);
    if let Some(file) = written {
        // If that fails, it only takes space.
        let _ = disk::remove_file(&file);
    }
    Ok(prepared?)
}

/// Returns the tokenizer of a run, a checkpoint or a model.
fn tokenizer_of(model: &Path) -> Result<TokenizerChoice, Failure> {
    let source = ModelSource::open(model)?;
    if disk::exists(&source.path.join(TOKENIZER_FILE)) {
        return Ok(TokenizerChoice::File(source.path.clone()));
    }
    match source.tokenizer.as_ref().map(|tokenizer| tokenizer.base().kind()) {
        Some(TokenizerKind::Gpt2) => Ok(TokenizerChoice::Gpt2),
        Some(TokenizerKind::Byte) => Ok(TokenizerChoice::Byte),
        _ => Err(source.no_tokenizer()),
    }
}

/// Tokenizes files into a new folder below `folder`, called `name` if that is free.
pub(super) fn prepare_files(
    inputs: &[PathBuf],
    name: &str,
    folder: &Path,
    tokenizer: TokenizerChoice,
    reply: &mut dyn FnMut(Reply),
) -> Result<Reply, DataError> {
    let out = free_path(folder, name, "");
    let mut progress = |at: PrepareProgress| {
        reply(Reply::Preparing { name: name.into(), share: at.share() });
    };
    let options = PrepareOptions { tokenizer, ..PrepareOptions::default() };
    let warnings = data::prepare(inputs, &out, &options, &mut progress)?.warnings;
    Ok(Reply::Prepared { spec: out.display().to_string(), warnings })
}

/// Returns a path below `folder` that does not exist yet: `NAME`, `NAME-2` and so on.
pub(super) fn free_path(folder: &Path, name: &str, extension: &str) -> PathBuf {
    let name = file_name(name, "text");
    let numbered = |number: u32| match number {
        1 => folder.join(format!("{name}{extension}")),
        _ => folder.join(format!("{name}-{number}{extension}")),
    };
    let free = (1..u32::MAX).map(numbered).find(|path| !disk::exists(path));
    free.unwrap_or_else(|| numbered(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pasted_text_becomes_a_data_set_of_its_own_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("data");
        let text = "The fox saw nine red baskets and went home.\n".repeat(200);
        let mut shares = Vec::new();
        for expected in ["a-b", "a-b-2"] {
            let texts = Texts::Text { name: "a b".into(), text: text.clone() };
            let spec = prepare(texts, &folder, None, &mut |reply| match reply {
                Reply::Preparing { share, .. } => shares.push(share),
                reply => panic!("{reply:?}"),
            });
            let Reply::Prepared { spec, warnings } = spec.unwrap() else { panic!("no data") };
            assert_eq!(warnings, Vec::<String>::new());
            assert_eq!(spec, folder.join(expected).display().to_string());
            let info = describe(&spec).unwrap();
            assert!(info.vocab_size < 64 && info.train_tokens > info.val_tokens, "{info:?}");
            assert_eq!(info.tokenizer, Some(TokenizerKind::Char));
            assert!(info.excerpt.starts_with("The fox saw nine red baskets"), "{info:?}");
        }
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)) && shares.contains(&1.0));
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn the_size_of_the_stories_is_known_without_generating_them() {
        let data = Dataset::open(BUILTIN_STORIES, 1).unwrap();
        let info = describe(BUILTIN_STORIES).unwrap();
        assert_eq!((info.vocab_size, info.train_tokens), (data.vocab_size, data.train.len()));
        assert_eq!(info.val_tokens, data.val.len());
        assert_eq!(info.excerpt, excerpt(&data).unwrap());
        assert!(describe("does/not/exist").is_err());
    }
}
