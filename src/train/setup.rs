//! Everything about a run that is known before a device is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::Device;
use web_time::Instant;

use super::checkpoint::{self, Checkpoint, Damaged};
use super::run::RunFolder;
use super::{ModelSource, Optimizer, TrainError, source};
use crate::config::{Config, InitFrom};
use crate::data::Dataset;
use crate::gpu::DeviceInfo;
use crate::model::{Architecture, Gpt, RandomWeights, read_architecture};
use crate::ops::{MAX_SHARDS, OpsMode};
use crate::plan::{self, Forecast, Limits};

/// What a run is started with.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is meant.
    pub config: Config,
    /// The run folder.
    pub run: PathBuf,
    /// Whether to continue from its newest checkpoint.
    pub resume: bool,
    /// Which implementation of the ops; the numbers are the configuration's.
    pub mode: OpsMode,
    /// How long the run has been going on in processes that failed: part of its `max_time`.
    pub elapsed: Duration,
}

/// A run that is set up: its data is open, its steps are cut, its folder is taken. Nothing of it is
/// on a device yet.
pub struct Setup {
    pub(super) started: Instant,
    pub(super) config: Config,
    pub(super) mode: OpsMode,
    pub(super) dataset: Dataset,
    pub(super) limits: Limits,
    pub(super) forecast: Forecast,
    pub(super) folder: RunFolder,
    /// What it continues from, and what was wrong with newer checkpoints.
    pub(super) loaded: Option<(Checkpoint, Vec<Damaged>)>,
    architecture: Architecture,
    /// Weights to begin with, if not random ones.
    source: Option<ModelSource>,
}

impl Setup {
    /// Reads the data, cuts the step for `device`, and takes the run folder.
    ///
    /// # Errors
    /// Anything that would stop the run later and can be known now; a run that does not fit leaves
    /// no trace.
    pub fn new(request: Request, device: &DeviceInfo) -> Result<Self, TrainError> {
        let now = Instant::now();
        let Request { config, run, resume, mode, elapsed } = request;
        let started = now.checked_sub(elapsed).unwrap_or(now);
        device.check_dtype(config.dtype)?;
        let mode = mode.in_dtype(config.dtype).on(device.kind);
        let block_size = u64::from(config.block_size.get());
        let dataset = Dataset::open(config.require_data()?, block_size)?;
        let architecture = Architecture::new(&config, vocabulary(&config, &dataset)?);
        check_bindings(&architecture, device)?;
        let (limits, _) = super::limits(&config, device, mode);
        let vocab = architecture.vocab_size as u32;
        let mut forecast = plan::plan(&config, vocab, &limits)?;
        let source = if resume { None } else { initial_source(&config, &architecture)? };
        let folder = RunFolder::open(&run, resume)?;
        checkpoint::remove_unfinished(&folder.checkpoints());
        let loaded = if resume { Some(Checkpoint::newest(&folder.checkpoints())?) } else { None };
        if let Some((Checkpoint { path, state }, _)) = &loaded {
            source::check_same(&architecture, &read_architecture(path)?, path)?;
            let kept = plan::keep(&config, &state.config, &state.plan, vocab, &limits);
            forecast = kept.unwrap_or(forecast);
        }
        Ok(Self {
            started,
            config,
            mode,
            dataset,
            limits,
            forecast,
            folder,
            loaded,
            architecture,
            source,
        })
    }

    /// Weights of the model, padding included.
    pub fn parameters(&self) -> u64 {
        self.architecture.parameters() as u64
    }

    /// The model and the optimizer on `device`.
    pub(super) fn load(&self, device: &Device) -> Result<(Gpt, Optimizer), TrainError> {
        let Self { config, architecture, mode, .. } = self;
        if let Some((checkpoint, _)) = &self.loaded {
            return checkpoint.load(config, architecture, device, *mode);
        }
        let model = initial_model(config, architecture, self.source.as_ref(), device)?;
        let optimizer = Optimizer::new(config, &model, *mode);
        Ok((model, optimizer))
    }
}

/// Tokens of the model: the data's, or more where more were asked for.
fn vocabulary(config: &Config, dataset: &Dataset) -> Result<u32, TrainError> {
    match config.vocab_size {
        0 => Ok(dataset.vocab_size),
        asked if asked >= dataset.vocab_size => Ok(asked),
        asked => {
            let (asked, have) = (asked.to_string(), dataset.vocab_size.to_string());
            let path = PathBuf::from(&dataset.name);
            Err(TrainError::OtherModel { key: "vocab_size", asked, have, path })
        }
    }
}

/// The model that training starts from, if it is not a random one.
fn initial_source(
    config: &Config,
    architecture: &Architecture,
) -> Result<Option<ModelSource>, TrainError> {
    let InitFrom::Path(path) = &config.init_from else { return Ok(None) };
    let source = ModelSource::open(Path::new(path))?;
    let mut have = source.architecture.clone();
    have.block_size = have.block_size.min(architecture.block_size);
    source::check_same(architecture, &have, &source.path)?;
    Ok(Some(source))
}

fn initial_model(
    config: &Config,
    architecture: &Architecture,
    source: Option<&ModelSource>,
    device: &Device,
) -> Result<Gpt, TrainError> {
    match source {
        Some(source) => source.model_within(architecture.block_size, device),
        None => {
            let mut weights = RandomWeights::new(architecture, config.seed);
            Ok(Gpt::new(architecture, &mut weights, device)?)
        }
    }
}

/// Refuses what the device could not bind to a kernel, before anything is put on it.
fn check_bindings(architecture: &Architecture, device: &DeviceInfo) -> Result<(), TrainError> {
    let Some(have) = device.max_binding else { return Ok(()) };
    for (name, shape) in architecture.shapes() {
        let need = 4 * shape.iter().map(|&n| n as u64).product::<u64>();
        let splits = name == "wte.weight" && architecture.shards(Some(have)) <= MAX_SHARDS;
        if need > have && !splits {
            let device = format!("{} ({})", device.name, device.id);
            return Err(TrainError::BindingTooLarge { name, need, have, device });
        }
    }
    Ok(())
}
