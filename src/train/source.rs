//! Models from wherever they lie: a run, a checkpoint, a Hugging Face folder, nanoGPT's file.

use std::path::{Path, PathBuf};

use burn::tensor::Device;

use super::TrainError;
use super::checkpoint::{Checkpoint, STATE_FILE, State};
use super::run::CHECKPOINTS_FOLDER;
use crate::data::Tokenizer;
use crate::disk;
use crate::model::{
    Architecture, Gpt, NanoGptCheckpoint, WEIGHTS_FILE, WeightFile, WeightSource, read_architecture,
};

/// A model that can be loaded.
#[derive(Debug)]
pub struct ModelSource {
    /// Where it lies: of a run, the checkpoint that was picked.
    pub path: PathBuf,
    /// What it is.
    pub architecture: Architecture,
    /// Turns tokens into text, where known.
    pub tokenizer: Option<Tokenizer>,
    /// The state of a checkpoint of wgpt's own.
    pub state: Option<State>,
    /// Where a zip was unpacked; removed with this value.
    #[cfg(not(target_arch = "wasm32"))]
    _unpacked: Option<tempfile::TempDir>,
}

impl ModelSource {
    /// Finds the model at `path`: of a run folder the best checkpoint, else the newest.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let checkpoints = path.join(CHECKPOINTS_FOLDER);
        if disk::is_dir(&checkpoints) {
            return Self::checkpoint(Checkpoint::best(&checkpoints)?);
        }
        if disk::exists(&path.join(STATE_FILE)) {
            return Self::checkpoint(Checkpoint::open(path)?);
        }
        #[cfg(not(target_arch = "wasm32"))]
        if path.extension().is_some_and(|extension| extension == "zip") {
            return Self::zip(path);
        }
        if path.extension().is_some_and(|extension| extension == "pt") {
            let file = NanoGptCheckpoint::open(path)?;
            return Ok(Self::plain(path, file.architecture));
        }
        if disk::exists(&path.join(WEIGHTS_FILE)) {
            let mut architecture = read_architecture(path)?;
            // transformers trains the biases of a model that came without.
            if !architecture.bias {
                architecture.bias = WeightFile::open(&path.join(WEIGHTS_FILE))?.has_biases()?;
            }
            return Ok(Self::plain(path, architecture));
        }
        Err(TrainError::NoCheckpoint { path: path.to_path_buf() })
    }

    /// A folder in a zip, as a browser downloads it.
    #[cfg(not(target_arch = "wasm32"))]
    fn zip(path: &Path) -> Result<Self, TrainError> {
        let file = disk::File::open(path).map_err(TrainError::io("read", path))?;
        let folder = tempfile::tempdir().map_err(TrainError::io("unpack", path))?;
        super::archive::unpack(file, folder.path())?;
        let source = Self::open(folder.path())?;
        Ok(Self { _unpacked: Some(folder), ..source })
    }

    fn checkpoint(checkpoint: Checkpoint) -> Result<Self, TrainError> {
        let architecture = read_architecture(&checkpoint.path)?;
        let tokenizer = checkpoint.state.tokenizer.clone();
        Ok(Self {
            path: checkpoint.path,
            architecture,
            tokenizer,
            state: Some(checkpoint.state),
            #[cfg(not(target_arch = "wasm32"))]
            _unpacked: None,
        })
    }

    /// A model without a word about its tokens: GPT-2's number of them means GPT-2's tokens.
    fn plain(path: &Path, architecture: Architecture) -> Self {
        let gpt2 = Tokenizer::Gpt2;
        let tokenizer = (architecture.vocab_size == gpt2.vocab_size() as usize).then_some(gpt2);
        Self {
            path: path.to_path_buf(),
            architecture,
            tokenizer,
            state: None,
            #[cfg(not(target_arch = "wasm32"))]
            _unpacked: None,
        }
    }

    /// Loads the model onto `device`.
    ///
    /// # Errors
    /// If a file is not what the architecture needs.
    pub fn model(&self, device: &Device) -> Result<Gpt, TrainError> {
        let mut weights: Box<dyn WeightSource> = if disk::is_dir(&self.path) {
            Box::new(WeightFile::open(&self.path.join(WEIGHTS_FILE))?)
        } else {
            Box::new(NanoGptCheckpoint::open(&self.path)?)
        };
        Ok(Gpt::new(&self.architecture, &mut *weights, device)?)
    }
}

/// Refuses a model that is not the one the configuration describes.
pub(super) fn check_same(
    asked: &Architecture,
    have: &Architecture,
    path: &Path,
) -> Result<(), TrainError> {
    let settings = [
        ("n_layer", asked.n_layer.to_string(), have.n_layer.to_string()),
        ("n_head", asked.n_head.to_string(), have.n_head.to_string()),
        ("n_embd", asked.n_embd.to_string(), have.n_embd.to_string()),
        ("block_size", asked.block_size.to_string(), have.block_size.to_string()),
        ("vocab_size", asked.vocab_size.to_string(), have.vocab_size.to_string()),
        ("bias", asked.bias.to_string(), have.bias.to_string()),
        ("gelu", format!("{:?}", asked.gelu), format!("{:?}", have.gelu)),
    ];
    for (key, asked, have) in settings {
        if asked != have {
            return Err(TrainError::OtherModel { key, asked, have, path: path.to_path_buf() });
        }
    }
    Ok(())
}
