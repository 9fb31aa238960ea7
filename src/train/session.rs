//! The training loop of a run: commands in, events out.

use std::collections::VecDeque;
use std::time::Duration;

use web_time::Instant;

use super::{Commands, Optimizer, Setup, TrainError};
use crate::config::{self, Choice, Config};
use crate::data::Dataset;
use crate::eval::Quiz;
use crate::gpu::{self, OpenDevice, Watchdog};
use crate::model::Gpt;
use crate::ops::OpsMode;
use crate::plan::{self, Forecast, Limits};
use crate::protocol::{Command, Event, StopReason};
use crate::ranks::{Division, Group, PlanLimit, Wire};
use crate::runs::checkpoint::{Checkpoint, Damaged};
use crate::runs::{Continued, RunFolder};
use crate::text::percent;

mod apart;
mod budget;
mod control;
mod evaluation;
mod pace;
mod saving;
#[cfg(test)]
mod tests;
mod together;
mod update;
mod working;

use budget::MemoryMonitor;
use pace::PaceMonitor;
use saving::{MAX_CHECKPOINT_AGE, MAX_CHECKPOINT_AGE_AT_RISK};
use update::Update;

/// Why a session has a model wherever it is read.
const MODEL: &str = "the model exists between updates";

/// A run on an open device.
pub struct Session<'a> {
    config: Config,
    mode: OpsMode,
    device: OpenDevice,
    dataset: Dataset,
    /// The questions of evaluations, if there are any.
    quiz: Option<Quiz>,
    limits: Limits,
    /// The plan of a step and its memory.
    forecast: Forecast,
    /// The plan, for the watcher of the device.
    plan_limit: PlanLimit,
    memory: MemoryMonitor,
    pace: PaceMonitor,
    /// True if `max_time` plans the schedule before the first update.
    plans_schedule: bool,
    folder: RunFolder,
    /// The processes that train this run in step, each with a session like this one.
    group: Group,
    division: Division,
    wire: Wire,
    /// The time in the communication between them since the last log line.
    network: Duration,
    /// The updates after which all ranks last had the same weights, if they train apart.
    averaged: u64,
    /// True if a checkpoint is to be written when they have.
    wants_checkpoint: bool,
    /// `None` only during an update.
    model: Option<Gpt>,
    optimizer: Optimizer,
    iteration: u64,
    /// Updates skipped before this process, because their gradients were not finite.
    skipped: u64,
    resumed_from: Option<u64>,
    last_eval: Option<u64>,
    /// The validation loss of `last_eval`, if this process evaluated it.
    val_loss: Option<f64>,
    best_val_loss: Option<f64>,
    /// The learning rate that a command has set in place of the schedule.
    learning_rate: Option<f64>,
    last_update: Option<Update>,
    started: Instant,
    /// The time of the last checkpoint, or of the start.
    saved: Instant,
    /// Commands that arrived during an evaluation.
    queued: VecDeque<Command>,
    emit: &'a mut dyn FnMut(&Event),
}

/// The interval at which a step waits for the device: to know that it still answers, and to keep
/// its queue short.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The share of padding from which a run says so: half of its time is spent on it.
const MUCH_PADDING: f64 = 0.5;

/// The time spent on updates since the last log line.
struct Clock {
    since: Instant,
    paused: Duration,
    iterations: u64,
}

impl<'a> Session<'a> {
    /// Loads the model of a run onto the device.
    ///
    /// # Errors
    /// If the weights cannot be read.
    pub fn open(
        mut setup: Setup,
        device: OpenDevice,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Result<Self, TrainError> {
        gpu::size_pages(&device.device, setup.forecast.page_bytes());
        let (model, optimizer) = setup.load(&device.device)?;
        let optimizer = optimizer.watched_by(&device.watchdog);
        let (starts_over, lacks_states) = (setup.starts_over, setup.lacks_states);
        let plans_schedule = setup.plans_schedule;
        let Setup { started, config, mode, dataset, quiz, limits, forecast, .. } = setup;
        let Setup { plan_limit, folder, loaded, group, division, wire, source, .. } = setup;
        // `eval_only` is for this process, not for a later one that resumes the run.
        let written = folder.write_config(&Config { eval_only: false, ..config.clone() });
        // A resumed run has a configuration already: a full disk need not end it here.
        let unwritten = match (written, &loaded) {
            (Err(error), Some(_)) => Some(error),
            (written, _) => written.map(|()| None)?,
        };
        let state = loaded.as_ref().map(|(checkpoint, _)| &checkpoint.state);
        let mut session = Self {
            iteration: state.map_or(0, |state| state.iteration),
            skipped: 0,
            resumed_from: state.map(|state| state.iteration),
            last_eval: state.and_then(|state| state.last_eval),
            val_loss: None,
            best_val_loss: state.and_then(|state| state.best_val_loss),
            learning_rate: state.and_then(|state| state.learning_rate),
            model: Some(model),
            last_update: None,
            memory: MemoryMonitor::new(&device, forecast.host_bytes),
            pace: PaceMonitor::default(),
            plans_schedule,
            config,
            mode,
            device,
            dataset,
            quiz,
            limits,
            forecast,
            plan_limit,
            folder,
            group,
            division,
            wire,
            network: Duration::ZERO,
            averaged: state.map_or(0, |state| state.iteration),
            wants_checkpoint: false,
            optimizer,
            started,
            saved: Instant::now(),
            queued: VecDeque::new(),
            emit,
        };
        session.open_scalars();
        if let Some((checkpoint, damaged)) = loaded {
            session.warn_about(&checkpoint, damaged);
            session.back_to_schedule(&checkpoint.state.config);
        }
        for text in source.into_iter().flat_map(|source| source.warnings) {
            session.warn(text);
        }
        if starts_over {
            session.warn("no checkpoint to resume from: starting from the beginning".into());
        }
        if let Some(text) = session.about_conversations() {
            session.warn(text);
        }
        if lacks_states {
            session.warn(
                "not every rank has its optimizer state of this checkpoint: all continue with that \
                 of rank 0, and losses will differ slightly from those of an undisturbed run"
                    .into(),
            );
        }
        let wants_offload = session.config.offload_optimizer == Choice::True;
        if wants_offload && !session.forecast.plan.offload_optimizer {
            let place = match session.optimizer.is_sharded() {
                true => "with shard_optimizer",
                false => "on the CPU",
            };
            session.warn(format!("offload_optimizer=true has no effect {place}"));
        }
        if session.config.shard_optimizer && session.group.is_alone() {
            session.warn("shard_optimizer has no effect in one process".into());
        }
        if let Some(error) = unwritten {
            session.warn(format!("the settings of this run were not saved: {error}"));
        }
        Ok(session)
    }

    /// Returns a sentence about conversations that fit badly into windows.
    fn about_conversations(&self) -> Option<String> {
        let block_size = self.config.block_size.get();
        let windows = self.dataset.train.windows(block_size as usize);
        let packing = windows.packing()?;
        let (cut, all) = (packing.cut, packing.conversations);
        if cut > 0 {
            return Some(format!(
                "{cut} of {all} conversations are longer than block_size = {block_size} and lose their \
                 first tokens"
            ));
        }
        let padding = packing.padding();
        (padding > MUCH_PADDING).then(|| {
            format!(
                "{} of each window is padding: few conversations fit into block_size = \
                 {block_size}; a smaller one trains faster",
                percent(padding, 0)
            )
        })
    }

    /// Opens the scalar logs, with what they have of the run so far.
    fn open_scalars(&mut self) {
        let (logs, iteration) = (self.config.log, self.iteration);
        // `eval_only` repeats the last evaluation.
        let last_eval = self.last_eval.filter(|_| !self.config.eval_only);
        for text in self.folder.open_scalars(logs, Continued { iteration, last_eval }) {
            self.warn(text);
        }
    }

    fn warn_about(&mut self, checkpoint: &Checkpoint, damaged: Vec<Damaged>) {
        for damaged in damaged {
            damaged.set_aside();
            let path = checkpoint.path.display();
            self.warn(format!("{}; continuing from {path} instead", damaged.error));
        }
        if checkpoint.state.data != self.dataset.fingerprint {
            self.warn("the data differs from the data that this run was started with".into());
        }
        let (before, now) = (checkpoint.state.config.dtype, self.config.dtype);
        if before != now {
            self.warn(format!(
                "this run computed in {before} and continues in {now}: its losses will differ slightly"
            ));
        }
    }

    /// Returns to the schedule if its settings have changed. Else a learning rate that a command
    /// has set stays.
    fn back_to_schedule(&mut self, former: &Config) {
        let schedule = |config: &Config| {
            let Config { learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters, .. } =
                *config;
            (learning_rate, min_lr, decay_lr, warmup_iters, lr_decay_iters)
        };
        let Some(rate) = self.learning_rate else { return };
        if schedule(&self.config) == schedule(former) {
            self.warn(format!(
                "the learning rate stays at {rate}, as it was set during the run; to return to the \
                 schedule, change one of its settings, like --min_lr"
            ));
        } else {
            self.learning_rate = None;
        }
    }

    /// Trains until the run is done or a command ends it.
    ///
    /// # Errors
    /// Any error that ends the run. Its checkpoints stay.
    pub async fn run(&mut self, commands: &mut impl Commands) -> Result<StopReason, TrainError> {
        let result = match self.config.eval_only {
            true => {
                self.announce();
                self.evaluate_only(commands).await
            }
            false => self.begin_and_train(commands).await,
        };
        match &result {
            Ok(reason) => self.emit(Event::Done {
                iter: self.iteration,
                best_val_loss: self.best_val_loss,
                seconds: self.started.elapsed().as_secs_f64(),
                reason: *reason,
            }),
            // Recorded only: the caller reports it.
            Err(error) => {
                let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
                let _ = self.folder.record(&Event::Error { text, hint, cause: error.cause() });
            }
        }
        self.device.watchdog.pause();
        result
    }

    /// Waits for the other ranks and ends the communication with them, after a run that ended without
    /// an error. The end of MPI would wait without a limit for a rank that still writes.
    ///
    /// # Errors
    /// If a rank does not answer.
    pub fn finish(mut self) -> Result<(), TrainError> {
        self.group.collect(&())?;
        self.group.finish();
        Ok(())
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
            ranks: self.division.ranks.clone(),
        });
        self.emit(Event::Plan(Box::new(self.forecast.clone())));
    }

    /// Settles the schedule, then trains.
    async fn begin_and_train(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<StopReason, TrainError> {
        self.settle_shares().await?;
        let decides = self.group.is_first();
        let planned = match self.plans_schedule {
            true => self.plan_schedule().await?,
            false => None,
        };
        self.announce();
        match planned {
            Some(text) => self.warn(text),
            None if decides => self.warn_if_long().await?,
            None => {}
        }
        self.train(commands).await
    }

    async fn train(&mut self, commands: &mut impl Commands) -> Result<StopReason, TrainError> {
        let mut clock = Clock { since: Instant::now(), paused: Duration::ZERO, iterations: 0 };
        let max_iters = self.config.max_iters.get();
        self.begin_apart().await;
        self.device.watchdog.heartbeat();
        // From the optimizer, not from the checkpoint: ranks that train apart have their own.
        self.skipped = self.optimizer.read_loss_scale().await.skipped;
        while self.iteration < max_iters {
            let aside = Instant::now();
            commands.yield_now().await;
            let evaluates = self.is_due(self.config.eval_interval.get())
                && self.last_eval != Some(self.iteration);
            if evaluates {
                self.save_if_older(MAX_CHECKPOINT_AGE_AT_RISK).await?;
            }
            // Before the evaluation, which takes longer: a text is the first thing to see.
            if self.sample_is_due(evaluates) {
                self.sample_for_comparison().await;
            }
            if evaluates {
                self.evaluate_and_save(commands).await?;
            }
            // Last, so that commands that arrived meanwhile do not wait for another update.
            if let Some(reason) = self.apply_commands(commands).await? {
                self.end_round().await?;
                self.write_checkpoint().await?;
                return Ok(reason);
            }
            clock.paused += aside.elapsed();

            self.update().await?;
            self.end_round_if_due().await?;
            clock.iterations += 1;
            // An update in host memory has waited for the device already.
            if self.forecast.plan.offload_optimizer || sync_is_due(&self.device.watchdog) {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.heartbeat();
                self.keep_within_budget().await?;
            }
            let aside = Instant::now();
            self.save_if_older(MAX_CHECKPOINT_AGE).await?;
            clock.paused += aside.elapsed();
            if (self.iteration - 1).is_multiple_of(self.config.log_interval.get()) {
                self.log(&mut clock).await?;
            }
        }
        self.end_round().await?;
        if self.last_eval != Some(self.iteration) {
            self.evaluate_and_save(commands).await?;
        }
        self.write_checkpoint().await?;
        if self.last_eval != Some(self.iteration)
            && let Some(reason) = self.apply_commands(commands).await?
        {
            return Ok(reason);
        }
        self.sample_for_comparison().await;
        Ok(StopReason::Finished)
    }

    /// Returns the configuration of this rank's part of the global batch.
    fn own_config(&self) -> Config {
        plan::of_share(&self.config, self.division.shares.sequences(self.group.rank()))
    }

    fn model(&self) -> &Gpt {
        self.model.as_ref().expect(MODEL)
    }

    fn warn(&mut self, text: String) {
        self.emit(Event::Warning { text });
    }

    fn emit(&mut self, event: Event) {
        // The reader of stdout may be slow.
        self.device.watchdog.allow_silence(Duration::MAX);
        // A log line that a full disk does not take must not end the run.
        let _ = self.folder.record(&event);
        let failed = self.folder.log_scalars(&event);
        (self.emit)(&event);
        self.device.watchdog.restart();
        for text in failed {
            self.warn(text);
        }
    }
}

/// Returns true if it is time to wait for the device.
fn sync_is_due(watchdog: &Watchdog) -> bool {
    watchdog.silence().is_some_and(|silence| silence >= SYNC_INTERVAL)
}
