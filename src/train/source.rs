//! Model sources: a run, a checkpoint, a Hugging Face folder, a nanoGPT checkpoint, a zip.

use std::path::{Path, PathBuf};

use burn::tensor::Device;

use super::TrainError;
#[cfg(not(target_arch = "wasm32"))]
use super::checkpoint::hash_file;
use super::checkpoint::{Checkpoint, Damaged, STATE_FILE, State};
use super::data_path::find_data;
use super::run::CHECKPOINTS_FOLDER;
use crate::data::{TOKENIZER_FILE, Tokenizer};
use crate::disk;
use crate::model::{
    Architecture, Gpt, NanoGptCheckpoint, WEIGHTS_FILE, WeightError, WeightFile, WeightSource,
    read_architecture,
};

/// The name of nanoGPT's checkpoint in its output folder.
pub const NANOGPT_FILE: &str = "ckpt.pt";

/// The vocabulary of a nanoGPT model whose data has no `meta.pkl`: GPT-2's 50,257, padded.
const NANOGPT_VOCABULARY: usize = 50_304;

/// A model that can be loaded.
#[derive(Debug)]
pub struct ModelSource {
    /// Its file or folder; for a run, that of the checkpoint.
    pub path: PathBuf,
    /// Its architecture.
    pub architecture: Architecture,
    /// Its tokenizer, where known.
    pub tokenizer: Option<Tokenizer>,
    /// The training state, for a checkpoint of wgpt.
    pub state: Option<State>,
    /// Sentences about better checkpoints of the run that are damaged.
    pub warnings: Vec<String>,
    /// The folder that a zip was unpacked to; removed with this value.
    #[cfg(not(target_arch = "wasm32"))]
    _unpacked: Option<tempfile::TempDir>,
}

impl ModelSource {
    /// Opens the model at `path`; for a run, its best checkpoint, else its newest.
    ///
    /// # Errors
    /// If the model does not exist or is damaged.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let checkpoints = path.join(CHECKPOINTS_FOLDER);
        if disk::is_dir(&checkpoints) {
            let (checkpoint, damaged) = Checkpoint::best(&checkpoints)?;
            return Self::checkpoint(checkpoint, damaged);
        }
        if disk::exists(&path.join(STATE_FILE)) {
            return Self::checkpoint(Checkpoint::open_model(path)?, Vec::new());
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
            let plain = Self::plain(path, architecture);
            let tokenizer = read_tokenizer(path)?.or(plain.tokenizer.clone());
            return Ok(Self { tokenizer, ..plain });
        }
        let nanogpt = path.join(NANOGPT_FILE);
        if disk::exists(&nanogpt) {
            return Self::open(&nanogpt);
        }
        let path = path.to_path_buf();
        Err(match disk::exists(&path) {
            true => TrainError::NoCheckpoint { path },
            false => TrainError::NoSuchModel { path },
        })
    }

    /// Opens a model folder in a zip, as the browser build exports it.
    #[cfg(not(target_arch = "wasm32"))]
    fn zip(path: &Path) -> Result<Self, TrainError> {
        let file = disk::File::open(path).map_err(TrainError::io("read", path))?;
        let folder = tempfile::tempdir().map_err(TrainError::io("unpack", path))?;
        super::archive::unpack(file, folder.path())?;
        let source = Self::open(folder.path())?;
        Ok(Self { _unpacked: Some(folder), ..source })
    }

    fn checkpoint(checkpoint: Checkpoint, damaged: Vec<Damaged>) -> Result<Self, TrainError> {
        let taken = checkpoint.path.display();
        let warning = |damaged: &Damaged| format!("{}; using {taken} instead", damaged.error);
        let warnings = damaged.iter().map(warning).collect();
        let architecture = read_architecture(&checkpoint.path)?;
        let tokenizer = checkpoint.state.tokenizer.clone();
        Ok(Self {
            path: checkpoint.path,
            architecture,
            tokenizer,
            state: Some(checkpoint.state),
            warnings,
            #[cfg(not(target_arch = "wasm32"))]
            _unpacked: None,
        })
    }

    /// Creates the source of a model without a tokenizer. A vocabulary of GPT-2's size, also with
    /// nanoGPT's padding, means GPT-2's tokenizer.
    fn plain(path: &Path, architecture: Architecture) -> Self {
        let gpt2 = Tokenizer::Gpt2;
        let padded = gpt2.vocab_size() as usize..=NANOGPT_VOCABULARY;
        let tokenizer = padded.contains(&architecture.vocab_size).then_some(gpt2);
        Self {
            path: path.to_path_buf(),
            architecture,
            tokenizer,
            state: None,
            warnings: Vec::new(),
            #[cfg(not(target_arch = "wasm32"))]
            _unpacked: None,
        }
    }

    /// Returns the data that the run of this checkpoint was trained on; `None` for other models.
    ///
    /// # Errors
    /// If the data is not found.
    pub fn data(&self) -> Result<Option<String>, TrainError> {
        let Some(State { config, .. }) = &self.state else { return Ok(None) };
        // RUN/checkpoints/ITERATION
        let path = disk::absolute(&self.path);
        let run = path.ancestors().nth(2).unwrap_or(&path);
        Ok(Some(find_data(config, run)?))
    }

    /// Loads the model onto `device`.
    ///
    /// # Errors
    /// If a file is not what the architecture needs.
    pub fn model(&self, device: &Device) -> Result<Gpt, TrainError> {
        Ok(Gpt::new(&self.architecture, &mut *self.weights()?, device)?)
    }

    /// Returns the BLAKE3 hash of the weights' file, in hexadecimal: the same model has the same.
    ///
    /// # Errors
    /// If the file cannot be read.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn fingerprint(&self) -> Result<String, TrainError> {
        match disk::is_dir(&self.path) {
            true => hash_file(&self.path.join(WEIGHTS_FILE)),
            false => hash_file(&self.path),
        }
    }

    /// Opens the weights. For a model with fewer positions they are the first ones, as nanoGPT crops
    /// a model.
    ///
    /// # Errors
    /// If the file is not one of weights.
    pub fn weights(&self) -> Result<Box<dyn WeightSource>, TrainError> {
        let weights: Box<dyn WeightSource> = if disk::is_dir(&self.path) {
            Box::new(WeightFile::open(&self.path.join(WEIGHTS_FILE))?)
        } else {
            Box::new(NanoGptCheckpoint::open(&self.path)?)
        };
        Ok(Box::new(Cropped { weights, positions: self.architecture.block_size }))
    }
}

/// Reads the `tokenizer.json` of a model folder; `None` if it has none, or one of another kind than
/// wgpt writes.
fn read_tokenizer(folder: &Path) -> Result<Option<Tokenizer>, TrainError> {
    let path = folder.join(TOKENIZER_FILE);
    if !disk::exists(&path) {
        return Ok(None);
    }
    let file = disk::read(&path).map_err(TrainError::io("read", &path))?;
    let damaged = |error| TrainError::checkpoint(&path, format!("not JSON: {error}"));
    Tokenizer::from_hugging_face(&file).map_err(damaged)
}

/// The weights of a model with its positions cropped.
struct Cropped {
    weights: Box<dyn WeightSource>,
    positions: usize,
}

impl WeightSource for Cropped {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let &[_, width] = shape else { return self.weights.weight(name, shape) };
        if name != "wpe.weight" {
            return self.weights.weight(name, shape);
        }
        let mut values = self.weights.weight(name, &[self.positions, width])?;
        values.truncate(shape.iter().product());
        Ok(values)
    }
}

/// Returns the settings that describe a model, by key.
pub fn settings(model: &Architecture) -> [(&'static str, String); 7] {
    [
        ("n_layer", model.n_layer.to_string()),
        ("n_head", model.n_head.to_string()),
        ("n_embd", model.n_embd.to_string()),
        ("block_size", model.block_size.to_string()),
        ("vocab_size", model.vocab_size.to_string()),
        ("bias", model.bias.to_string()),
        ("gelu", model.gelu.to_string()),
    ]
}

/// Checks that a model is the one that the configuration describes.
pub(super) fn check_same(
    configured: &Architecture,
    loaded: &Architecture,
    path: &Path,
) -> Result<(), TrainError> {
    for ((key, configured), (_, loaded)) in settings(configured).into_iter().zip(settings(loaded)) {
        if configured != loaded {
            return Err(TrainError::OtherModel {
                key,
                configured,
                loaded,
                path: path.to_path_buf(),
            });
        }
    }
    Ok(())
}
