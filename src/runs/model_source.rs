//! Opens models: a run, a checkpoint, a Hugging Face folder, a GGUF file, a nanoGPT checkpoint, a zip.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;

use super::checkpoint::{
    BaseModel, Checkpoint, CheckpointState, Damaged, STATE_FILE, hash_file, newest_first, states,
};
use super::data_path::{absolute_model, find_data};
use super::folder::CHECKPOINTS_FOLDER;
use crate::config::{Arch, Config, RopeScaling};
use crate::data::{
    ChatTemplate, DataError, Dataset, FolderTokenizer, TOKENIZER_FILE, Tokenizer, TokenizerError,
    pairs_of_folder,
};
use crate::disk;
use crate::eval::{ChatError, Conversation};
#[cfg(not(target_arch = "wasm32"))]
use crate::model::GgufModel;
use crate::model::{
    ADAPTER_CONFIG, ADAPTER_FILE, AdapterConfig, AdapterFolder, Architecture, Blocks, Gpt, Lora,
    MergedWeights, NanoGptCheckpoint, RandomWeights, WeightError, WeightFolder, WeightSource,
    has_adapter, has_weights, read_architecture, weight_files,
};
use crate::plan::HEAD;
use crate::protocol::Failure;

/// The name of nanoGPT's checkpoint in its output folder.
pub const NANOGPT_FILE: &str = "ckpt.pt";

/// The vocabulary of a nanoGPT model without `meta.pkl`: GPT-2's 50,257, padded.
const NANOGPT_VOCABULARY: usize = 50_304;

#[derive(Debug)]
pub struct ModelSource {
    /// The file or folder; for a run, the folder of the checkpoint.
    pub path: PathBuf,
    /// What people know it by: `path`, or the zip that it was unpacked from.
    pub name: PathBuf,
    pub architecture: Architecture,
    pub tokenizer: Option<Tokenizer>,
    /// True if the tokenizer follows only from the size of the vocabulary.
    is_guess: bool,
    pub state: Option<CheckpointState>,
    /// The model that these weights are an adapter of.
    pub adapter: Option<AdapterSource>,
    /// The open weights of a checkpoint, which its run may remove before they are read.
    held: Mutex<Option<HeldWeights>>,
    /// Sentences about better checkpoints of the run that are damaged, and about a tokenizer that is
    /// not supported.
    pub warnings: Vec<String>,
    /// The folder that a zip was unpacked to; removed with this value.
    #[cfg(not(target_arch = "wasm32"))]
    _unpacked: Option<tempfile::TempDir>,
}

/// An adapter and its model.
#[derive(Debug)]
pub struct AdapterSource {
    pub lora: Lora,
    pub base: Box<ModelSource>,
    /// The name of the base, which leads to it from any folder, and the hash of its weights.
    pub recorded: BaseModel,
}

/// The purpose that a model is opened for.
#[derive(Clone, Copy)]
enum Role {
    Any,
    /// The model of an adapter, which is no adapter: one could name itself.
    Base,
}

impl Role {
    fn allow_adapter(self, path: &Path) -> Result<(), Failure> {
        match self {
            Self::Any => Ok(()),
            Self::Base => Err(Failure::bad_data(
                format!("{}: this is an adapter, too", path.display()),
                "name the model that the adapter was trained on: `wgpt export ADAPTER -o FOLDER` writes one from \
                 another adapter",
            )),
        }
    }
}

#[derive(Debug)]
enum HeldWeights {
    All(WeightFolder),
    Adapter(AdapterFolder),
}

impl ModelSource {
    /// Opens the model at `path`; for a run, its best checkpoint, else its newest. A name like `hf:ORG/NAME`
    /// means its folder in the cache.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Self::open_as(path, Role::Any)
    }

    fn open_as(path: &Path, role: Role) -> Result<Self, Failure> {
        #[cfg(not(target_arch = "wasm32"))]
        let path = &*crate::hub::local(path)?;
        let checkpoints = path.join(CHECKPOINTS_FOLDER);
        let exists = disk::try_exists(&checkpoints).map_err(Failure::io("read", path))?;
        if exists && disk::is_dir(&checkpoints) {
            return Self::best(&checkpoints, role);
        }
        if disk::exists(&path.join(STATE_FILE)) {
            return Self::checkpoint(Checkpoint::open_model(path)?, Vec::new(), role);
        }
        #[cfg(not(target_arch = "wasm32"))]
        if path.extension().is_some_and(|extension| extension == "zip") {
            return Self::zip(path, role);
        }
        #[cfg(not(target_arch = "wasm32"))]
        if is_gguf(path) {
            return Self::gguf(path);
        }
        if path.extension().is_some_and(|extension| extension == "pt") {
            let file = NanoGptCheckpoint::open(path)?;
            if file.has_other_head()? {
                return Err(other_head(path));
            }
            let has_config = file.has_config;
            let plain = Self::plain(path, file.architecture);
            if !has_config && plain.tokenizer.is_some() {
                return Ok(plain);
            }
            // nanoGPT writes none, but somebody may have put one there.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let mut source = plain.with_tokenizer_of(folder.unwrap_or(Path::new(".")))?;
            if source.tokenizer.is_none() && source.warnings.is_empty() {
                let rows = source.architecture.vocab_size;
                source.tokenizer =
                    file.dataset.and_then(|name| nanogpt_tokenizer(path, &name, rows));
                source.is_guess = source.tokenizer.is_some();
            }
            return Ok(source);
        }
        if has_weights(path) {
            let mut architecture = read_architecture(path)?;
            // A model without biases has them after it was trained in transformers.
            if let Blocks::Gpt2 { bias: false, gelu } = architecture.blocks {
                let bias = WeightFolder::open(path, &architecture)?.has_biases()?;
                architecture.blocks = Blocks::Gpt2 { bias, gelu };
            }
            if WeightFolder::open(path, &architecture)?.has_other_head()? {
                match &mut architecture.blocks {
                    Blocks::Llama(shape) => shape.tied = false,
                    Blocks::Gpt2 { .. } => return Err(other_head(path)),
                }
            }
            WeightFolder::open(path, &architecture)?.check()?;
            return Self::plain(path, architecture).with_tokenizer_of(path);
        }
        if has_adapter(path) {
            role.allow_adapter(path)?;
            return Self::adapter(path);
        }
        let nanogpt = path.join(NANOGPT_FILE);
        if disk::exists(&nanogpt) {
            return Self::open(&nanogpt);
        }
        Err(if disk::exists(path) {
            Failure::no_checkpoint(path)
        } else {
            let hint = "give a run, a checkpoint, nanoGPT's ckpt.pt, a Hugging Face folder or a GGUF file; for OpenAI's \
                        GPT-2, run `wgpt get hf:openai-community/gpt2` and give hf:openai-community/gpt2";
            Failure::bad_data(format!("{}: does not exist", path.display()), hint)
        })
    }

    /// Takes the tokenizer of a model folder in place of the guess, if it has one.
    fn with_tokenizer_of(self, folder: &Path) -> Result<Self, Failure> {
        Ok(match read_tokenizer(folder)? {
            None => self,
            Some(Ok(FolderTokenizer { tokenizer, refused })) => {
                let warning = refused.map(|reason| {
                    let error = DataError::template(folder, reason);
                    format!("{error}; without it, this model cannot chat")
                });
                let warnings = warning.into_iter().collect();
                Self { tokenizer: Some(tokenizer), is_guess: false, warnings, ..self }
            }
            // Another vocabulary may have GPT-2's size.
            Some(Err(reason)) => {
                let file = folder.join(TOKENIZER_FILE);
                let warning = format!(
                    "cannot use {}: {reason}; without it, this model cannot read or write text",
                    file.display()
                );
                Self { tokenizer: None, is_guess: false, warnings: vec![warning], ..self }
            }
        })
    }

    /// Opens a GGUF file. Writes its tokenizer to a temporary folder, and reads it from there as it reads any other.
    #[cfg(not(target_arch = "wasm32"))]
    fn gguf(path: &Path) -> Result<Self, Failure> {
        let file = GgufModel::open(path)?;
        let source = Self::plain(path, file.architecture.clone());
        let vocabulary = match file.vocabulary() {
            Ok(vocabulary) => vocabulary,
            Err(reason) => {
                let warning = format!(
                    "{}: {reason}; without it, this model cannot read or write text",
                    path.display()
                );
                let warnings = vec![warning];
                return Ok(Self { tokenizer: None, is_guess: false, warnings, ..source });
            }
        };
        let folder = tempfile::tempdir().map_err(Failure::io("unpack", path))?;
        for (name, text) in vocabulary.files() {
            let file = folder.path().join(name);
            disk::write(&file, text).map_err(Failure::io("write", &file))?;
        }
        let source = source.with_tokenizer_of(folder.path())?;
        // Nobody knows that folder and its file.
        let unpacked = [folder.path().join(TOKENIZER_FILE), folder.path().to_path_buf()];
        let [file, folder] = unpacked.map(|path| path.display().to_string());
        let gguf = path.display().to_string();
        let named = |text: &String| {
            text.replace(&file, &format!("the tokenizer of {gguf}")).replace(&folder, &gguf)
        };
        let warnings = source.warnings.iter().map(named).collect();
        Ok(Self { warnings, ..source })
    }

    /// Opens a model folder in a zip, as the browser build exports it.
    #[cfg(not(target_arch = "wasm32"))]
    fn zip(path: &Path, role: Role) -> Result<Self, Failure> {
        let file = disk::open_regular(path).map_err(Failure::io("read", path))?;
        let folder = tempfile::tempdir().map_err(Failure::io("unpack", path))?;
        super::archive::unpack(file, path, folder.path())?;
        // Nobody knows the folder that it was unpacked to.
        let [unpacked, zip] = [folder.path(), path].map(|path| path.display().to_string());
        let named = |text: String| text.replace(&unpacked, &zip);
        let source = Self::open_as(folder.path(), role).map_err(|error| {
            let (text, hint) = (named(error.text), named(error.hint));
            Failure { text, hint, ..error }
        })?;
        let warnings = source.warnings.into_iter().map(named).collect();
        let name = path.to_owned();
        Ok(Self { _unpacked: Some(folder), name, warnings, ..source })
    }

    /// Opens the best checkpoint of a run. While the run trains, a checkpoint may be removed at any moment, so
    /// others are looked for then.
    fn best(checkpoints: &Path, role: Role) -> Result<Self, Failure> {
        const TRIES: u32 = 3;
        let mut tries = 1;
        loop {
            let before: Vec<_> = newest_first(checkpoints)?.collect();
            let opened = Checkpoint::best(checkpoints).and_then(|(checkpoint, damaged)| {
                let is_gone = damaged.iter().any(|damaged| !disk::exists(&damaged.path));
                Ok((Self::checkpoint(checkpoint, damaged, role)?, is_gone))
            });
            match opened {
                Ok((source, false)) => return Ok(source),
                opened if tries == TRIES || newest_first(checkpoints)?.eq(before) => {
                    return opened.map(|(source, _)| source);
                }
                _ => tries += 1,
            }
        }
    }

    fn checkpoint(
        checkpoint: Checkpoint,
        damaged: Vec<Damaged>,
        role: Role,
    ) -> Result<Self, Failure> {
        let taken = checkpoint.path.display();
        let warning = |damaged: &Damaged| format!("{}; using {taken} instead", damaged.error);
        let warnings = damaged.iter().map(warning).collect();
        let plain = Self::plain(&checkpoint.path, read_architecture(&checkpoint.path)?);
        let tokenizer = checkpoint.state.tokenizer.clone();
        let (path, architecture) = (&checkpoint.path, &plain.architecture);
        let (held, adapter) = match (Lora::new(&checkpoint.state.config), &checkpoint.state.base) {
            (Some(lora), Some(recorded)) => {
                role.allow_adapter(path)?;
                let file = AdapterFolder::open(path, architecture, &lora)?;
                let adapter = AdapterSource::recorded(lora, recorded, path)?;
                (HeldWeights::Adapter(file), Some(adapter))
            }
            _ => (HeldWeights::All(WeightFolder::open(path, architecture)?), None),
        };
        let held = Mutex::new(Some(held));
        let state = Some(checkpoint.state);
        Ok(Self { tokenizer, is_guess: false, state, adapter, held, warnings, ..plain })
    }

    /// Opens an adapter as PEFT saves it. It has the tokenizer of its model, unless its folder has another one.
    fn adapter(path: &Path) -> Result<Self, Failure> {
        let AdapterConfig { base: name, lora } = AdapterConfig::read(path)?;
        let base = base_model(&name, &path.join(ADAPTER_CONFIG))?;
        let recorded = BaseModel { name: base.recorded_name(), hash: base.fingerprint()? };
        let source = Self {
            tokenizer: base.tokenizer.clone(),
            is_guess: base.is_guess,
            adapter: None,
            ..Self::plain(path, base.architecture.clone())
        };
        let source = Self {
            adapter: Some(AdapterSource { lora, base: Box::new(base), recorded }),
            ..source.with_tokenizer_of(path)?
        };
        // A missing or misshapen matrix is reported now.
        drop(source.adapter_weights()?);
        Ok(source)
    }

    /// Returns the name by which an adapter finds this model.
    fn recorded_name(&self) -> String {
        absolute_model(&self.name.display().to_string())
    }

    /// Returns the model that an adapter of this one leaves as it is: this one, or if this is an adapter, its model.
    pub fn as_base(&self) -> Result<BaseModel, Failure> {
        match &self.adapter {
            Some(AdapterSource { recorded, .. }) => Ok(recorded.clone()),
            None => Ok(BaseModel { name: self.recorded_name(), hash: self.fingerprint()? }),
        }
    }

    /// Creates the source of a model without a tokenizer. A vocabulary of GPT-2's size, also with
    /// nanoGPT's padding, means GPT-2's tokenizer.
    fn plain(path: &Path, architecture: Architecture) -> Self {
        let gpt2 = Tokenizer::GPT2;
        let padded = gpt2.vocab_size() as usize..=NANOGPT_VOCABULARY;
        let tokenizer = padded.contains(&architecture.vocab_size).then_some(gpt2);
        Self {
            path: path.to_path_buf(),
            name: path.to_path_buf(),
            architecture,
            is_guess: tokenizer.is_some(),
            tokenizer,
            state: None,
            adapter: None,
            held: Mutex::default(),
            warnings: Vec::new(),
            #[cfg(not(target_arch = "wasm32"))]
            _unpacked: None,
        }
    }

    /// Returns the data that the run of this checkpoint was trained on; `None` for other models.
    pub fn data(&self) -> Result<Option<String>, Failure> {
        let Some(CheckpointState { config, .. }) = &self.state else { return Ok(None) };
        // RUN/checkpoints/ITERATION
        let path = disk::absolute(&self.path);
        let run = path.ancestors().nth(2).unwrap_or(&path);
        Ok(Some(find_data(config, run)?))
    }

    /// Returns the default window of training and evaluation in tokens: the model's context, but at most 1024
    /// for a foreign model with rotary positions. Those are not weights, so fewer cost nothing, and all 40,960
    /// of Qwen3 would take the memory of hundreds of windows.
    pub fn window(&self) -> usize {
        const MOST: usize = 1024;
        let Architecture { block_size, .. } = self.architecture;
        let is_foreign = self.state.is_none() && self.architecture.arch() != Arch::Gpt2;
        if is_foreign { block_size.min(MOST) } else { block_size }
    }

    /// Creates the failure of a model without a tokenizer that wgpt can use.
    pub fn no_tokenizer(&self) -> Failure {
        let path = self.name.display();
        let has = |name: &str| disk::exists(&self.path.join(name));
        let hint = if disk::is_file(&self.path) {
            "give the data folder that it was trained on with --data"
        } else if self.state.is_some() {
            "prepare its text with `wgpt prepare` and train again: its data had no tokenizer"
        } else if has(TOKENIZER_FILE) || has("tokenizer.model") {
            "give a model with byte-level BPE, as GPT-2, Llama 3 and Qwen3 have it; losses need no tokenizer: \
             `wgpt eval MODEL --data=DIR`"
        } else {
            "copy its tokenizer.json into its folder, or give the data folder that it was trained on with --data"
        };
        Failure::usage(format!("{path}: the tokenizer of the model is unknown"), hint)
    }

    pub fn conversation(&self) -> Result<Conversation, ChatError> {
        Conversation::new(&self.name, self.tokenizer.as_ref(), &self.architecture)
    }

    pub fn model(&self, device: &Device) -> Result<Gpt, Failure> {
        Ok(Gpt::new(&self.architecture, &mut *self.weights()?, device)?)
    }

    /// Returns the BLAKE3 hash of the file of weights, or of the hashes of several, in hexadecimal.
    pub fn fingerprint(&self) -> Result<String, Failure> {
        let files = match &self.adapter {
            Some(_) => vec![self.path.join(ADAPTER_FILE)],
            None if disk::is_dir(&self.path) => weight_files(&self.path)?,
            None => vec![self.path.clone()],
        };
        let hashes = files.iter().map(|file| hash_file(file)).collect::<Result<Vec<_>, _>>()?;
        let [hash] = &hashes[..] else {
            return Ok(blake3::hash(hashes.concat().as_bytes()).to_hex().to_string());
        };
        Ok(hash.clone())
    }

    /// Opens the weights, those of an adapter added to its model's. A model with fewer positions gets the first
    /// ones, as nanoGPT crops a model. Additional tokens begin near the mean of all others.
    pub fn weights(&self) -> Result<Box<dyn WeightSource>, Failure> {
        let weights: Box<dyn WeightSource> =
            if let Some(AdapterSource { lora, base, .. }) = &self.adapter {
                Box::new(MergedWeights {
                    base: base.weights()?,
                    adapter: self.adapter_weights()?,
                    architecture: self.architecture.clone(),
                    lora: lora.clone(),
                })
            } else if let Some(HeldWeights::All(held)) = self.take_held() {
                Box::new(held)
            } else if disk::is_dir(&self.path) {
                Box::new(WeightFolder::open(&self.path, &self.architecture)?)
            } else {
                self.weights_of_file()?
            };
        let path = self.name.clone();
        Ok(Box::new(Fitted { weights, path, architecture: self.architecture.clone() }))
    }

    fn weights_of_file(&self) -> Result<Box<dyn WeightSource>, Failure> {
        #[cfg(not(target_arch = "wasm32"))]
        if is_gguf(&self.path) {
            return Ok(Box::new(GgufModel::open(&self.path)?));
        }
        Ok(Box::new(NanoGptCheckpoint::open(&self.path)?))
    }

    /// Opens the weights of an adapter by themselves.
    ///
    /// # Panics
    /// If this is no adapter.
    pub fn adapter_weights(&self) -> Result<Box<dyn WeightSource>, Failure> {
        if let Some(HeldWeights::Adapter(held)) = self.take_held() {
            return Ok(Box::new(held));
        }
        let AdapterSource { lora, .. } = self.adapter.as_ref().expect("an adapter");
        Ok(Box::new(AdapterFolder::open(&self.path, &self.architecture, lora)?))
    }

    fn take_held(&self) -> Option<HeldWeights> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns false if the model is known to tokenize text differently than `data`. The size of a vocabulary
    /// is no proof: nanoGPT pads any to GPT-2's.
    pub fn has_text_of(&self, data: Option<&Tokenizer>) -> bool {
        let own = self.tokenizer.as_ref().filter(|_| !self.is_guess);
        own.zip(data).is_none_or(|(own, data)| own.has_text_of(data))
    }

    /// Returns true if `template` adds tokens to this model's. It is an error if it tokenizes text differently
    /// than the model.
    pub fn lacks(&self, template: &ChatTemplate) -> Result<bool, Failure> {
        let have = self.architecture.vocab_size;
        let lacks = have < template.vocab_size as usize;
        match &self.tokenizer {
            Some(tokenizer) if *tokenizer.base() == template.base => Ok(lacks),
            None if !lacks || have == template.base.vocab_size() as usize => Ok(lacks),
            _ => Err(Failure::other_tokenizer(&self.name)),
        }
    }
}

impl AdapterSource {
    /// Opens the model of the adapter in the checkpoint at `path`, which must be as it was.
    pub fn recorded(lora: Lora, recorded: &BaseModel, path: &Path) -> Result<Self, Failure> {
        let base = base_model(&recorded.name, path)?;
        if base.fingerprint()? != recorded.hash {
            let text = format!(
                "{}: the weights of this model have changed since {} was trained on them",
                base.name.display(),
                path.display()
            );
            let hint = "bring the former files back; an adapter fits only the weights that it was trained on";
            return Err(Failure::bad_data(text, hint));
        }
        Ok(Self { lora, base: Box::new(base), recorded: recorded.clone() })
    }
}

/// Opens the model that an adapter is for. `place` names it: a folder, or a model on the Hugging Face Hub.
fn base_model(name: &str, place: &Path) -> Result<ModelSource, Failure> {
    let path = PathBuf::from(name);
    #[cfg(not(target_arch = "wasm32"))]
    let path = match name.split_once('/') {
        // PEFT has the names of the hub without a prefix.
        Some((_, model)) if !disk::exists(&path) && !model.contains('/') && !path.has_root() => {
            PathBuf::from(format!("hf:{name}"))
        }
        _ => path,
    };
    ModelSource::open_as(&path, Role::Base).map_err(|error| {
        let text = format!("{}: its model cannot be opened: {}", place.display(), error.text);
        Failure { text, ..error }
    })
}

/// Returns true if the model at `path` was trained on conversations. Reads no weights; a model that
/// cannot be read was not.
pub fn has_chat(path: &Path) -> bool {
    let tokenizer = match recorded(path) {
        Some(checkpoint) => checkpoint.state.tokenizer,
        None => read_tokenizer(path).ok().flatten().and_then(Result::ok).map(|read| read.tokenizer),
    };
    tokenizer.is_some_and(|tokenizer| tokenizer.chat().is_some())
}

/// Returns the newest checkpoint of the run at `path`, or the checkpoint itself, without reading its
/// weights.
pub(super) fn recorded(path: &Path) -> Option<Checkpoint> {
    let checkpoints = path.join(CHECKPOINTS_FOLDER);
    if disk::is_dir(&checkpoints) {
        states(&checkpoints).next()
    } else {
        Checkpoint::open_unverified(path).ok()
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// Creates the failure of a GPT-2 with two tables.
fn other_head(path: &Path) -> Failure {
    Failure::bad_data(
        format!("{}: its `{HEAD}` is not its embedding", path.display()),
        "wgpt's GPT-2 has one table for both: merge an adapter without its head",
    )
}

/// Reads the `tokenizer.json` of a model folder and its chat template; `None` if it has none. The inner
/// error is one that the model does not depend on.
fn read_tokenizer(
    folder: &Path,
) -> Result<Option<Result<FolderTokenizer, TokenizerError>>, Failure> {
    let path = folder.join(TOKENIZER_FILE);
    let file = match pairs_of_folder(folder) {
        Some(file) => file,
        None if !disk::exists(&path) => return Ok(None),
        None => Ok(disk::read_regular(&path).map_err(Failure::io("read", &path))?),
    };
    let is_pointer = file.as_ref().is_ok_and(|file| disk::is_lfs_pointer(file));
    match file.and_then(|file| Tokenizer::in_folder(folder, &file)) {
        Err(TokenizerError::NotJson(_)) if is_pointer => {
            let text = format!("{}: {}", path.display(), disk::LFS_POINTER);
            Err(Failure::bad_data(text, disk::LFS_HINT))
        }
        Err(error @ TokenizerError::NotJson(_)) => Err(Failure::checkpoint(&path, error)),
        read => Ok(Some(read)),
    }
}

/// The weights of a model with its positions cropped and tokens added. All are finite.
struct Fitted {
    weights: Box<dyn WeightSource>,
    path: PathBuf,
    architecture: Architecture,
}

impl Fitted {
    /// Reads a weight of the file.
    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let values = self.weights.weight(name, shape)?;
        match values.iter().filter(|value| !value.is_finite()).count() {
            0 => Ok(values),
            count => {
                let all = values.len();
                let reason =
                    format!("`{name}` has values that are not finite numbers: {count} of {all}");
                Err(WeightError::corrupt(&self.path, reason))
            }
        }
    }
}

impl WeightSource for Fitted {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let Architecture { block_size, vocab_size, .. } = self.architecture;
        match (name, shape) {
            ("wpe.weight", &[positions, width]) => {
                let mut values = self.read(name, &[block_size, width])?;
                values.truncate(positions * width);
                Ok(values)
            }
            ("wte.weight" | HEAD, &[tokens, width]) if tokens > vocab_size => {
                let mut values = self.read(name, &[vocab_size, width])?;
                let noise = RandomWeights::new(&self.architecture, 0)
                    .weight(name, &[tokens - vocab_size, width])?;
                let mean = mean_row(&values, width);
                values.extend(
                    noise.iter().zip(mean.iter().cycle()).map(|(noise, mean)| mean + noise),
                );
                Ok(values)
            }
            _ => self.read(name, shape),
        }
    }
}

/// Returns the mean of all rows: a new token that begins there is as likely as the others on average. GPT-2's
/// logits are far below zero, so a token that begins at zero would always be predicted. Different noise lets
/// two new tokens learn different things.
fn mean_row(values: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0_f64; width];
    for row in values.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let rows = (values.len() / width.max(1)).max(1) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

/// Returns the tokenizer of nanoGPT's data set `name` if it has as many tokens as the model in `file` has rows. The data
/// are in nanoGPT's folder: the working folder, or the one that has the folder of the checkpoint.
fn nanogpt_tokenizer(file: &Path, name: &str, rows: usize) -> Option<Tokenizer> {
    let file = std::path::absolute(file).ok()?;
    let folders = [Path::new(""), file.parent()?.parent()?];
    let folders = folders.map(|folder| folder.join("data").join(name));
    folders.iter().find_map(|folder| {
        let tokenizer = Dataset::open(folder.to_str()?, 1).ok()?.tokenizer?;
        (tokenizer.vocab_size() as usize == rows).then_some(tokenizer)
    })
}

/// Returns the settings that describe a model, by key.
pub fn settings(model: &Architecture) -> Vec<(&'static str, String)> {
    let defaults = Config::default();
    // The settings of the other shape have their defaults.
    let (bias, gelu) = match model.blocks {
        Blocks::Gpt2 { bias, gelu } => (bias, gelu),
        Blocks::Llama(_) => (false, defaults.gelu),
    };
    let llama = match model.blocks {
        Blocks::Gpt2 { .. } => None,
        Blocks::Llama(shape) => Some(shape),
    };
    let rope_theta = llama.map_or(defaults.rope_theta, |shape| shape.rope_theta);
    let scaling = llama.map_or(RopeScaling::None, |shape| shape.rope_scaling);
    let norm_eps = llama.map_or(defaults.norm_eps, |shape| shape.norm_eps);
    let tied = llama.map_or(defaults.tie_embeddings, |shape| shape.tied);
    vec![
        ("arch", model.arch().to_string()),
        ("n_layer", model.n_layer.to_string()),
        ("n_head", model.n_head.to_string()),
        ("n_kv_head", llama.map_or(0, |shape| shape.kv_heads).to_string()),
        ("head_size", llama.map_or(0, |shape| shape.head_size).to_string()),
        ("n_embd", model.n_embd.to_string()),
        ("ffn_size", llama.map_or(0, |shape| shape.ffn_size).to_string()),
        ("block_size", model.block_size.to_string()),
        ("vocab_size", model.vocab_size.to_string()),
        ("bias", bias.to_string()),
        ("gelu", gelu.to_string()),
        ("rope_theta", rope_theta.to_string()),
        ("rope_scaling", scaling.to_string()),
        ("norm_eps", format!("{norm_eps:e}")),
        ("tie_embeddings", tied.to_string()),
        ("max_positions", llama.map_or(0, |shape| shape.positions).to_string()),
    ]
}

/// Checks that a model is the one that the configuration describes. `hint` is the advice if it is not.
pub fn check_same(
    configured: &Architecture,
    loaded: &Architecture,
    path: &Path,
    hint: &str,
) -> Result<(), Failure> {
    for ((key, configured), (_, loaded)) in settings(configured).into_iter().zip(settings(loaded)) {
        if configured != loaded {
            // Without the setting, it comes from the data.
            let of_data = "give data with the tokenizer of this model, and leave out vocab_size";
            let hint = if key == "vocab_size" { of_data } else { hint };
            return Err(Failure::other_model(key, [configured, loaded], path, hint));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WEIGHTS_FILE;

    struct Counting;

    impl WeightSource for Counting {
        fn weight(&mut self, _: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            Ok((0..shape.iter().product()).map(|index: usize| index as f32).collect())
        }
    }

    #[test]
    fn a_state_dict_has_the_tokenizer_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, content: &[u8]| disk::write(folder.path().join(name), content);
        let config = br#"{"n_layer":1,"n_head":2,"n_embd":8,"n_positions":4,"vocab_size":16}"#;
        write("config.json", config).unwrap();
        write("a.pt", include_bytes!("../../tests/reference/bare_state.pt")).unwrap();
        let open = || ModelSource::open(&folder.path().join("a.pt")).unwrap();
        assert_eq!(open().tokenizer, None);
        for (file, text) in Tokenizer::GPT2.hugging_face_files() {
            write(file, text.as_bytes()).unwrap();
        }
        assert_eq!(open().tokenizer, Some(Tokenizer::GPT2));
    }

    #[test]
    fn only_a_model_without_a_tokenizer_is_taken_for_gpt2() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| disk::write(folder.path().join(name), text).unwrap();
        let (n_embd, vocab_size) = (2, 50_257);
        let architecture =
            Architecture { n_layer: 1, n_head: 1, n_embd, vocab_size, ..Architecture::tiny() };
        let mut weights = RandomWeights::new(&architecture, 1);
        let model = Gpt::new(&architecture, &mut weights, &Device::flex()).unwrap();
        let weights = crate::model::parameters(&model);
        let written =
            super::super::checkpoint::write_model(folder.path(), &architecture, weights, None);
        pollster::block_on(written).unwrap();
        let open = || ModelSource::open(folder.path()).unwrap();
        let guess = open();
        assert_eq!((&guess.tokenizer, guess.warnings.len()), (&Some(Tokenizer::GPT2), 0));
        assert!(guess.has_text_of(Some(&Tokenizer::BYTE)), "the size tells no tokenizer");

        write(
            TOKENIZER_FILE,
            r#"{"normalizer":{"type":"NFKC"},"model":{"type":"BPE","vocab":{}}}"#,
        );
        let unknown = open();
        assert_eq!(unknown.tokenizer, None);
        let [warning] = &unknown.warnings[..] else { panic!("{:?}", unknown.warnings) };
        assert!(warning.contains(TOKENIZER_FILE) && warning.contains("NFKC"), "{warning}");
        assert!(unknown.has_text_of(Some(&Tokenizer::BYTE)) && !has_chat(folder.path()));

        write(TOKENIZER_FILE, &Tokenizer::BYTE.hugging_face_files()[0].1);
        let known = open();
        assert_eq!((&known.tokenizer, known.warnings.len()), (&Some(Tokenizer::BYTE), 0));
        assert!(known.has_text_of(Some(&Tokenizer::BYTE)) && known.has_text_of(None));
        assert!(!known.has_text_of(Some(&Tokenizer::GPT2)));
    }

    /// Writes a small model whose tensors are called and filled as `change` makes them. Returns what it is read as.
    fn reopened(
        architecture: &Architecture,
        change: impl Fn(&str, Vec<f32>) -> Vec<(String, Vec<f32>)>,
    ) -> Result<(ModelSource, Vec<Vec<f32>>), Failure> {
        use burn::tensor::Device;
        use safetensors::{Dtype, SafeTensors, tensor::TensorView};

        let folder = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let model = Gpt::new(architecture, &mut RandomWeights::new(architecture, 1), &device)?;
        let weights = crate::model::parameters(&model);
        let written =
            super::super::checkpoint::write_model(folder.path(), architecture, weights, None);
        pollster::block_on(written)?;
        let file = folder.path().join(WEIGHTS_FILE);
        let bytes = std::fs::read(&file).unwrap();
        let mut changed = Vec::new();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let values = view.data().as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v));
            for (name, values) in change(&name, values.collect()) {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                changed.push((name, view.shape().to_vec(), bytes));
            }
        }
        let views = changed.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
        let source = ModelSource::open(folder.path())?;
        let read = crate::model::parameters(&source.model(&device)?);
        let values = |part: &burn::tensor::Tensor<1>| part.to_data().try_into_vec::<f32>().unwrap();
        let read = read.iter().map(|weight| weight.parts.iter().flat_map(values).collect());
        Ok((source, read.collect()))
    }

    /// tests/model.rs compares other forms with transformers.
    #[test]
    fn one_table_under_two_names_is_tied() {
        let llama = Architecture::tiny_llama(Arch::Llama, true);
        let same = |name: &str, values| vec![(name.to_string(), values)];
        let (_, expected) = reopened(&llama, same).unwrap();
        let twice = |name: &str, values: Vec<f32>| {
            let mut tensors = vec![(name.to_string(), values.clone())];
            if name == "model.embed_tokens.weight" {
                tensors.push((HEAD.to_string(), values));
            }
            tensors
        };
        let (source, read) = reopened(&llama, twice).unwrap();
        assert_eq!((source.architecture, read == expected), (llama, true));
    }

    #[cfg(unix)]
    #[test]
    fn the_weights_of_a_removed_checkpoint_are_still_read() {
        let folder = tempfile::tempdir().unwrap();
        let held = folder.path().join("a");
        let architecture = Architecture::tiny();
        let device = burn::tensor::Device::flex();
        let model = Gpt::new(&architecture, &mut RandomWeights::new(&architecture, 1), &device);
        let weights = crate::model::parameters(&model.unwrap());
        disk::own_folder(&held).unwrap();
        let written = super::super::checkpoint::write_model(&held, &architecture, weights, None);
        pollster::block_on(written).unwrap();
        let open = WeightFolder::open(&held, &architecture).unwrap();
        let source = ModelSource {
            held: Mutex::new(Some(HeldWeights::All(open))),
            ..ModelSource::plain(&held, architecture)
        };
        disk::remove_dir_all(&held).unwrap();
        source.model(&device).unwrap();
    }

    #[test]
    fn weights_that_are_not_finite_are_refused() {
        for wrong in [f32::NAN, f32::INFINITY] {
            let spoilt = |name: &str, mut values: Vec<f32>| {
                if name == "model.norm.weight" {
                    values[3] = wrong;
                }
                vec![(name.to_string(), values)]
            };
            let failure =
                reopened(&Architecture::tiny_llama(Arch::Llama, true), spoilt).unwrap_err();
            assert!(failure.text.contains("not finite numbers: 1 of 32"), "{failure}");
            assert_eq!(failure.exit, crate::protocol::Exit::BadData);
        }
    }

    #[test]
    fn gpt2_has_no_head_of_its_own() {
        let gpt2 = |name: &str, values: Vec<f32>| {
            let mut tensors = vec![(name.to_string(), values.clone())];
            if name == "transformer.wte.weight" {
                tensors.push((HEAD.to_string(), values.iter().map(|v| v + 1.0).collect()));
            }
            tensors
        };
        let failure = reopened(&Architecture::tiny(), gpt2).unwrap_err();
        assert!(failure.text.contains(HEAD) && failure.hint.contains("one table"), "{failure}");
    }

    #[test]
    fn positions_are_cropped_and_tokens_begin_near_the_mean() {
        let architecture = Architecture {
            n_layer: 1,
            n_head: 1,
            n_embd: 2,
            block_size: 4,
            vocab_size: 3,
            blocks: Blocks::Gpt2 { bias: false, gelu: crate::config::Gelu::Tanh },
        };
        let mut fitted = Fitted { weights: Box::new(Counting), path: PathBuf::new(), architecture };
        assert_eq!(fitted.weight("wpe.weight", &[2, 2]).unwrap(), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(fitted.weight("ln_f.weight", &[2]).unwrap(), [0.0, 1.0]);
        let rows = fitted.weight("wte.weight", &[5, 2]).unwrap();
        assert_eq!(rows[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        for (at, mean) in [(6, 2.0), (7, 3.0), (8, 2.0), (9, 3.0)] {
            let off = (rows[at] - mean).abs();
            assert!(off > 0.0 && off < 0.1, "{off}");
        }
        assert_ne!(rows[6..8], rows[8..10]);
    }
}
