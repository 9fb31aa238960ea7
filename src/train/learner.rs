//! The model of a run and its optimizer.

use burn::tensor::{Device, Tensor};

use super::job::Job;
use super::optimizer::{Masters, Optimizer};
use super::setup::Setup;
use crate::model::{Gpt, LossScale, RandomWeights, WeightError, WeightSource, saved_shape};
use crate::protocol::Failure;
use crate::ranks::{Sharding, SharedWeights};
use crate::runs::checkpoint::SavedTensors;

/// Why a learner has a model wherever it is read.
const MODEL: &str = "the model exists between updates";

pub(super) struct Learner {
    /// `None` only during an update.
    model: Option<Gpt>,
    pub optimizer: Optimizer,
    /// The last update of this process.
    pub last_update: Option<Update>,
    /// Updates skipped before this process, because their gradients were not finite.
    pub skipped: u64,
}

/// The results of an update, still on the device.
pub(super) struct Update {
    pub loss: Tensor<1>,
    pub norm: Tensor<1>,
    pub learning_rate: f64,
}

impl Learner {
    /// Loads or initializes the model and the optimizer on `device`, the states of the optimizer in
    /// host memory if the plan has them there. Rank 0 reads the files, and sends the others what it reads.
    pub fn open(setup: &mut Setup, device: &Device) -> Result<Self, Failure> {
        let Setup { job: Job { config, mode, .. }, steps, ranks, origin, architecture, .. } = setup;
        let offloads = steps.plan().offload_optimizer;
        let mut masters = if offloads { Masters::new(config) } else { None };
        let keeps_copies = masters.is_none();
        let mut weights = match (&origin.loaded, &origin.source) {
            (Some((checkpoint, _)), _) => {
                checkpoint.shared_weights(architecture, &mut ranks.group)?
            }
            (None, source) => SharedWeights::new(&mut ranks.group, || match source {
                Some(source) => source.weights(),
                None => Ok(Box::new(RandomWeights::new(architecture, config.seed))),
            })?,
        };
        let precision = mode.precision;
        let mut model = match &mut masters {
            Some(masters) => masters.model(precision, architecture, &mut weights, device)?,
            None => Gpt::new(architecture, &mut weights, device)?,
        };
        drop(weights);
        let optimizer = open_optimizer(setup, &model, masters)?;
        if keeps_copies {
            model.keep_half_weights(precision);
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

    /// Counts the updates that were skipped before this process.
    pub async fn count_skipped(&mut self) {
        self.skipped = self.optimizer.read_loss_scale().await.skipped;
    }

    /// Returns the state of loss scaling as a checkpoint has it.
    pub async fn saved_loss_scale(&self) -> Option<LossScale> {
        let loss_scale = self.optimizer.read_loss_scale().await;
        let scales_loss = self.optimizer.loss_scale().is_some();
        Some(loss_scale).filter(|scale| scales_loss || scale.skipped > 0)
    }

    pub fn saved(&self) -> SavedTensors<'_> {
        let model = self.model();
        let states = self.optimizer.saved_states(model);
        let weights = self.optimizer.weights(model);
        SavedTensors { architecture: model.architecture(), weights, states }
    }
}

/// Creates the optimizer of `model` on its device or, with `masters`, in host memory. A run that continues
/// has the states of its checkpoint.
fn open_optimizer(
    setup: &mut Setup,
    model: &Gpt,
    masters: Option<Masters>,
) -> Result<Optimizer, Failure> {
    let Setup { job: Job { config, mode, .. }, ranks, origin, architecture, .. } = setup;
    let group = &mut ranks.group;
    let sharding = Sharding::of(config, architecture.padded_vocab() as u64, group);
    let Some((checkpoint, _)) = &origin.loaded else {
        return Ok(Optimizer::new(config, model, masters, sharding, *mode));
    };
    let mut shared = checkpoint.shared_states(group)?;
    let saved = |name: &str, shape: &[usize]| {
        let values = shared.weight(name, &saved_shape(architecture, name, shape))?;
        Ok::<_, WeightError>(Some(values))
    };
    let optimizer = Optimizer::load(config, model, masters, sharding, *mode, saved)?;
    Ok(match checkpoint.state.loss_scale {
        Some(saved) => optimizer.with_loss_scale(saved),
        None => optimizer,
    })
}
