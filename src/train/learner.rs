//! The model of a run, its optimizer, and the device that computes with both.

use std::time::Duration;

use burn::tensor::Tensor;

use super::Result;
use super::inputs::RunInputs;
use super::optimizer::{Masters, Optimizer};
use super::setup::{Origin, Setup};
use crate::config::Config;
use crate::gpu::OpenDevice;
use crate::model::{
    AdaptedWeights, Architecture, Gpt, Lora, LossScale, RandomWeights, WeightError, WeightSource,
    saved_shape,
};
use crate::ranks::{Sharding, SharedWeights};
use crate::runs::checkpoint::SavedTensors;

/// The time after which a step waits for the device: to know that it still answers, and to keep its
/// queue short.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Learner {
    pub device: OpenDevice,
    pub model: Gpt,
    pub optimizer: Optimizer,
    /// The last update of this process.
    pub last_update: Option<LastUpdate>,
    /// Updates skipped before this process, because their gradients were not finite.
    pub skipped: u64,
}

/// The results of an update, still on the device.
pub(super) struct LastUpdate {
    pub loss: Tensor<1>,
    pub norm: Tensor<1>,
    pub learning_rate: f64,
}

impl Learner {
    /// Loads or initializes the model and the optimizer on `device`, the states of the optimizer in
    /// host memory if the plan has them there. Rank 0 reads the files and sends their tensors to the
    /// others.
    pub fn open(setup: &mut Setup, device: OpenDevice) -> Result<Self> {
        let Setup { inputs, steps, ranks, origin, architecture, .. } = setup;
        let RunInputs { config, mode, .. } = inputs;
        let offloads = steps.plan().offload_optimizer;
        let mut masters = if offloads { Masters::new(config) } else { None };
        let keeps_copies = masters.is_none();
        let lora = Lora::new(config);
        let mut weights =
            SharedWeights::new(&mut ranks.group, || first_weights(config, origin, architecture))?;
        let precision = mode.precision;
        let mut model = match &mut masters {
            Some(masters) => {
                masters.model(precision, architecture, &mut weights, &device.device)?
            }
            None => match &lora {
                Some(lora) => {
                    let adapter = (lora, config.base_dtype);
                    Gpt::adapted(precision, architecture, adapter, &mut weights, &device.device)?
                }
                None => Gpt::new(architecture, &mut weights, &device.device)?,
            },
        };
        drop(weights);
        let optimizer = open_optimizer(setup, &model, masters)?.watched_by(&device.watchdog);
        if keeps_copies {
            model.keep_half_weights(precision);
        }
        let skipped = loaded_scale(setup).map_or(0, |scale| scale.skipped);
        Ok(Self { device, model, optimizer, last_update: None, skipped })
    }

    pub fn vocabulary(&self) -> u32 {
        self.model.architecture().vocab_size as u32
    }

    /// Returns true if it is time to wait for the device.
    pub fn sync_is_due(&self) -> bool {
        self.device.watchdog.silence().is_some_and(|silence| silence >= SYNC_INTERVAL)
    }

    /// Returns the state of loss scaling as a checkpoint has it.
    pub async fn saved_loss_scale(&self) -> Option<LossScale> {
        let loss_scale = self.optimizer.read_loss_scale().await;
        let scales_loss = self.optimizer.loss_scale().is_some();
        Some(loss_scale).filter(|scale| scales_loss || scale.skipped > 0)
    }

    pub fn saved(&self) -> SavedTensors<'_> {
        SavedTensors {
            architecture: self.model.architecture(),
            weights: self.optimizer.weights(&self.model),
            states: self.optimizer.saved_states(&self.model),
        }
    }
}

/// Opens the weights that a run starts or continues with.
fn first_weights(
    config: &Config,
    origin: &Origin,
    architecture: &Architecture,
) -> Result<Box<dyn WeightSource>> {
    let loaded = origin.loaded.as_ref().map(|(checkpoint, _)| checkpoint);
    let random = || Box::new(RandomWeights::new(architecture, config.seed));
    match (&origin.source, loaded) {
        (Some(source), _) if config.lora_rank > 0 => {
            let (base, adapter) = match (loaded, &source.adapter) {
                (Some(checkpoint), _) => (source.weights()?, checkpoint.weights(architecture)?),
                (None, Some(adapter)) => (adapter.base.weights()?, source.adapter_weights()?),
                (None, None) => (source.weights()?, random() as Box<dyn WeightSource>),
            };
            Ok(Box::new(AdaptedWeights { base, adapter }))
        }
        (_, Some(checkpoint)) => checkpoint.weights(architecture),
        (Some(source), None) => source.weights(),
        (None, None) => Ok(random()),
    }
}

/// Creates the optimizer of `model` on its device or, with `masters`, in host memory. A run that continues
/// has the states of its checkpoint.
fn open_optimizer(setup: &mut Setup, model: &Gpt, masters: Option<Masters>) -> Result<Optimizer> {
    let loss_scale = loaded_scale(setup);
    let Setup { inputs, ranks, origin, architecture, .. } = setup;
    let RunInputs { config, mode, .. } = inputs;
    let group = &mut ranks.group;
    let sharding = Sharding::of(config, architecture.padded_vocab() as u64, group);
    let Some((checkpoint, _)) = &origin.loaded else {
        return Ok(Optimizer::new(config, model, masters, sharding, *mode));
    };
    let mut shared = SharedWeights::new(group, || checkpoint.optimizer_states())?;
    let saved = |name: &str, shape: &[usize]| {
        let values = shared.weight(name, &saved_shape(architecture, name, shape))?;
        Ok::<_, WeightError>(Some(values))
    };
    let optimizer = Optimizer::load(config, model, masters, sharding, *mode, saved)?;
    Ok(match loss_scale {
        Some(saved) => optimizer.with_loss_scale(saved),
        None => optimizer,
    })
}

/// Returns the state of loss scaling in the checkpoint that a run continues from.
fn loaded_scale(setup: &Setup) -> Option<LossScale> {
    setup.origin.loaded.as_ref()?.0.state.loss_scale
}
