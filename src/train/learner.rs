//! The model of a run and its optimizer.

use burn::tensor::{Device, Tensor};

use super::TrainError;
use super::optimizer::{Masters, OUTER, Optimizer};
use super::setup::Setup;
use crate::config::{Config, Precision};
use crate::gpu::Watchdog;
use crate::model::{
    Architecture, Gpt, LossScale, Parameter, RandomWeights, WEIGHTS_FILE, WeightError,
    WeightSource, scalar,
};
use crate::ops::OpsMode;
use crate::ranks::{Group, Shard, SharedWeights};
use crate::runs::OwnStates;
use crate::runs::checkpoint::{Checkpoint, OPTIMIZER_FILE, SavedTensors, saved_shape};

/// Why a learner has a model wherever it is read.
const MODEL: &str = "the model exists between updates";

pub(super) struct Learner {
    /// `None` only during an update.
    model: Option<Gpt>,
    pub optimizer: Optimizer,
    /// The last update of this process.
    pub last_update: Option<Update>,
    /// Updates skipped before this process, because their gradients were not finite.
    skipped: u64,
}

/// The results of an update, still on the device.
pub(super) struct Update {
    pub loss: Tensor<1>,
    pub norm: Tensor<1>,
    pub learning_rate: f64,
}

pub(super) struct Results {
    /// Not finite only if the loss is scaled.
    pub loss: f64,
    /// `None` if the update was skipped.
    pub norm: Option<f64>,
    pub learning_rate: f64,
    pub loss_scale: LossScale,
}

pub(super) struct Diverged {
    /// The updates made after the one whose loss or gradient was not finite.
    pub since: u64,
    /// The state of loss scaling, if it has skipped too many updates in a row.
    pub scaling: Option<LossScale>,
}

impl Learner {
    /// Loads or initializes the model and the optimizer on `device`, the states of the optimizer in
    /// host memory if the plan has them there.
    pub fn open(setup: &mut Setup, device: &Device) -> Result<Self, TrainError> {
        let (config, mode) = (&setup.job.config, setup.job.mode);
        let (group, architecture) = (&mut setup.ranks.group, &setup.architecture);
        let offloads = setup.steps.plan().offload_optimizer;
        let mut masters = if offloads { Masters::new(config) } else { None };
        let keeps_copies = masters.is_none();
        let (mut model, optimizer) = if let Some((checkpoint, _)) = &setup.origin.loaded {
            let mut own = OwnStates::find(checkpoint, config, &setup.origin.folder.path, group)?;
            if own.are_missing {
                let text = "not every rank has its optimizer state of this checkpoint: all continue \
                            with that of rank 0, and losses will differ slightly from those of an \
                            undisturbed run";
                setup.origin.warnings.push(text.into());
            }
            load(checkpoint, config, architecture, device, masters, mode, (group, &mut own))?
        } else {
            let shard = Shard::of(config, group);
            let mut weights = SharedWeights::new(group, || match &setup.origin.source {
                Some(source) => source.weights(),
                None => Ok(Box::new(RandomWeights::new(architecture, config.seed))),
            })?;
            let model = build(architecture, &mut weights, &mut masters, mode.precision, device)?;
            let optimizer = Optimizer::new(config, &model, masters, shard, mode);
            (model, optimizer)
        };
        if keeps_copies {
            model.keep_half_weights(mode.precision);
        }
        Ok(Self { model: Some(model), optimizer, last_update: None, skipped: 0 })
    }

    pub fn model(&self) -> &Gpt {
        self.model.as_ref().expect(MODEL)
    }

    /// Takes the model for an update, which [`put`](Self::put) ends.
    pub fn take(&mut self) -> Gpt {
        self.model.take().expect(MODEL)
    }

    pub fn put(&mut self, model: Gpt) {
        self.model = Some(model);
    }

    pub fn vocabulary(&self) -> u32 {
        self.model().architecture().vocab_size as u32
    }

    /// Counts the updates that were skipped before this process. From the optimizer, not from the
    /// checkpoint: each of the ranks that train apart has its own.
    pub async fn count_skipped(&mut self) {
        self.skipped = self.optimizer.read_loss_scale().await.skipped;
    }

    /// Reads the results of the last update, if this process has made one.
    ///
    /// # Errors
    /// If training has diverged. The weights are finite even then, but what led there is in them: they
    /// must not take the place of an earlier checkpoint.
    pub async fn results(&self) -> Result<Option<Results>, Diverged> {
        let Some(update) = &self.last_update else { return Ok(None) };
        let loss = f64::from(scalar(update.loss.clone()).await);
        let norm = f64::from(scalar(update.norm.clone()).await);
        let loss_scale = self.optimizer.read_loss_scale().await;
        if self.optimizer.loss_scale().is_some() {
            // A loss that is not finite counts as its gradient does.
            if loss_scale.has_failed() {
                return Err(Diverged { since: 0, scaling: Some(loss_scale) });
            }
        } else if loss_scale.skipped > self.skipped {
            // Maybe not in the last update, but in one that was not logged.
            return Err(Diverged { since: loss_scale.clean, scaling: None });
        } else if !loss.is_finite() {
            return Err(Diverged { since: 0, scaling: None });
        }
        let norm = Some(norm).filter(|norm| norm.is_finite());
        Ok(Some(Results { loss, norm, learning_rate: update.learning_rate, loss_scale }))
    }

    /// Remembers the weights from which ranks that train apart move.
    pub async fn begin_apart(&mut self, watchdog: &Watchdog) {
        let model = self.model.as_ref().expect(MODEL);
        self.optimizer.begin_apart(model, watchdog).await;
    }

    /// Makes the outer step along the `change` of all ranks.
    pub fn step_outer(&mut self, change: &[f32]) {
        let model = self.take();
        self.model = Some(self.optimizer.step_outer(model, change));
    }

    /// Returns the state of loss scaling as a checkpoint has it.
    pub async fn saved_loss_scale(&self) -> Option<LossScale> {
        let loss_scale = self.optimizer.read_loss_scale().await;
        let scales_loss = self.optimizer.loss_scale().is_some();
        Some(loss_scale).filter(|scale| scales_loss || scale.skipped > 0)
    }

    pub fn saved(&self) -> SavedTensors<'_> {
        let model = self.model();
        let mut states = self.optimizer.saved_states(model);
        states.extend(self.optimizer.saved_outer(model));
        let weights = self.optimizer.weights(model);
        SavedTensors { architecture: model.architecture(), weights, states }
    }

    /// Returns the states of a rank that trains apart, which are its own.
    pub fn own_states(&self) -> Vec<Parameter> {
        let mut states = self.optimizer.saved_states(self.model());
        states.push(self.optimizer.saved_loss_scale());
        states
    }
}

/// Builds a model on `device`; `masters` keep the weights that are updated in host memory.
fn build(
    architecture: &Architecture,
    weights: &mut dyn WeightSource,
    masters: &mut Option<Masters>,
    precision: Precision,
    device: &Device,
) -> Result<Gpt, WeightError> {
    match masters {
        Some(masters) => masters.model(precision, architecture, weights, device),
        None => Gpt::new(architecture, weights, device),
    }
}

/// Loads the model of a checkpoint onto `device`, and the optimizer's states to the same place or, with
/// `masters`, to host memory. Rank 0 of `group` reads the files, and sends the others what it reads;
/// states of its `own` each reads itself.
fn load(
    checkpoint: &Checkpoint,
    config: &Config,
    architecture: &Architecture,
    device: &Device,
    mut masters: Option<Masters>,
    mode: OpsMode,
    (group, own): (&mut Group, &mut OwnStates),
) -> Result<(Gpt, Optimizer), TrainError> {
    let rank = group.rank();
    let mut weights = checkpoint.shared(WEIGHTS_FILE, group)?;
    let model = build(architecture, &mut weights, &mut masters, mode.precision, device)?;
    drop(weights);
    let shard = Shard::of(config, group);
    let has_outer = config.trains_apart() && checkpoint.has_states(OUTER, group)?;
    let mut shared = checkpoint.shared(OPTIMIZER_FILE, group)?;
    let saved = |name: &str, shape: &[usize]| {
        let shape = saved_shape(architecture, name, shape);
        match &mut own.file {
            Some(file) => file.weight(name, &shape),
            None => shared.weight(name, &shape),
        }
    };
    let mut optimizer = Optimizer::load(config, &model, masters, shard, mode, saved)?;
    if has_outer {
        let shape = |name: &str, shape: &[usize]| saved_shape(architecture, name, shape);
        optimizer.load_outer(&model, |name, of| shared.weight(name, &shape(name, of)))?;
    }
    let optimizer = match own.loss_scale(rank)?.or(checkpoint.state.loss_scale) {
        Some(saved) => optimizer.with_loss_scale(saved),
        None => optimizer,
    };
    Ok((model, optimizer))
}
