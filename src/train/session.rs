//! The training loop of a run: commands in, events out.

use std::time::Duration;

use super::checkpoint_writer::{CheckpointWriter, MAX_AGE, MAX_AGE_AT_RISK};
use super::clock::{Moment, SleepWatch};
use super::commands::CommandQueue;
use super::cooling::Cooling;
use super::evaluation::evaluate;
use super::journal::Journal;
use super::learner::Learner;
use super::memory::MemoryMonitor;
use super::pace::{PaceMonitor, RecentPace, UpdateClock, totals, update_work};
use super::position::Position;
use super::sampling::sample_for_comparison;
use super::setup::{Origin, Preparation};
use super::training::Training;
use super::{Commands, Result, Setup, warnings};
use crate::config::{Config, Schedule};
use crate::gpu::{self, OpenDevice};
use crate::plan::DeviceSpeed;
use crate::protocol::{Event, RankStep, Step, StopReason, Waiting};
use crate::runs::checkpoint::Checkpoint;
use crate::runs::remember_speed;
use crate::text::duration;

mod beginning;
mod control;
#[cfg(test)]
mod tests;

pub struct Session<'a> {
    training: Training,
    journal: Journal<'a>,
    checkpoints: CheckpointWriter,
    memory: MemoryMonitor,
    cooling: Option<Cooling>,
    pace: PaceMonitor,
    recent: RecentPace,
    sleep: SleepWatch,
    preparation: Preparation,
    /// True if another process can start the run again after it has made way for other programs.
    makes_way: bool,
    /// What the run waits for, once it makes way.
    way: Option<Waiting>,
    is_told_of_others: bool,
}

impl<'a> Session<'a> {
    pub fn open(
        mut setup: Setup,
        device: OpenDevice,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Result<Self> {
        gpu::size_pages(&device.device, setup.steps.forecast.page_bytes());
        let host_bytes = setup.steps.forecast.host_bytes;
        let memory = MemoryMonitor::new(&device, host_bytes, &setup.inputs.config, setup.makes_way);
        // Before anything is written.
        let (config, name) = (&setup.inputs.config, &device.info.name);
        let is_new = setup.origin.loaded.is_none();
        let cooling = Cooling::new(config, is_new, name, &memory.latest_health())?;
        let learner = Learner::open(&mut setup, device)?;
        let Setup { inputs, steps, mut ranks, origin, preparation, makes_way, .. } = setup;
        let Origin { folder, loaded, warnings, .. } = origin;
        ranks.group = ranks.group.watched_by(&learner.device.watchdog);
        // `eval_only` is for this process, not for a later one that resumes the run.
        let recorded = Config { eval_only: false, ..inputs.config.clone() };
        let unwritten = match folder.write_config(&recorded) {
            // A resumed run has a configuration already: a full disk need not end it here.
            Err(error) if loaded.is_some() => Some(error),
            written => written.map(|()| None)?,
        };
        let position = loaded
            .as_ref()
            .map_or_else(Position::default, |(checkpoint, _)| Position::of(&checkpoint.state));
        let mut journal = Journal::new(folder, &learner.device.watchdog, emit);
        let continued = position.continued(&inputs.config);
        let about_logs = journal.folder.open_scalars(&inputs.config.log, continued);
        let mut training = Training { inputs, steps, ranks, learner, position };
        let about_checkpoint = loaded.map(|(checkpoint, damaged)| {
            warnings::about_checkpoint(&checkpoint, damaged, &mut training)
        });
        let about_config =
            unwritten.map(|error| format!("the settings of this run were not saved: {error}"));
        let all = about_logs
            .into_iter()
            .chain(about_checkpoint.unwrap_or_default())
            .chain(warnings)
            .chain(warnings::about_conversations(&training.inputs))
            .chain(warnings::about_settings(&training))
            .chain(about_config);
        all.for_each(|text| journal.warn(text));
        Ok(Self {
            training,
            journal,
            checkpoints: CheckpointWriter::new(),
            memory,
            cooling,
            pace: PaceMonitor::default(),
            recent: RecentPace::default(),
            sleep: SleepWatch::start(),
            preparation,
            makes_way,
            way: None,
            is_told_of_others: false,
        })
    }

    /// Trains until the run is done or a command ends it.
    ///
    /// # Errors
    /// Any error that ends the run. Its checkpoints stay.
    pub async fn run(&mut self, commands: &mut impl Commands) -> Result<StopReason> {
        let result = self.run_to_end(&mut CommandQueue::new(commands)).await;
        let Self { training: Training { inputs, learner, position, .. }, journal, .. } = self;
        match &result {
            Ok(StopReason::StandBy) => {}
            Ok(reason) => journal.emit(Event::Done {
                iter: position.iteration,
                best_val_loss: position.best_val_loss,
                seconds: inputs.clock.used().as_secs_f64(),
                reason: *reason,
            }),
            // Recorded only: the caller reports it.
            Err(error) => {
                let _ = journal.folder.record(&Event::Error(error.clone().into()));
            }
        }
        learner.device.watchdog.pause();
        journal.folder.sync();
        result
    }

    /// Waits for the other ranks and ends the communication with them, after a run that ended without
    /// an error. The end of MPI would wait without a limit for a rank that still writes.
    pub fn finish(mut self) -> Result<()> {
        let group = &mut self.training.ranks.group;
        group.collect(&())?;
        group.finish();
        Ok(())
    }

    async fn run_to_end(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<StopReason> {
        if self.training.inputs.config.eval_only {
            self.announce();
            evaluate(&mut self.training, &mut self.journal, || commands.wants_stop()).await?;
            return Ok(self.apply_commands(commands).await?.unwrap_or(StopReason::EvalOnly));
        }
        self.prepare().await?;
        self.train(commands).await
    }

    async fn train(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<StopReason> {
        let mut clock = UpdateClock::start();
        self.training.learner.device.watchdog.heartbeat();
        // A command may change the length of the run.
        while self.training.position.iteration < self.training.inputs.config.max_iters.get() {
            let between = Moment::now();
            commands.yield_now().await;
            if let Some(reason) = self.between_updates(commands).await? {
                self.checkpoints.write(&mut self.training, &mut self.journal).await?;
                return Ok(reason);
            }
            clock.paused += between.elapsed();

            let began = Moment::now();
            self.training.update(&mut self.journal).await?;
            clock.updates += 1;
            self.wait_for_device().await?;
            clock.cooled += self.cool(began, commands).await?;

            let saving = Moment::now();
            self.checkpoints.save_if_older(MAX_AGE, &mut self.training, &mut self.journal).await?;
            clock.paused += saving.elapsed();
            let log_interval = self.training.inputs.config.log_interval.get();
            if (self.training.position.iteration - 1).is_multiple_of(log_interval) {
                self.log(&mut clock).await?;
            }
            if self.way.is_some()
                && let Some(reason) = self.make_way().await?
            {
                return Ok(reason);
            }
        }
        self.end(commands).await
    }

    /// Does what is due before the next update. Returns a reason to end the run, if any.
    async fn between_updates(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<Option<StopReason>> {
        let began = Moment::now();
        let Self { training, journal, checkpoints, .. } = self;
        let evaluates = training.position.evaluation_is_due(&training.inputs.config);
        if evaluates {
            checkpoints.save_if_older(MAX_AGE_AT_RISK, training, journal).await?;
        }
        // From here a run can also be continued with a longer schedule.
        let config = &training.inputs.config;
        let iteration = training.position.iteration;
        if config.schedule == Schedule::Wsd && iteration == config.decay_start() {
            checkpoints.save(training, journal).await?;
        }
        // Before the evaluation, which takes longer: a sample is the first thing to see.
        if training.position.sample_is_due(&training.inputs.config) {
            sample_for_comparison(training, journal, || commands.wants_stop()).await;
        }
        if evaluates {
            self.evaluate_and_save(commands).await?;
            self.recent.ended_evaluation(began.elapsed());
        }
        // Last, so that commands that arrived meanwhile do not wait for another update.
        self.apply_commands(commands).await
    }

    /// Evaluates and saves the last weights.
    async fn end(&mut self, commands: &mut CommandQueue<'_, impl Commands>) -> Result<StopReason> {
        if !self.training.position.was_evaluated() {
            self.evaluate_and_save(commands).await?;
        }
        self.checkpoints.write(&mut self.training, &mut self.journal).await?;
        // A command has ended the last evaluation early.
        if !self.training.position.was_evaluated()
            && let Some(reason) = self.apply_commands(commands).await?
        {
            return Ok(reason);
        }
        let Self { training, journal, .. } = self;
        sample_for_comparison(training, journal, || commands.wants_stop()).await;
        let best = Checkpoint::best_loss(&journal.folder.checkpoints());
        let warning = training.position.overfitting(best);
        if let Some(text) = warning.filter(|_| training.ranks.group.is_first()) {
            journal.warn(text);
        }
        Ok(StopReason::Finished)
    }

    /// Evaluates, and writes a checkpoint if the model is the best so far or every one is saved.
    async fn evaluate_and_save(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<()> {
        let Self { training, journal, checkpoints, .. } = self;
        let evaluated = evaluate(training, journal, || commands.wants_stop()).await?;
        let Some(val_loss) = evaluated else { return Ok(()) };
        let is_best = training.position.is_best(val_loss);
        let is_saved = is_best || training.inputs.config.always_save_checkpoint;
        if training.position.iteration > 0 && is_saved {
            checkpoints.save(training, journal).await?;
        }
        Ok(())
    }

    /// Pauses after the update that has begun then, if the device is to stay below a limit. Returns the pause.
    async fn cool(
        &mut self,
        began: Moment,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<Duration> {
        /// A stop waits no longer than this.
        const SLICE: Duration = Duration::from_millis(50);
        let Some(cooling) = &mut self.cooling else { return Ok(Duration::ZERO) };
        let OpenDevice { device, watchdog, .. } = &self.training.learner.device;
        gpu::finish(device).await?;
        cooling.observe(|| self.memory.latest_health());
        let pause = cooling.pause(began.elapsed());
        if let Some(text) = cooling.note() {
            self.journal.emit(Event::Note { text });
        }
        let _silence = watchdog.allow_silence(pause);
        let paused = Moment::now();
        while paused.elapsed() < pause && !commands.wants_stop() {
            std::thread::sleep(SLICE.min(pause.saturating_sub(paused.elapsed())));
        }
        Ok(paused.elapsed())
    }

    /// Waits for the device if that is due, and checks its memory.
    async fn wait_for_device(&mut self) -> Result<()> {
        let Training { steps, learner, .. } = &self.training;
        // An update in host memory has waited for the device already.
        let is_due = learner.sync_is_due() || self.memory.is_tight();
        if !steps.plan().offload_optimizer && !is_due {
            return Ok(());
        }
        gpu::finish(&learner.device.device).await?;
        learner.device.watchdog.heartbeat();
        let held = self.memory.read(&learner.device);
        let pressure = steps.limits.budget.zip(held);
        if let Some(pressure) =
            pressure.and_then(|(budget, held)| self.memory.check_budget(held, budget))
        {
            self.relieve(pressure).await?;
        }
        self.share_device().await
    }

    /// Reads the results of the last update and emits them. This is the only wait of a step.
    async fn log(&mut self, clock: &mut UpdateClock) -> Result<()> {
        let Self { training, journal, memory, .. } = self;
        let Some(results) = training.results(journal).await? else { return Ok(()) };
        let spent = clock.spent();
        let Training { inputs, steps, ranks, learner, position } = training;
        let network = std::mem::take(&mut ranks.network);
        let compute = spent.saturating_sub(network + clock.cooled);
        let compute_ms = clock.per_update(compute);
        let network_ms = clock.per_update(network);
        let seconds = spent.as_secs_f64() / clock.updates as f64;
        let tokens = inputs.config.global_batch() * u64::from(inputs.config.block_size.get());
        let vram_bytes = memory.read(&learner.device);
        let all_ranks = ranks.steps(RankStep { compute_ms, network_ms, vram_bytes })?;
        let scales_loss = inputs.mode.precision.scales_loss();
        let of_optimizer = learner.optimizer.take_time();
        let step = Step {
            iter: position.iteration - 1,
            loss: results.loss,
            lr: results.learning_rate,
            grad_norm: results.norm,
            loss_scale: scales_loss.then_some(results.loss_scale.scale),
            skipped: results.loss_scale.skipped,
            tokens,
            ms: seconds * 1e3,
            optimizer_ms: of_optimizer.map(|time| clock.per_update(time)),
            network_ms: Some(network_ms).filter(|_| !ranks.group.is_alone()),
            tokens_per_s: tokens as f64 / seconds,
            vram_bytes,
            vram_peak_bytes: vram_bytes.map(|_| memory.peak),
            vram_classes: vram_bytes.into_iter().flat_map(|_| steps.lasting_classes()).collect(),
            others_bytes: memory.others,
            health: memory.health,
            ranks: all_ranks,
        };
        if let Some((seconds, others)) = self.pace.count(compute, clock.updates) {
            self.learn_speed(seconds, others);
        }
        self.journal.emit(Event::Step(step));
        if let Some(time) = self.sleep.slept() {
            let text = format!("the computer was asleep for {}", duration(time));
            self.journal.emit(Event::Note { text });
        }
        if let Some(text) = self.memory.throttle_warning() {
            self.journal.warn(text);
        }
        self.share_device().await?;
        *clock = UpdateClock::start();
        Ok(())
    }

    /// Keeps the speed of the device for later estimates: an update takes `seconds` while other programs use
    /// this share of the CPUs. Warns once if the run takes long.
    fn learn_speed(&mut self, seconds: f64, others: f64) {
        let Self { training, journal, pace, .. } = self;
        let point = update_work(training).point(seconds).with_others(others);
        remember_speed(&training.learner.device.info, training.inputs.mode, &[point]);
        let Some(speed) = DeviceSpeed::measured(vec![point]) else { return };
        // A resumed run is no surprise.
        if std::mem::replace(&mut pace.is_told, true) || training.position.resumed_from.is_some() {
            return;
        }
        if let Some(text) = totals(training, Some(&speed)).about_time() {
            journal.warn(text);
        }
    }
}
