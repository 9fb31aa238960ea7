//! Data sets: a folder of tokens or a built-in corpus.

use std::io;
use std::path::{Path, PathBuf};

use pytorch_reader::{PickleValue, PytorchReader};

use super::writer::{META, META_TEMPORARY, TRAIN, VAL};
use super::{
    CharVocab, ChatTemplate, DataError, Meta, Split, TextTokenizer, TokenDtype, Tokenizer, chats,
    stories,
};
use crate::config::{BUILTIN, BUILTIN_CHATS, BUILTIN_STORIES};
use crate::disk;

/// nanoGPT's description of a character data set.
pub(super) const NANOGPT_META: &str = "meta.pkl";
const NANOGPT_META_MAX: u64 = 64 << 20;

/// Returns true for the name of a built-in corpus, which is not a path.
pub fn is_builtin(spec: &str) -> bool {
    spec.starts_with(BUILTIN)
}

#[derive(Debug)]
pub struct Dataset {
    pub train: Split,
    pub val: Split,
    /// Size of the vocabulary; every token is below it.
    pub vocab_size: u32,
    pub tokenizer: Option<Tokenizer>,
    /// For display: the name of the folder or of the built-in corpus.
    pub name: String,
    /// A hash that changes with the data, so that a resumed run can detect it. Covers the hashes in
    /// `meta.json`, the lengths of the files, and 32 Ki tokens from either end.
    pub fingerprint: String,
    /// The lowest mean loss that any model can reach, in nats per token, if known.
    pub entropy_floor: Option<f64>,
}

impl Dataset {
    /// Opens `spec`, a folder, `builtin:stories` or `builtin:chats`, for windows of `block_size` tokens
    /// and a target after the last.
    ///
    /// A folder contains `train.bin` and `val.bin`, or llm.c's shards (`*_train_*.bin`,
    /// `*_val_*.bin`). `meta.json` or nanoGPT's `meta.pkl` describes the tokens; without either
    /// they are GPT-2's.
    pub fn open(spec: &str, block_size: u64) -> Result<Self, DataError> {
        let dataset = match spec {
            BUILTIN_STORIES => Self::stories()?,
            BUILTIN_CHATS => Self::chats()?,
            _ if is_builtin(spec) => {
                return Err(DataError::usage(
                    format!("unknown built-in corpus {:?}", &spec[BUILTIN.len()..]),
                    format!("choose {BUILTIN_STORIES} or {BUILTIN_CHATS}"),
                ));
            }
            _ => Self::folder(Path::new(spec))?,
        };
        for (split, tokens) in [("train", dataset.train.len()), ("val", dataset.val.len())] {
            let needed = block_size.saturating_add(1);
            // Conversations are padded.
            if tokens < needed && !dataset.train.has_conversations() {
                let name = dataset.name;
                return Err(DataError::bad(
                    format!(
                        "{split} of {name} has {tokens} tokens, but block_size {block_size} needs \
                         {needed}"
                    ),
                    "use more text or a smaller block_size",
                ));
            }
        }
        Ok(dataset)
    }

    /// Returns true if a model with `vocab_size` tokens lacks only tokens of conversations.
    pub fn adds_to(&self, vocab_size: u32) -> bool {
        let template = self.tokenizer.as_ref().and_then(Tokenizer::chat);
        let has_text = |template: &ChatTemplate| {
            Tokenizer::from(template.base.clone()).check_rows(vocab_size as usize).is_ok()
        };
        template.is_some_and(|template| {
            template.added().next().is_some()
                && vocab_size < template.vocab_size
                && has_text(template)
        })
    }

    /// Takes the data for a model with so many rows of embeddings, if that has one for each token that its text
    /// can become. Else, or if the data has a token without a row, it is an error. Reads all data of a larger
    /// vocabulary once.
    pub fn fit(&mut self, rows: usize) -> Result<(), DataError> {
        if self.vocab_size as usize <= rows {
            return Ok(());
        }
        self.tokenizer.as_ref().map_or(Ok(()), |tokenizer| tokenizer.check_rows(rows))?;
        self.vocab_size = rows as u32;
        self.train.fit(self.vocab_size)?;
        self.val.fit(self.vocab_size)
    }

    /// Returns the error for data that exists at none of the `tried` paths.
    pub fn not_found(spec: &str, tried: &[PathBuf]) -> DataError {
        let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
        let reason = format!("no such folder, looked for {}", tried.join(" and "));
        let hint = "give the folder that it is in now with --data".to_owned();
        DataError::missing(Path::new(spec), &reason, hint)
    }

    fn stories() -> Result<Self, DataError> {
        let tokenizer: Tokenizer =
            TextTokenizer::Char(CharVocab::new(stories::ALPHABET.chars())?).into();
        let train = stories::generate(stories::TRAIN_SEED, stories::TRAIN_CHARACTERS);
        let val = stories::generate(stories::VAL_SEED, stories::VAL_CHARACTERS);
        let splits = [tokenizer.encode(&train)?, tokenizer.encode(&val)?];
        let dataset = Self::builtin(BUILTIN_STORIES, tokenizer, splits)?;
        Ok(Self { entropy_floor: Some(stories::ENTROPY), ..dataset })
    }

    fn chats() -> Result<Self, DataError> {
        let template = chats::template()?;
        let ids = |seed, count| {
            let conversations = chats::generate(seed, count);
            let ids = conversations.map(|messages| template.conversation(&messages));
            ids.collect::<Result<Vec<_>, DataError>>()
        };
        let train = ids(chats::TRAIN_SEED, chats::TRAIN_CONVERSATIONS)?.concat();
        let val = ids(chats::VAL_SEED, chats::VAL_CONVERSATIONS)?.concat();
        Self::builtin(BUILTIN_CHATS, template.into(), [train, val])
    }

    fn builtin(name: &str, tokenizer: Tokenizer, ids: [Vec<u32>; 2]) -> Result<Self, DataError> {
        let [train, val] = ids;
        let vocab_size = tokenizer.vocab_size();
        let split = |name, ids| {
            Split::from_memory(ids, vocab_size).with_conversations(name, tokenizer.chat())
        };
        let train = split(TRAIN, train)?;
        let val = split(VAL, val)?;
        Ok(Self {
            fingerprint: fingerprint(None, &train, &val)?,
            train,
            val,
            vocab_size,
            name: name.to_owned(),
            entropy_floor: None,
            tokenizer: Some(tokenizer),
        })
    }

    fn folder(folder: &Path) -> Result<Self, DataError> {
        let names = list(folder)?;
        let has = |name: &str| names.iter().any(|found| found == name);
        if has(META_TEMPORARY) {
            let command = format!("run `wgpt prepare ... -o {} --force` again", folder.display());
            let problem = "the preparation of this folder was interrupted";
            return Err(DataError::at(folder, problem, command));
        }
        let meta = has(META).then(|| Meta::load(&folder.join(META))).transpose()?;
        let (tokenizer, vocab_size) = match &meta {
            Some(meta) => (Some(meta.tokenizer.clone()), meta.vocab_size),
            None if has(NANOGPT_META) => nanogpt_vocab(&folder.join(NANOGPT_META))?,
            None => (Some(Tokenizer::GPT2), Tokenizer::GPT2.vocab_size()),
        };
        let chats = meta.as_ref().filter(|meta| meta.conversations.is_some());
        let template = chats.and_then(|meta| meta.tokenizer.chat());
        let index = names.iter().find(|name| name.ends_with(".idx"));
        if let Some(index) = index.filter(|_| meta.is_none()) {
            let problem = "this is an index of Megatron, whose data wgpt does not read";
            let hint = "write the tokens as nanoGPT does, or prepare the text with `wgpt prepare`";
            return Err(DataError::at(&folder.join(index), problem, hint));
        }
        // Files without a description may have more tokens than 16 bits have values.
        let is_wide = TokenDtype::for_vocab(vocab_size) == TokenDtype::U32;
        let dtype = meta.as_ref().map(|meta| meta.dtype).or(is_wide.then_some(TokenDtype::U32));
        let open = |file, expected: Option<u64>| {
            let split = open_split(folder, &names, file, vocab_size, dtype)?;
            match expected.filter(|tokens| *tokens != split.len()) {
                None => split.with_conversations(file, template),
                Some(expected) => {
                    Err(DataError::token_count(&folder.join(file), META, expected, split.len()))
                }
            }
        };
        let train = open(TRAIN, meta.as_ref().map(|meta| meta.train_tokens))?;
        let val = open(VAL, meta.as_ref().map(|meta| meta.val_tokens))?;
        Ok(Self {
            fingerprint: fingerprint(meta.as_ref(), &train, &val)?,
            train,
            val,
            vocab_size,
            tokenizer,
            name: display_name(folder),
            entropy_floor: None,
        })
    }
}

/// Returns true if a folder has training data, whatever it is called.
pub fn has_tokens(folder: &Path) -> bool {
    disk::first_in(folder, [TRAIN, VAL]).is_some()
}

fn list(folder: &Path) -> Result<Vec<String>, DataError> {
    let entries = match disk::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(missing(folder, "the folder does not exist", &[]));
        }
        // Each system has another error for this.
        Err(_) if disk::is_file(folder) => {
            let out = folder.with_extension("");
            let [file, out] = [folder, &out].map(Path::display);
            let hint = if folder.extension().is_some_and(|ending| ending == "bin") {
                "give the folder that the file is in".to_owned()
            } else {
                format!("prepare it with `wgpt prepare {file} -o {out}`, and give --data={out}")
            };
            return Err(DataError::missing(folder, "it is a file, not a data folder", hint));
        }
        Err(error) => return Err(DataError::io("read", folder)(error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<_> =
        names.collect::<io::Result<_>>().map_err(DataError::io("read", folder))?;
    names.sort();
    Ok(names)
}

/// Opens `train.bin`, or else all shards with `train` in their names; likewise for `val.bin`.
fn open_split(
    folder: &Path,
    names: &[String],
    file: &'static str,
    vocab_size: u32,
    dtype: Option<TokenDtype>,
) -> Result<Split, DataError> {
    let split = file.trim_end_matches(".bin");
    let is_shard = |name: &&String| {
        name.strip_suffix(".bin").is_some_and(|stem| stem.split('_').any(|part| part == split))
    };
    let mut paths = vec![folder.join(file)];
    if !names.iter().any(|name| name == file) {
        paths = names.iter().filter(is_shard).map(|name| folder.join(name)).collect();
    }
    if paths.is_empty() {
        let reason = format!("it has no {file} and no *_{split}_*.bin");
        return Err(missing(folder, &reason, names));
    }
    Split::from_files(paths, vocab_size, dtype)
}

/// Returns the error for data that is missing in a folder with these files, with the command that creates it.
/// nanoGPT names its character data sets `..._char` and keeps their text as `input.txt`.
fn missing(folder: &Path, reason: &str, names: &[String]) -> DataError {
    let has = |name: &str| names.iter().any(|found| found == name);
    let path = folder.display();
    let hint = if has("config.json") || has("config.toml") {
        "this folder has a model or a run: give a folder with prepared text".to_owned()
    } else if has("prepare.py") {
        "run the prepare.py in this folder, as nanoGPT does, or give a folder that `wgpt prepare TEXT.txt -o \
         FOLDER` has made with --data"
            .to_owned()
    } else if (has(TRAIN) || has(VAL)) && !has(META) {
        // Somebody else's tokens, which nothing replaces.
        let out = folder.with_file_name(format!("{}-tokens", display_name(folder)));
        let out = out.display();
        format!(
            "copy the missing file into this folder, or prepare a text into a new one: `wgpt prepare TEXT.txt -o \
             {out}`"
        )
    } else if has(META) || has("input.txt") || names.is_empty() {
        let input = has("input.txt").then(|| folder.join("input.txt"));
        let text = input.unwrap_or_else(|| "TEXT.txt".into());
        let option = if display_name(folder).ends_with("_char") { " --tokenizer char" } else { "" };
        let force = if has(META) { " --force" } else { "" };
        let text = text.display();
        format!(
            "create it with `wgpt prepare {text} -o {path}{option}{force}`, or give another folder with --data"
        )
    } else {
        // The texts of a folder are not prepared into the folder itself.
        let out = folder.with_file_name(format!("{}-tokens", display_name(folder)));
        let out = out.display();
        format!("if these are texts, run `wgpt prepare {path} -o {out}`, and give --data={out}")
    };
    DataError::missing(folder, reason, hint)
}

fn display_name(folder: &Path) -> String {
    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
}

fn fingerprint(meta: Option<&Meta>, train: &Split, val: &Split) -> Result<String, DataError> {
    let mut hasher = blake3::Hasher::new();
    if let Some(meta) = meta {
        // Only the hashes, which cover every token; names and formatting may change.
        hasher.update(meta.train_blake3.as_bytes());
        hasher.update(meta.val_blake3.as_bytes());
    }
    train.fingerprint(&mut hasher)?;
    val.fingerprint(&mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Reads the vocabulary from nanoGPT's `meta.pkl`, a dictionary with `vocab_size` and `stoi`, the
/// ids of the characters.
///
/// The pickle reader only builds data: it runs no code and limits nesting and size. Without `stoi`
/// the result is the size of the vocabulary alone.
fn nanogpt_vocab(path: &Path) -> Result<(Option<Tokenizer>, u32), DataError> {
    let bad = |reason: &str| DataError::meta(path, reason);
    let file = disk::open_regular(path).map_err(DataError::io("read", path))?;
    let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
    if bytes > NANOGPT_META_MAX {
        return Err(bad("it is larger than 64 MiB"));
    }
    let value = PytorchReader::read_pickle_data(path, None)
        .map_err(|error| bad(&format!("not a readable pickle ({error})")))?;
    let PickleValue::Dict(mut meta) = value else {
        return Err(bad("it is not a dictionary"));
    };
    let vocab_size = match meta.get("vocab_size") {
        Some(PickleValue::Int(size)) => u32::try_from(*size).ok().filter(|&size| size > 0),
        _ => None,
    };
    let vocab_size = vocab_size.ok_or_else(|| bad("it has no vocab_size above 0"))?;
    let Some(PickleValue::Dict(stoi)) = meta.remove("stoi") else {
        return Ok((None, vocab_size));
    };
    let pair = |(text, id): (String, PickleValue)| match id {
        PickleValue::Int(id) => Some((id, text.parse().ok()?)),
        _ => None,
    };
    let pairs: Option<_> = stoi.into_iter().map(pair).collect();
    let pairs = pairs.ok_or_else(|| bad("stoi is not a map of single characters to ids"))?;
    let vocab = CharVocab::of_ids(pairs).filter(|vocab| vocab.len() == vocab_size);
    let vocab = vocab.ok_or_else(|| bad("the ids of stoi are not 0 to vocab_size - 1"))?;
    Ok((Some(TextTokenizer::Char(vocab).into()), vocab_size))
}

#[cfg(test)]
mod tests;
