//! A run from start to end: commands in, events out.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Tensor;

use super::batches::Batches;
use super::checkpoint::{self, Checkpoint, Damaged, State};
use super::evaluate::{Evaluation, mean_loss};
use super::run::RunFolder;
use super::{ModelSource, Optimizer, TrainError, source};
use crate::config::{self, Config, InitFrom};
use crate::data::{Dataset, Split};
use crate::gpu::{self, OpenDevice};
use crate::model::{
    Architecture, Gpt, Pass, RandomWeights, StepDropout, WeightGradients, read_architecture,
};
use crate::ops::{CrossEntropy, MOST_TABLES, OpsMode};
use crate::plan::{self, Forecast, Plan};
use crate::protocol::{Command, Event, Step, StopReason};

mod control;

/// What a run is started with.
pub struct Request {
    /// What is meant.
    pub config: Config,
    /// The run folder.
    pub run: PathBuf,
    /// Whether to continue from its newest checkpoint.
    pub resume: bool,
    /// Where to compute.
    pub device: OpenDevice,
    /// Which implementation of the ops.
    pub mode: OpsMode,
}

/// A run that is set up.
pub struct Session<'a> {
    config: Config,
    mode: OpsMode,
    device: OpenDevice,
    dataset: Dataset,
    plan: Plan,
    forecast: Forecast,
    /// Most bytes that the device's pools were seen to hold.
    peak_bytes: u64,
    folder: RunFolder,
    /// `None` only while an update replaces it.
    model: Option<Gpt>,
    optimizer: Optimizer,
    iteration: u64,
    resumed_from: Option<u64>,
    last_eval: Option<u64>,
    best_val_loss: Option<f64>,
    /// Set by a command, in place of the schedule.
    learning_rate: Option<f64>,
    last_update: Option<Updated>,
    started: Instant,
    /// When the last checkpoint was written, or the run began.
    saved: Instant,
    emit: &'a mut dyn FnMut(&Event),
}

/// The numbers of an update, still on the device.
struct Updated {
    loss: Tensor<1>,
    norm: Tensor<1>,
    learning_rate: f64,
}

/// How often the device is waited for, which tells that it still answers, and keeps what is queued
/// from growing.
const ANSWERS: Duration = Duration::from_secs(1);

/// A checkpoint is written after this time without one, so that a failure costs no more.
const RESCUE: Duration = Duration::from_secs(600);

/// Time spent on updates since the last log line.
struct Clock {
    since: Instant,
    paused: Duration,
    iterations: u64,
}

impl<'a> Session<'a> {
    /// Reads the data, takes the run folder, and puts the model on the device.
    ///
    /// # Errors
    /// Anything that would stop the run later and can be known now.
    pub fn open(request: Request, emit: &'a mut dyn FnMut(&Event)) -> Result<Self, TrainError> {
        let started = Instant::now();
        let Request { config, run, resume, device, mode } = request;
        let block_size = u64::from(config.block_size.get());
        let dataset = Dataset::open(config.require_data()?, block_size)?;
        let architecture = Architecture::new(&config, vocabulary(&config, &dataset)?);
        check_bindings(&architecture, &device)?;
        let (limits, _) = super::limits(&config, &device.info);
        let vocab = architecture.vocab_size as u32;
        let mut forecast = plan::plan(&config, vocab, &limits)?;
        let source = if resume { None } else { initial_source(&config, &architecture)? };
        let folder = RunFolder::open(&run, resume)?;
        checkpoint::remove_unfinished(&folder.checkpoints());
        let loaded = if resume { Some(Checkpoint::newest(&folder.checkpoints())?) } else { None };
        if let Some((Checkpoint { state, .. }, _)) = &loaded {
            let kept = plan::keep(&config, &state.config, &state.plan, vocab, &limits);
            forecast = kept.unwrap_or(forecast);
        }
        gpu::size_pages(&device.device, forecast.page_bytes());
        let (model, optimizer) = match &loaded {
            Some((checkpoint, _)) => {
                let have = read_architecture(&checkpoint.path)?;
                source::check_same(&architecture, &have, &checkpoint.path)?;
                checkpoint.load(&config, &architecture, &device.device, mode)?
            }
            None => {
                let model = initial_model(&config, &architecture, source, &device)?;
                let optimizer = Optimizer::new(&config, &model, mode);
                (model, optimizer)
            }
        };
        folder.write_config(&config)?;
        let state = loaded.as_ref().map(|(checkpoint, _)| &checkpoint.state);
        let mut session = Self {
            iteration: state.map_or(0, |state| state.iteration),
            resumed_from: state.map(|state| state.iteration),
            last_eval: state.and_then(|state| state.last_eval),
            best_val_loss: state.and_then(|state| state.best_val_loss),
            learning_rate: state.and_then(|state| state.learning_rate),
            model: Some(model),
            last_update: None,
            config,
            mode,
            device,
            dataset,
            plan: forecast.plan.clone(),
            forecast,
            peak_bytes: 0,
            folder,
            optimizer,
            started,
            saved: Instant::now(),
            emit,
        };
        if let Some((checkpoint, damaged)) = loaded {
            session.warn_about(&checkpoint, damaged);
        }
        Ok(session)
    }

    fn warn_about(&mut self, checkpoint: &Checkpoint, damaged: Vec<Damaged>) {
        for damaged in damaged {
            damaged.set_aside();
            let path = checkpoint.path.display();
            self.warn(format!("{}; continuing from {path} instead", damaged.error));
        }
        if checkpoint.state.data != self.dataset.fingerprint {
            self.warn("the data is not what this run began with".into());
        }
    }

    /// Trains until the run is over or a command ends it.
    ///
    /// # Errors
    /// What the run could not survive. Checkpoints that were written stay.
    pub fn run(&mut self, commands: &Receiver<Command>) -> Result<StopReason, TrainError> {
        self.announce();
        let result =
            if self.config.eval_only { self.evaluate_only() } else { self.train(commands) };
        match &result {
            Ok(reason) => self.emit(Event::Done {
                iter: self.iteration,
                best_val_loss: self.best_val_loss,
                seconds: self.started.elapsed().as_secs_f64(),
                reason: *reason,
            }),
            // For the run's own record; the caller tells people.
            Err(error) => {
                let (text, hint) = (error.to_string(), error.hint().to_string());
                let _ = self.folder.record(&Event::Error { text, hint, cause: None });
            }
        }
        result
    }

    fn evaluate_only(&mut self) -> Result<StopReason, TrainError> {
        self.evaluate()?;
        Ok(StopReason::EvalOnly)
    }

    fn announce(&mut self) {
        let padded = config::padded_vocab(self.model().architecture().vocab_size as u32);
        self.emit(Event::Start {
            run: self.folder.path().to_path_buf(),
            device: self.device.info.line(),
            config: Box::new(self.config.clone()),
            params: self.config.parameters(u64::from(padded)),
            resumed_from: self.resumed_from,
            entropy_floor: self.dataset.entropy_floor,
        });
        self.emit(Event::Plan(Box::new(self.forecast.clone())));
    }

    fn train(&mut self, commands: &Receiver<Command>) -> Result<StopReason, TrainError> {
        let mut clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        let max_iters = self.config.max_iters.get();
        self.device.failure.beat();
        while self.iteration < max_iters {
            let aside = Instant::now();
            if let Some(reason) = self.interrupted(commands)? {
                self.save(None)?;
                return Ok(reason);
            }
            if self.is_due(self.config.eval_interval.get())
                && self.last_eval != Some(self.iteration)
            {
                self.evaluate_and_save()?;
            }
            let interval = self.config.sample_interval;
            if self.iteration > 0 && interval > 0 && self.is_due(interval) {
                self.sample(&self.config.sample_prompt.clone());
            }
            clock.paused += aside.elapsed();

            self.update()?;
            clock.iterations += 1;
            if self.device.failure.silence().is_some_and(|silence| silence >= ANSWERS) {
                gpu::wait(&self.device.device)?;
                self.device.failure.beat();
            }
            if self.saved.elapsed() >= RESCUE {
                let aside = Instant::now();
                self.save(None)?;
                clock.paused += aside.elapsed();
            }
            if (self.iteration - 1).is_multiple_of(self.config.log_interval.get()) {
                self.log(&mut clock)?;
            }
        }
        if self.last_eval != Some(self.iteration) {
            self.evaluate_and_save()?;
        }
        self.save(None)?;
        self.sample(&self.config.sample_prompt.clone());
        Ok(StopReason::Finished)
    }

    fn is_due(&self, interval: u64) -> bool {
        self.iteration.is_multiple_of(interval)
    }

    /// One update of the weights, from the whole global batch.
    fn update(&mut self) -> Result<(), TrainError> {
        let Plan { micro_batch, accumulation, loss_chunk, grad_checkpoint, .. } = self.plan;
        let block_size = self.config.block_size.get() as usize;
        let batches = Batches { dataset: &self.dataset, seed: self.config.seed, block_size };
        let model = self.model.take().expect("a model between updates");
        let tokens = micro_batch * accumulation * block_size;
        let loss = CrossEntropy {
            vocab: model.architecture().vocab_size,
            chunk: loss_chunk,
            scale: 1.0 / tokens as f32,
        };
        let mut grads = match accumulation {
            1 => WeightGradients::default(),
            _ => WeightGradients::zeros(&model),
        };
        let mut total: Option<Tensor<1>> = None;
        for micro_step in 0..accumulation {
            let first = micro_step * micro_batch;
            let batch = batches.train(self.iteration, first, micro_batch)?;
            let dropout = (self.config.dropout > 0.0).then_some(StepDropout {
                rate: self.config.dropout as f32,
                seed: self.config.seed,
                step: self.iteration,
                first_sequence: first as u32,
            });
            let pass = Pass { mode: self.mode, dropout };
            let value = model.add_gradients(&batch, loss, pass, grad_checkpoint, &mut grads);
            total = Some(match total {
                Some(total) => total + value,
                None => value,
            });
        }
        let learning_rate = self
            .learning_rate
            .unwrap_or_else(|| config::learning_rate(&self.config, self.iteration));
        let step = self.iteration + 1;
        let (model, norm) = self.optimizer.update(model, grads.into_vec(), step, learning_rate);
        self.model = Some(model);
        self.iteration = step;
        self.last_update = total.map(|loss| Updated { loss, norm, learning_rate });
        Ok(())
    }

    /// Loss, gradient norm and learning rate of the last update. Both of the former must be numbers:
    /// nothing else may reach a checkpoint.
    fn finite_update(&self) -> Result<Option<(f64, f64, f64)>, TrainError> {
        let Some(update) = &self.last_update else { return Ok(None) };
        let read = |tensor: &Tensor<1>| f64::from(tensor.clone().into_scalar::<f32>());
        let (loss, norm) = (read(&update.loss), read(&update.norm));
        match [loss, norm].into_iter().find(|value| !value.is_finite()) {
            Some(value) => Err(TrainError::NotFinite { iter: self.iteration - 1, value }),
            None => Ok(Some((loss, norm, update.learning_rate))),
        }
    }

    /// Reads the numbers of an update off the device: the only wait of a step.
    fn log(&mut self, clock: &mut Clock) -> Result<(), TrainError> {
        let Some((loss, grad_norm, lr)) = self.finite_update()? else { return Ok(()) };
        let spent = clock.since.elapsed().saturating_sub(clock.paused);
        let seconds = spent.as_secs_f64() / clock.iterations as f64;
        let tokens = self.config.global_batch() * u64::from(self.config.block_size.get());
        let vram_bytes = gpu::memory(&self.device.device).map(|memory| memory.reserved);
        self.peak_bytes = self.peak_bytes.max(vram_bytes.unwrap_or(0));
        self.emit(Event::Step(Step {
            iter: self.iteration - 1,
            loss,
            lr,
            grad_norm,
            tokens,
            ms: seconds * 1e3,
            tokens_per_s: tokens as f64 / seconds,
            vram_bytes,
            vram_peak_bytes: vram_bytes.map(|_| self.peak_bytes),
        }));
        *clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        Ok(())
    }

    fn evaluate_and_save(&mut self) -> Result<(), TrainError> {
        let val_loss = self.evaluate()?;
        let best = self.best_val_loss.is_none_or(|best| val_loss < best);
        if best {
            self.best_val_loss = Some(val_loss);
        }
        if self.iteration > 0 && (best || self.config.always_save_checkpoint) {
            self.save(Some(val_loss))?;
        }
        Ok(())
    }

    /// Gives the validation loss.
    fn evaluate(&mut self) -> Result<f64, TrainError> {
        let train_loss = self.split_loss(&self.dataset.train)?;
        let val_loss = self.split_loss(&self.dataset.val)?;
        let iter = self.iteration;
        self.last_eval = Some(iter);
        self.emit(Event::Eval { iter, train_loss, val_loss });
        if let Some(value) = [train_loss, val_loss].into_iter().find(|loss| !loss.is_finite()) {
            return Err(TrainError::NotFinite { iter, value });
        }
        Ok(val_loss)
    }

    fn split_loss(&self, split: &Split) -> Result<f64, TrainError> {
        let windows =
            u64::from(self.config.eval_iters.get()) * u64::from(self.config.batch_size.get());
        let evaluation = Evaluation {
            sequences: self.plan.eval_batch_size,
            chunk: self.plan.loss_chunk,
            mode: self.mode,
        };
        mean_loss(&self.model().valid(), &self.dataset, split, windows, &evaluation)
    }

    /// Writes a checkpoint. A run does not die of a full disk: that is a warning.
    fn save(&mut self, val_loss: Option<f64>) -> Result<(), TrainError> {
        self.saved = Instant::now();
        self.finite_update()?;
        let state = State {
            version: checkpoint::VERSION,
            iteration: self.iteration,
            last_eval: self.last_eval,
            val_loss,
            best_val_loss: self.best_val_loss,
            learning_rate: self.learning_rate,
            config: self.config.clone(),
            plan: self.plan.clone(),
            tokenizer: self.dataset.tokenizer.clone(),
            data: self.dataset.fingerprint.clone(),
            hashes: Default::default(),
        };
        let folder = self.folder.checkpoints();
        let keep = self.config.keep_checkpoints.get();
        match Checkpoint::write(&folder, state, self.model(), &self.optimizer, keep) {
            Ok(Some(checkpoint)) => {
                let best = checkpoint.state.is_best();
                self.emit(Event::Checkpoint { iter: self.iteration, path: checkpoint.path, best });
            }
            Ok(None) => {}
            Err(error) => self.warn(format!(
                "no checkpoint was written: {error}; the last one is untouched, {}",
                error.hint()
            )),
        }
        Ok(())
    }

    fn model(&self) -> &Gpt {
        self.model.as_ref().expect("a model between updates")
    }

    fn warn(&mut self, text: String) {
        self.emit(Event::Warning { text });
    }

    fn emit(&mut self, event: Event) {
        // A full disk must not end a run for want of a log line.
        let _ = self.folder.record(&event);
        (self.emit)(&event);
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
    source::check_same(architecture, &source.architecture, &source.path)?;
    Ok(Some(source))
}

fn initial_model(
    config: &Config,
    architecture: &Architecture,
    source: Option<ModelSource>,
    device: &OpenDevice,
) -> Result<Gpt, TrainError> {
    let autodiff = device.device.clone().autodiff();
    match source {
        Some(source) => source.model(&autodiff),
        None => {
            let mut weights = RandomWeights::new(architecture, config.seed);
            Ok(Gpt::new(architecture, &mut weights, &autodiff)?)
        }
    }
}

/// Refuses what the device could not bind to a kernel, before anything is put on it.
fn check_bindings(architecture: &Architecture, device: &OpenDevice) -> Result<(), TrainError> {
    let Some(have) = device.info.max_binding else { return Ok(()) };
    for (name, shape) in architecture.shapes() {
        let need = 4 * shape.iter().map(|&n| n as u64).product::<u64>();
        let splits = name == "wte.weight" && architecture.tables(Some(have)) <= MOST_TABLES;
        if need > have && !splits {
            let device = format!("{} ({})", device.info.name, device.info.id);
            return Err(TrainError::BindingTooLarge { name, need, have, device });
        }
    }
    Ok(())
}
