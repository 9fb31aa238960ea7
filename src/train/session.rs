//! A run from start to end: commands in, events out.

use std::collections::VecDeque;
use std::time::Duration;

use burn::tensor::Tensor;
use web_time::Instant;

use super::batches::Batches;
use super::checkpoint::{self, Checkpoint, Damaged, State};
use super::evaluate::{Evaluation, mean_loss};
use super::run::RunFolder;
use super::{Commands, Next, Optimizer, Setup, TrainError};
use crate::config::{self, Config};
use crate::data::{Dataset, Split};
use crate::gpu::{self, OpenDevice};
use crate::model::{Gpt, Pass, StepDropout, WeightGradients, scalar};
use crate::ops::{CrossEntropy, OpsMode};
use crate::plan::{Forecast, Limits, Plan};
use crate::protocol::{Command, Event, Step, StopReason};

mod budget;
mod control;

use budget::Meter;

/// A run that is set up.
pub struct Session<'a> {
    config: Config,
    mode: OpsMode,
    device: OpenDevice,
    dataset: Dataset,
    limits: Limits,
    /// How steps are cut, and what that takes.
    forecast: Forecast,
    meter: Meter,
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
    /// Commands that came while something else was going on.
    waiting: VecDeque<Command>,
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

/// The same before what a run does rarely and may fail in: an evaluation, a new plan.
const BEFORE_RISK: Duration = Duration::from_secs(60);

/// A disk that takes longer for a checkpoint is no disk.
const SLOW_DISK: Duration = Duration::from_secs(30 * 60);

/// Time spent on updates since the last log line.
struct Clock {
    since: Instant,
    paused: Duration,
    iterations: u64,
}

impl<'a> Session<'a> {
    /// Puts the model of a run on the device.
    ///
    /// # Errors
    /// If the weights cannot be read, or the device does not compute in the run's numbers.
    pub fn open(
        setup: Setup,
        device: OpenDevice,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Result<Self, TrainError> {
        device.check_dtype(setup.config.dtype)?;
        gpu::size_pages(&device.device, setup.forecast.page_bytes());
        let (model, optimizer) = setup.load(&device.device)?;
        let Setup { started, config, mode, dataset, limits, forecast, folder, loaded, .. } = setup;
        // To evaluate alone is asked of this process, not of all that continue the run.
        let written = folder.write_config(&Config { eval_only: false, ..config.clone() });
        // One that is continued has its configuration: a full disk need not end it here.
        let unwritten = match (written, &loaded) {
            (Err(error), Some(_)) => Some(error),
            (written, _) => written.map(|()| None)?,
        };
        let state = loaded.as_ref().map(|(checkpoint, _)| &checkpoint.state);
        let mut session = Self {
            iteration: state.map_or(0, |state| state.iteration),
            resumed_from: state.map(|state| state.iteration),
            last_eval: state.and_then(|state| state.last_eval),
            best_val_loss: state.and_then(|state| state.best_val_loss),
            learning_rate: state.and_then(|state| state.learning_rate),
            model: Some(model),
            last_update: None,
            meter: Meter::new(&device),
            config,
            mode,
            device,
            dataset,
            limits,
            forecast,
            folder,
            optimizer,
            started,
            saved: Instant::now(),
            waiting: VecDeque::new(),
            emit,
        };
        if let Some((checkpoint, damaged)) = loaded {
            session.warn_about(&checkpoint, damaged);
            session.back_to_schedule(&checkpoint.state.config);
        }
        if let Some(error) = unwritten {
            session.warn(format!("the settings are not kept for later: {error}"));
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

    /// A learning rate that a command set holds until another one is typed.
    fn back_to_schedule(&mut self, former: &Config) {
        let schedule = |config: &Config| {
            let Config { learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters, .. } =
                *config;
            (learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters)
        };
        let Some(rate) = self.learning_rate else { return };
        if schedule(&self.config) == schedule(former) {
            self.warn(format!(
                "the learning rate stays at {rate}, as a command set it; to go back to the \
                 schedule change one of its settings, such as --min_lr"
            ));
        } else {
            self.learning_rate = None;
        }
    }

    /// Trains until the run is over or a command ends it.
    ///
    /// # Errors
    /// What the run could not survive. Checkpoints that were written stay.
    pub async fn run(&mut self, commands: &mut impl Commands) -> Result<StopReason, TrainError> {
        self.announce();
        let result = match self.config.eval_only {
            true => self.evaluate_only(commands).await,
            false => self.train(commands).await,
        };
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
        self.device.watchdog.pause();
        result
    }

    async fn evaluate_only(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<StopReason, TrainError> {
        self.evaluate(commands).await?;
        Ok(self.interrupted(commands).await?.unwrap_or(StopReason::EvalOnly))
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

    async fn train(&mut self, commands: &mut impl Commands) -> Result<StopReason, TrainError> {
        let mut clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        let max_iters = self.config.max_iters.get();
        self.device.watchdog.heartbeat();
        while self.iteration < max_iters {
            let aside = Instant::now();
            commands.breathe().await;
            if self.is_due(self.config.eval_interval.get())
                && self.last_eval != Some(self.iteration)
            {
                self.rescue(BEFORE_RISK).await?;
                self.evaluate_and_save(commands).await?;
            }
            let interval = self.config.sample_interval;
            let stopping = self.waiting.contains(&Command::Stop);
            if self.iteration > 0 && interval > 0 && self.is_due(interval) && !stopping {
                self.sample(&self.config.sample_prompt.clone()).await;
            }
            // Last, so that what was asked for meanwhile does not wait for another update.
            if let Some(reason) = self.interrupted(commands).await? {
                self.write_checkpoint(None).await?;
                return Ok(reason);
            }
            clock.paused += aside.elapsed();

            self.update().await?;
            clock.iterations += 1;
            if self.has_waited() {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.heartbeat();
                self.keep_within_budget().await?;
            }
            let aside = Instant::now();
            self.rescue(RESCUE).await?;
            clock.paused += aside.elapsed();
            if (self.iteration - 1).is_multiple_of(self.config.log_interval.get()) {
                self.log(&mut clock).await?;
            }
        }
        if self.last_eval != Some(self.iteration) {
            self.evaluate_and_save(commands).await?;
        }
        self.write_checkpoint(None).await?;
        if self.last_eval != Some(self.iteration)
            && let Some(reason) = self.interrupted(commands).await?
        {
            return Ok(reason);
        }
        self.sample(&self.config.sample_prompt.clone()).await;
        Ok(StopReason::Finished)
    }

    /// Whether it is time to wait for the device.
    fn has_waited(&self) -> bool {
        self.device.watchdog.silence().is_some_and(|silence| silence >= ANSWERS)
    }

    fn is_due(&self, interval: u64) -> bool {
        self.iteration.is_multiple_of(interval)
    }

    /// One update of the weights, from the whole global batch.
    async fn update(&mut self) -> Result<(), TrainError> {
        let Plan { micro_batch, accumulation, loss_chunk, grad_checkpoint, .. } =
            self.forecast.plan;
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
            if micro_step + 1 < accumulation && self.has_waited() {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.restart();
            }
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
    async fn finite_update(&self) -> Result<Option<(f64, f64, f64)>, TrainError> {
        let Some(update) = &self.last_update else { return Ok(None) };
        let loss = f64::from(scalar(update.loss.clone()).await);
        let norm = f64::from(scalar(update.norm.clone()).await);
        match [loss, norm].into_iter().find(|value| !value.is_finite()) {
            Some(value) => Err(TrainError::NotFinite { iter: self.iteration - 1, value }),
            None => Ok(Some((loss, norm, update.learning_rate))),
        }
    }

    /// Reads the numbers of an update off the device: the only wait of a step.
    async fn log(&mut self, clock: &mut Clock) -> Result<(), TrainError> {
        let Some((loss, grad_norm, lr)) = self.finite_update().await? else { return Ok(()) };
        let spent = clock.since.elapsed().saturating_sub(clock.paused);
        let seconds = spent.as_secs_f64() / clock.iterations as f64;
        let tokens = self.config.global_batch() * u64::from(self.config.block_size.get());
        let meter = self.meter.read(&self.device);
        self.emit(Event::Step(Step {
            iter: self.iteration - 1,
            loss,
            lr,
            grad_norm,
            tokens,
            ms: seconds * 1e3,
            tokens_per_s: tokens as f64 / seconds,
            vram_bytes: meter.held,
            vram_peak_bytes: meter.peak,
            vram_classes: self.memory_by_class(),
            others_bytes: meter.others,
        }));
        *clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        Ok(())
    }

    async fn evaluate_and_save(&mut self, commands: &mut impl Commands) -> Result<(), TrainError> {
        let Some(val_loss) = self.evaluate(commands).await? else { return Ok(()) };
        let best = self.best_val_loss.is_none_or(|best| val_loss < best);
        if best {
            self.best_val_loss = Some(val_loss);
        }
        if self.iteration > 0 && (best || self.config.always_save_checkpoint) {
            self.save(Some(val_loss)).await?;
        }
        Ok(())
    }

    /// Gives the validation loss, or `None` if the run is to end first.
    async fn evaluate(&mut self, commands: &mut impl Commands) -> Result<Option<f64>, TrainError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut stop = || {
            self.device.watchdog.restart();
            while let Next::Command(command) = commands.next() {
                waiting.push_back(command);
            }
            waiting.contains(&Command::Stop) || self.is_late()
        };
        let train_loss = self.split_loss(&self.dataset.train, &mut stop).await;
        let val_loss = self.split_loss(&self.dataset.val, &mut stop).await;
        self.waiting = waiting;
        let (Some(train_loss), Some(val_loss)) = (train_loss?, val_loss?) else { return Ok(None) };
        let iter = self.iteration;
        self.last_eval = Some(iter);
        self.emit(Event::Eval { iter, train_loss, val_loss });
        if let Some(value) = [train_loss, val_loss].into_iter().find(|loss| !loss.is_finite()) {
            return Err(TrainError::NotFinite { iter, value });
        }
        Ok(Some(val_loss))
    }

    async fn split_loss(
        &self,
        split: &Split,
        stop: &mut impl FnMut() -> bool,
    ) -> Result<Option<f64>, TrainError> {
        let windows =
            u64::from(self.config.eval_iters.get()) * u64::from(self.config.batch_size.get());
        let evaluation = Evaluation {
            block_size: self.config.eval_block_size().get() as usize,
            sequences: self.forecast.plan.eval_batch_size,
            chunk: self.forecast.plan.loss_chunk,
            mode: self.mode,
        };
        mean_loss(self.model(), &self.dataset, split, windows, &evaluation, stop).await
    }

    /// Writes a checkpoint if the last one is older than this.
    async fn rescue(&mut self, age: Duration) -> Result<(), TrainError> {
        match self.iteration > 0 && self.saved.elapsed() >= age {
            true => self.save(None).await,
            false => Ok(()),
        }
    }

    /// Writes a checkpoint of a run that goes on, which does not die of a full disk: that is a
    /// warning.
    async fn save(&mut self, val_loss: Option<f64>) -> Result<(), TrainError> {
        match self.write_checkpoint(val_loss).await {
            Err(error @ TrainError::NotFinite { .. }) => Err(error),
            Err(error) => {
                self.warn(format!(
                    "no checkpoint was written: {error}; the last one is untouched, {}",
                    error.hint()
                ));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn write_checkpoint(&mut self, val_loss: Option<f64>) -> Result<(), TrainError> {
        self.saved = Instant::now();
        self.finite_update().await?;
        let state = State {
            version: checkpoint::VERSION,
            iteration: self.iteration,
            last_eval: self.last_eval,
            val_loss,
            best_val_loss: self.best_val_loss,
            learning_rate: self.learning_rate,
            config: self.config.clone(),
            plan: self.forecast.plan.clone(),
            tokenizer: self.dataset.tokenizer.clone(),
            data: self.dataset.fingerprint.clone(),
            hashes: Default::default(),
        };
        let folder = self.folder.checkpoints();
        let keep = self.config.keep_checkpoints.get();
        self.device.watchdog.allow_silence(SLOW_DISK);
        let written = Checkpoint::write(&folder, state, self.model(), &self.optimizer, keep).await;
        self.device.watchdog.restart();
        if let Some(checkpoint) = written? {
            let best = checkpoint.state.is_best();
            self.emit(Event::Checkpoint { iter: self.iteration, path: checkpoint.path, best });
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
        // Whoever reads stdout may take a break.
        self.device.watchdog.allow_silence(Duration::MAX);
        // A full disk must not end a run for want of a log line.
        let _ = self.folder.record(&event);
        (self.emit)(&event);
        self.device.watchdog.restart();
    }
}
