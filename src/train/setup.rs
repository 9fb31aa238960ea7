//! The setup of a run before its device is opened: data, plan, folder, checkpoint.

use std::mem::take;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;

use super::Result;
use super::cooling::Cooling;
use super::inputs::{RunClock, RunInputs, StepPlan};
use super::rank_part::RankPart;
use super::room;
use crate::config::{Budget, Config, DecayLength, InitFrom};
use crate::data::{Dataset, Tokenizer};
use crate::disk;
use crate::eval::Quiz;
use crate::gpu::{DeviceError, DeviceInfo};
use crate::model::{Architecture, Blocks, Lora, read_architecture};
use crate::ops::OpsMode;
use crate::plan::{self, DeviceHealth, DeviceKind, Forecast, HEAD, MAX_SHARDS, Plan};
use crate::protocol::{Exit, Failure};
use crate::ranks::{Division, Group, PlanLimit, agree, recorded_limit};
use crate::runs::checkpoint::{self, BaseModel, Checkpoint, Damaged};
use crate::runs::{
    AdapterSource, ModelSource, RunFolder, absolute_data, absolute_model, check_same,
    device_profile, driver_traits, find_data, has_checkpoints,
};
use crate::text::bytes;

#[derive(Clone, Debug)]
pub struct TrainRequest {
    pub config: Config,
    pub run: PathBuf,
    /// True to continue from its newest checkpoint, or from the beginning without one.
    pub resume: bool,
    /// The implementation of the ops; their precision follows from the configuration.
    pub mode: OpsMode,
    /// True if `max_time` plans the schedule of a new run; false if it only ends the run early.
    pub plans_schedule: bool,
    /// The updates in which a run that continues decays its learning rate and ends.
    pub decay: Option<DecayLength>,
    /// Time that the run has taken in trainers that failed: it counts towards `max_time`.
    pub elapsed: Duration,
    /// The numbers that the shares of ranks follow; empty to follow their measured speeds.
    pub shares: Vec<f64>,
    /// The plan that the run must not exceed, after a larger one ran out of memory.
    pub max_plan: Option<Plan>,
    /// True if another process can start the run again after it has made way for other programs.
    pub makes_way: bool,
    /// True if the run has made way before: it takes no more than others leave, whatever its budget.
    pub has_made_way: bool,
}

/// A run with open data, planned steps and a locked folder. Nothing is on a device yet.
pub struct Setup {
    pub(crate) inputs: RunInputs,
    pub(crate) steps: StepPlan,
    pub(super) ranks: RankPart,
    pub(super) origin: Origin,
    pub(super) preparation: Preparation,
    pub(crate) architecture: Architecture,
    /// See [`TrainRequest`].
    pub(super) makes_way: bool,
}

/// Decisions to make before the first update.
pub(super) struct Preparation {
    /// True if `max_time` plans the schedule.
    pub plans_schedule: bool,
    /// The updates in which the learning rate decays from the first one on, if the run is to end.
    pub decay: Option<DecayLength>,
}

/// The folder of a run, and the checkpoint or the model that it starts from.
pub(super) struct Origin {
    pub folder: RunFolder,
    /// The checkpoint to continue from, and the newer ones that are damaged.
    pub loaded: Option<(Checkpoint, Vec<Damaged>)>,
    /// The model to start from; for a checkpoint of an adapter, the model that it is for.
    pub source: Option<ModelSource>,
    /// The model that an adapter leaves as it is.
    pub base: Option<BaseModel>,
    pub warnings: Vec<String>,
}

impl Setup {
    /// Opens the data, agrees with the other ranks of `group` on their shares, plans the steps for
    /// `device` and locks the run folder.
    ///
    /// # Errors
    /// Everything that would stop the run later and can be checked now. A run that does not fit
    /// creates no file.
    pub fn new(request: TrainRequest, device: &DeviceInfo, mut group: Group) -> Result<Self> {
        let TrainRequest { config, run, resume, mode, elapsed, shares, .. } = request;
        let mut clock = RunClock::start(elapsed);
        let mode = mode.for_run(config.dtype, device).map_err(|error| match error {
            DeviceError::Dtype { .. } if resume => {
                let text = format!("this run cannot continue in its precision: {error}");
                let hint = "add --dtype=float32 or --dtype=auto to continue in another precision; its \
                            losses will differ slightly";
                Failure::new(text, hint).with_exit(Exit::Usage)
            }
            error => error.into(),
        })?;
        // The run keeps what `auto` has become.
        let config = Config { dtype: mode.precision.dtype(), ..config };
        let data =
            if resume { find_data(&config, &run)? } else { config.require_data()?.to_owned() };
        let mut dataset = Dataset::open(&data, u64::from(config.block_size.get()))?;
        let vocab_size = vocabulary(&config, &mut dataset)?;
        let config = if config.vocab_size == 0 { config } else { Config { vocab_size, ..config } };
        let architecture = Architecture::new(&config, vocab_size);
        check_bindings(&architecture, device)?;
        if device.kind == DeviceKind::Cpu {
            // Nothing reads its sensors, and this is before anything is written.
            Cooling::new(&config, true, &device.name, &DeviceHealth::default())?;
        }
        let profile = device_profile(device, mode);
        let mode = mode.for_driver(driver_traits(device, mode, &config));
        let (limits, _) = profile.limits(config.vram_budget, config.dtype);
        let limits = limits.sharded(&config, group.size());
        let recorded = if resume { Division::recorded(&run) } else { None };
        let division = agree(&mut group, &config, &dataset, device, &shares, recorded)?;
        // Rank 0 alone reads the questions: the other ranks need no file.
        let quiz = if group.is_first() { Quiz::open(&config, &dataset)? } else { None };
        let quiz = group.share(quiz)?;
        // In a run of one process, the supervisor passes the limit on.
        let max_plan = match group.is_alone() {
            true => request.max_plan,
            false => recorded_limit(&run, group.rank()),
        };
        let mut ranks = RankPart { group, division, max_plan, network: Duration::ZERO };
        let own = ranks.own_config(&config);
        let vocab = architecture.vocab_size as u32;
        let mut planned = plan::plan(&own, vocab, &limits, profile.speed.as_ref())
            .map_err(|error| error.with_holders(profile.holders(config.vram_budget)));
        // A run that has made way may have more than a new one.
        if !request.has_made_way {
            planned = Ok(planned?);
        }
        let group = &mut ranks.group;
        let mut origin = Origin::open(&run, resume, &config, &architecture, &dataset, group)?;
        if let Some((Checkpoint { state, .. }, _)) = &origin.loaded {
            let before = ranks.config_before(&state.config, &state.plan);
            let kept = plan::keep(&own, &before, &state.plan, vocab, &limits);
            planned = kept.map_or(planned, Ok);
            let now = mode.products().map(|library| library.name.as_str());
            origin.warnings.extend(other_products(state.products.as_deref(), now));
            if config.end_at.is_some_and(|end| end <= Utc::now()) {
                let text = "the moment at which the run was to end is over; --until=07:30 gives it more time";
                origin.warnings.push(text.into());
            }
            if config.fill_time {
                clock.continue_from(
                    Duration::try_from_secs_f64(state.seconds.unwrap_or(0.0)).unwrap_or_default(),
                );
            }
        }
        let mut wanted = None;
        let (limits, forecast) = match profile.total_and_free().filter(|_| request.has_made_way) {
            Some(memory) => {
                let before = origin.loaded.as_ref().and_then(|(Checkpoint { state, .. }, _)| {
                    let before = ranks.config_before(&state.config, &state.plan);
                    let unlimited = plan::Limits { budget: None, ..limits };
                    plan::keep(&own, &before, &state.plan, vocab, &unlimited)
                });
                let whole = before.map_or(planned, Ok)?;
                let (beside, now) = beside_others(&own, &whole, vocab, &limits, memory)?;
                if now.plan != whole.plan {
                    let budget = limits.budget.map(|budget| budget.max(whole.predicted_bytes));
                    wanted = Some((plan::Limits { budget, ..limits }, Box::new(whole)));
                }
                (beside, now)
            }
            None => (limits, planned?),
        };
        let is_sharded = config.shard_optimizer && !ranks.group.is_alone();
        let can_offload = !device.kind.shares_memory() && !is_sharded;
        let plan = forecast.plan.clone();
        let limit = PlanLimit::new(&origin.folder.path, ranks.group.rank(), plan, can_offload);
        let config = with_absolute_paths(config, &data, &run);
        let preparation = Preparation {
            plans_schedule: request.plans_schedule && origin.loaded.is_none(),
            decay: request.decay.filter(|_| origin.loaded.is_some()),
        };
        Ok(Self {
            inputs: RunInputs { config, mode, dataset, quiz, clock, base: origin.base.take() },
            steps: StepPlan { limits, forecast, limit, wanted },
            ranks,
            preparation,
            origin,
            architecture,
            makes_way: request.makes_way,
        })
    }
}

/// Returns the limits and the plan of a run that has made way and returns, on a device with these total and free bytes: as
/// much as there is room for, up to the plan that it had, or its budget.
fn beside_others(
    config: &Config,
    whole: &Forecast,
    vocab: u32,
    limits: &plan::Limits,
    [total, free]: [u64; 2],
) -> std::result::Result<(plan::Limits, Forecast), plan::PlanError> {
    let most = match config.vram_budget {
        // What is free now is no budget that was set.
        Budget::Auto | Budget::Percent(_) => Some(whole.predicted_bytes),
        Budget::Bytes(_) | Budget::Unlimited => limits.budget,
    };
    let within = |free: u64| {
        let budget = Some(most.map_or(free, |most| most.min(free)));
        let limits = plan::Limits { budget, ..*limits };
        plan::replan(config, &whole.plan, vocab, &limits, None).map(|now| (limits, now))
    };
    within(free.saturating_sub(room::margin(total))).or_else(|_| within(free))
}

impl Origin {
    /// Rank 0 locks the run folder, reads the state of the newest checkpoint, and sends it to the others.
    fn open(
        run: &Path,
        resume: bool,
        config: &Config,
        architecture: &Architecture,
        dataset: &Dataset,
        group: &mut Group,
    ) -> Result<Self> {
        // A run that was killed before its first checkpoint starts from the beginning.
        let starts_over = resume && group.is_first() && !has_checkpoints(run)?;
        let resume = resume && !starts_over;
        let mut source = None;
        let mut base = None;
        let mut loaded = None;
        let mut decayed = None;
        let lora = Lora::new(config);
        let folder = if group.is_first() {
            if !resume {
                source = initial_source(config, architecture, dataset)?;
                if lora.is_some() {
                    let source = source.as_ref().ok_or_else(no_base)?;
                    base = Some(source.as_base()?);
                }
            }
            let folder = RunFolder::open(run, resume)?;
            checkpoint::remove_unfinished(&folder.checkpoints());
            if resume {
                decayed = checkpoint::set_aside_decayed(&folder.checkpoints(), config);
                loaded = Some(Checkpoint::newest(&folder.checkpoints())?);
            }
            folder
        } else {
            RunFolder::of_rank(run, group.rank())?
        };
        if let Some((Checkpoint { path, state }, _)) = &loaded {
            let hint = "leave the setting out, or start a new run";
            check_same(architecture, &read_architecture(path)?, path, hint)?;
            let optimizers = [config.optimizer, state.config.optimizer];
            // One cannot use the state of the other.
            if optimizers[0] != optimizers[1] {
                return Err(Failure::other_model("optimizer", optimizers, path, hint));
            }
            let adapters = [config, &state.config].map(|config| {
                let Config { lora_rank, lora_alpha, lora_targets, base_dtype, .. } = config;
                [
                    ("lora_rank", lora_rank.to_string()),
                    ("lora_alpha", lora_alpha.to_string()),
                    ("lora_targets", lora_targets.clone()),
                    ("base_dtype", base_dtype.to_string()),
                ]
            });
            let [now, before] = adapters;
            for ((key, now), (_, before)) in now.into_iter().zip(before) {
                if now != before {
                    return Err(Failure::other_model(key, [now, before], path, hint));
                }
            }
            if let (Some(lora), Some(recorded)) = (lora, &state.base) {
                source = Some(*AdapterSource::recorded(lora, recorded, path)?.base);
                base = Some(recorded.clone());
            }
        }
        let warnings = source.as_mut().map(|source: &mut ModelSource| take(&mut source.warnings));
        let mut warnings = warnings.unwrap_or_default();
        let (checkpoint, damaged) = loaded.unzip();
        let (starts_over, checkpoint) = group.share((starts_over, checkpoint))?;
        let loaded = checkpoint.map(|checkpoint| (checkpoint, damaged.unwrap_or_default()));
        warnings.extend(decayed);
        if starts_over {
            warnings.push("no checkpoint to resume from: starting from the beginning".into());
        }
        Ok(Self { folder, loaded, source, base, warnings })
    }
}

fn no_base() -> Failure {
    Failure::usage(
        "an adapter (`lora_rank`) needs a model to adapt",
        "add --init_from=MODEL, like hf:Qwen/Qwen3-0.6B, a folder or a run; `wgpt get --list` names some; or leave \
         lora_rank out",
    )
}

/// Returns a warning if another library computes the products of a run that continues; `None` is wgpt.
fn other_products(before: Option<&str>, now: Option<&str>) -> Option<String> {
    let [from, to] = [before, now].map(|library| library.unwrap_or("wgpt's own kernels"));
    (from != to).then(|| {
        format!(
            "matrix products were computed by {from} up to this checkpoint, and are by {to} from here on: \
             losses will differ in their last digits"
        )
    })
}

/// Returns the configuration as the run records it: its paths lead to the same files from any
/// folder.
fn with_absolute_paths(config: Config, data: &str, run: &Path) -> Config {
    let absolute = |path: &Path| disk::absolute(path).display().to_string();
    let init_from = match config.init_from {
        InitFrom::Path(path) => InitFrom::Path(absolute_model(&path)),
        other => other,
    };
    let questions = config.hellaswag.as_str();
    let hellaswag = if questions.is_empty() { String::new() } else { absolute(questions.as_ref()) };
    Config { data: absolute_data(data), out_dir: absolute(run), init_from, hellaswag, ..config }
}

/// Returns the vocabulary size: the data's, or a larger one if the configuration sets it. An initial
/// model may lack the tokens of conversations, and those that its text never becomes.
fn vocabulary(config: &Config, dataset: &mut Dataset) -> Result<u32> {
    let rows = dataset.tokenizer.as_ref().map_or(usize::MAX, Tokenizer::rows);
    match config.vocab_size {
        0 => Ok(dataset.vocab_size),
        size if size >= dataset.vocab_size => Ok(size),
        size if config.init_from != InitFrom::Scratch && dataset.adds_to(size) => {
            Ok(dataset.vocab_size)
        }
        size if rows <= size as usize => {
            dataset.fit(size as usize)?;
            Ok(size)
        }
        size => Err(match &config.init_from {
            InitFrom::Path(path) => Failure::other_tokenizer(path.as_ref()),
            _ => {
                let sizes = [size, dataset.vocab_size];
                let hint = "leave the setting out: the data names the size";
                Failure::other_model("vocab_size", sizes, dataset.name.as_ref(), hint)
            }
        }),
    }
}

/// Opens the model of `init_from`, if it names one. It may lack the tokens of conversations, but must have
/// the tokens of the data's text: two vocabularies of one size differ in meaning.
fn initial_source(
    config: &Config,
    architecture: &Architecture,
    dataset: &Dataset,
) -> Result<Option<ModelSource>> {
    let InitFrom::Path(path) = &config.init_from else { return Ok(None) };
    let mut source = ModelSource::open(Path::new(path))?;
    let mut loaded = source.architecture.clone();
    loaded.block_size = loaded.block_size.min(architecture.block_size);
    if let (Blocks::Llama(loaded), Blocks::Llama(wanted)) =
        (&mut loaded.blocks, &architecture.blocks)
    {
        loaded.positions = wanted.positions;
    }
    let template = dataset.tokenizer.as_ref().and_then(Tokenizer::chat);
    if template.map_or(Ok(false), |template| source.lacks(template))? {
        loaded.vocab_size = architecture.vocab_size;
        if config.lora_rank > 0 {
            source.warnings.push(format!(
                "{}: this model lacks the special tokens of the conversations, and an adapter cannot learn them: \
                 take a model with a chat template, or leave lora_rank out",
                source.name.display()
            ));
        }
    }
    let hint = "leave the setting out, or train from scratch without init_from";
    check_same(architecture, &loaded, &source.name, hint)?;
    if let (Some(configured), Some(AdapterSource { lora, .. })) =
        (Lora::new(config), &source.adapter)
        && !configured.is_same(lora, architecture)
    {
        let hint = "leave lora_rank, lora_alpha and lora_targets out to continue the adapter; to train another one, \
                    start from both in one model: `wgpt export ADAPTER -o FOLDER`";
        let text =
            format!("{}: this adapter has other settings than the run", source.name.display());
        return Err(Failure::usage(text, hint));
    }
    if !source.has_text_of(dataset.tokenizer.as_ref()) {
        return Err(Failure::other_tokenizer(&source.name));
    }
    Ok(Some(source))
}

/// Refuses a model with a weight that the device cannot bind to a kernel.
fn check_bindings(architecture: &Architecture, device: &DeviceInfo) -> Result<()> {
    let Some(have) = device.max_binding else { return Ok(()) };
    for (name, shape) in architecture.shapes() {
        let need = 4 * shape.iter().map(|&n| n as u64).product::<u64>();
        let splits = ["wte.weight", HEAD].contains(&name.as_str())
            && architecture.shards(Some(have)) <= MAX_SHARDS;
        if need > have && !splits {
            let device = format!("{} ({})", device.name, device.id);
            let [need, have] = [need, have].map(bytes);
            let text = format!(
                "the weight `{name}` takes {need}, but {device} allows at most {have} per tensor"
            );
            let hint = "use another device (`wgpt devices` shows the limits), --device=cpu, or a smaller \
                        n_embd or vocabulary";
            return Err(Failure::new(text, hint).with_exit(Exit::DoesNotFit));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_of_products_is_told() {
        let [old, new] = [Some("cuBLASLt 12.8.5"), Some("cuBLASLt 13.0.2")];
        assert_eq!(other_products(None, None), None);
        assert_eq!(other_products(old, old), None);
        let told = other_products(old, new).unwrap();
        assert!(
            told.contains("by cuBLASLt 12.8.5 up to") && told.contains("by cuBLASLt 13.0.2 from")
        );
        assert!(other_products(None, new).unwrap().contains("by wgpt's own kernels up to"));
    }
}
