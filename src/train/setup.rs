//! The setup of a run before its device is opened: data, plan, folder, checkpoint.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::Device;
use web_time::Instant;

use super::checkpoint::{self, Checkpoint, Damaged};
use super::data_path::{absolute_data, find_data};
use super::run::RunFolder;
use super::{ModelSource, Optimizer, TrainError, has_checkpoint, source};
#[cfg(not(target_arch = "wasm32"))]
use crate::config::Precision;
use crate::config::{Config, InitFrom};
use crate::data::Dataset;
use crate::disk;
use crate::gpu::{DeviceError, DeviceInfo};
use crate::model::{Architecture, Gpt, RandomWeights, read_architecture};
use crate::ops::{MAX_SHARDS, OpsMode};
use crate::plan::{self, Forecast, Limits};

/// A request to train.
#[derive(Clone, Debug)]
pub struct Request {
    /// The resolved configuration.
    pub config: Config,
    /// The run folder.
    pub run: PathBuf,
    /// True to continue from its newest checkpoint, or from the beginning without one.
    pub resume: bool,
    /// The implementation of the ops; their precision follows from the configuration.
    pub mode: OpsMode,
    /// True if `max_time` plans the schedule of a new run; false if it only ends the run early.
    pub plans_schedule: bool,
    /// Time that the run has taken in trainers that failed: it counts towards `max_time`.
    pub elapsed: Duration,
}

/// A run whose data is open, whose steps are planned and whose folder is locked. Nothing of it is
/// on a device yet.
pub struct Setup {
    pub(super) started: Instant,
    pub(super) config: Config,
    pub(super) mode: OpsMode,
    pub(super) dataset: Dataset,
    pub(super) limits: Limits,
    pub(super) forecast: Forecast,
    pub(super) folder: RunFolder,
    /// The checkpoint to continue from, and the newer ones that are damaged.
    pub(super) loaded: Option<(Checkpoint, Vec<Damaged>)>,
    /// True for a run that was to be resumed and has no checkpoint yet.
    pub(super) starts_over: bool,
    /// True if `max_time` plans the schedule before the first update.
    pub(super) plans_schedule: bool,
    architecture: Architecture,
    /// The initial weights, if they are not random.
    source: Option<ModelSource>,
}

impl Setup {
    /// Opens the data, plans the steps for `device` and locks the run folder.
    ///
    /// # Errors
    /// Everything that would stop the run later and can be checked now. A run that does not fit
    /// creates no file.
    pub fn new(request: Request, device: &DeviceInfo) -> Result<Self, TrainError> {
        let now = Instant::now();
        let Request { config, run, resume, mode, plans_schedule, elapsed } = request;
        let started = now.checked_sub(elapsed).unwrap_or(now);
        let mode = mode.for_run(config.dtype, device).map_err(|error| match error {
            DeviceError::Dtype { .. } if resume => TrainError::OtherPrecision(error),
            error => error.into(),
        })?;
        // The run keeps what `auto` has become.
        let config = Config { dtype: mode.precision.dtype(), ..config };
        let block_size = u64::from(config.block_size.get());
        let data = match resume {
            true => find_data(&config, &run)?,
            false => config.require_data()?.to_owned(),
        };
        let dataset = Dataset::open(&data, block_size)?;
        let architecture = Architecture::new(&config, vocabulary(&config, &dataset)?);
        check_bindings(&architecture, device)?;
        let (limits, _) = super::limits(&config, device, mode);
        let vocab = architecture.vocab_size as u32;
        let mut forecast = plan::plan(&config, vocab, &limits)?;
        // A run that was killed before its first checkpoint starts from the beginning.
        let starts_over = resume && !has_checkpoint(&run);
        let resume = resume && !starts_over;
        let source = if resume { None } else { initial_source(&config, &architecture)? };
        let folder = RunFolder::open(&run, resume)?;
        checkpoint::remove_unfinished(&folder.checkpoints());
        let loaded = if resume { Some(Checkpoint::newest(&folder.checkpoints())?) } else { None };
        if let Some((Checkpoint { path, state }, _)) = &loaded {
            source::check_same(&architecture, &read_architecture(path)?, path)?;
            let kept = plan::keep(&config, &state.config, &state.plan, vocab, &limits);
            forecast = kept.unwrap_or(forecast);
        }
        let plans_schedule = plans_schedule && loaded.is_none();
        Ok(Self {
            started,
            config: with_absolute_paths(config, &data, &run),
            mode,
            dataset,
            limits,
            forecast,
            folder,
            loaded,
            starts_over,
            plans_schedule,
            architecture,
            source,
        })
    }

    /// Returns the precision of the run, in which its device is to be opened.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn precision(&self) -> Precision {
        self.mode.precision
    }

    /// Returns the number of weights, including padding.
    #[cfg(target_arch = "wasm32")]
    pub fn parameters(&self) -> u64 {
        self.architecture.parameters() as u64
    }

    /// Loads or initializes the model and the optimizer on `device`.
    pub(super) fn load(&self, device: &Device) -> Result<(Gpt, Optimizer), TrainError> {
        let Self { config, architecture, mode, .. } = self;
        let (mut model, optimizer) = match &self.loaded {
            Some((checkpoint, _)) => checkpoint.load(config, architecture, device, *mode)?,
            None => {
                let model = initial_model(config, architecture, self.source.as_ref(), device)?;
                let optimizer = Optimizer::new(config, &model, *mode);
                (model, optimizer)
            }
        };
        if mode.precision.keeps_half_weights() {
            model.keep_half_weights();
        }
        Ok((model, optimizer))
    }
}

/// Returns the configuration as the run records it: its paths lead to the same files from any
/// folder.
fn with_absolute_paths(config: Config, data: &str, run: &Path) -> Config {
    let init_from = match config.init_from {
        InitFrom::Path(path) => {
            InitFrom::Path(disk::absolute(Path::new(&path)).display().to_string())
        }
        other => other,
    };
    let out_dir = disk::absolute(run).display().to_string();
    Config { data: absolute_data(data), out_dir, init_from, ..config }
}

/// Returns the vocabulary size: the data's, or a larger one if the configuration sets it.
fn vocabulary(config: &Config, dataset: &Dataset) -> Result<u32, TrainError> {
    match config.vocab_size {
        0 => Ok(dataset.vocab_size),
        size if size >= dataset.vocab_size => Ok(size),
        size => Err(TrainError::OtherModel {
            key: "vocab_size",
            configured: size.to_string(),
            loaded: dataset.vocab_size.to_string(),
            path: PathBuf::from(&dataset.name),
        }),
    }
}

/// Opens the model of `init_from`, if it names one.
fn initial_source(
    config: &Config,
    architecture: &Architecture,
) -> Result<Option<ModelSource>, TrainError> {
    let InitFrom::Path(path) = &config.init_from else { return Ok(None) };
    let source = ModelSource::open(Path::new(path))?;
    let mut loaded = source.architecture.clone();
    loaded.block_size = loaded.block_size.min(architecture.block_size);
    source::check_same(architecture, &loaded, &source.path)?;
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

/// Refuses a model with a weight that the device cannot bind to a kernel.
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
