//! The training loop of a run: commands in, events out.

use std::collections::VecDeque;
use std::time::Duration;

use web_time::Instant;

use super::job::{Job, StepPlan};
use super::journal::Journal;
use super::learner::Learner;
use super::position::Position;
use super::rank_part::RankPart;
use super::setup::Origin;
use super::{Commands, Setup};
use crate::config::{self, Choice, Config, DecayLength, Schedule};
use crate::gpu::{self, OpenDevice, Watchdog};
use crate::protocol::{Command, Event, Failure, StopReason};
use crate::runs::checkpoint::{Checkpoint, Damaged};
use crate::text::percent;

mod budget;
mod control;
mod evaluation;
mod pace;
mod saving;
#[cfg(test)]
mod tests;
mod update;

use budget::MemoryMonitor;
use pace::PaceMonitor;
use saving::{MAX_CHECKPOINT_AGE, MAX_CHECKPOINT_AGE_AT_RISK};
use update::Clock;

pub struct Session<'a> {
    job: Job,
    steps: StepPlan,
    device: OpenDevice,
    ranks: RankPart,
    learner: Learner,
    position: Position,
    journal: Journal<'a>,
    memory: MemoryMonitor,
    pace: PaceMonitor,
    /// True if `max_time` plans the schedule before the first update.
    plans_schedule: bool,
    /// The updates in which the learning rate decays from the first update on, if the run is to end.
    decay: Option<DecayLength>,
    /// The time of the last checkpoint, or of the start.
    saved: Instant,
    /// Commands that arrived during an evaluation.
    queued: VecDeque<Command>,
}

/// The interval at which a step waits for the device: to know that it still answers, and to keep
/// its queue short.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The share of padding from which a run says so: half of its time is spent on it.
const MUCH_PADDING: f64 = 0.5;

impl<'a> Session<'a> {
    pub fn open(
        mut setup: Setup,
        device: OpenDevice,
        emit: &'a mut dyn FnMut(&Event),
    ) -> Result<Self, Failure> {
        gpu::size_pages(&device.device, setup.steps.forecast.page_bytes());
        let mut learner = Learner::open(&mut setup, &device.device)?;
        learner.optimizer.set_watchdog(&device.watchdog);
        let Setup { job, steps, mut ranks, origin, plans_schedule, decay, .. } = setup;
        let Origin { folder, loaded, warnings, .. } = origin;
        ranks.group.set_watchdog(&device.watchdog);
        // `eval_only` is for this process, not for a later one that resumes the run.
        let recorded = Config { eval_only: false, ..job.config.clone() };
        let unwritten = match folder.write_config(&recorded) {
            // A resumed run has a configuration already: a full disk need not end it here.
            Err(error) if loaded.is_some() => Some(error),
            written => written.map(|()| None)?,
        };
        let position = loaded
            .as_ref()
            .map_or_else(Position::default, |(checkpoint, _)| Position::of(&checkpoint.state));
        let mut session = Self {
            memory: MemoryMonitor::new(&device, steps.forecast.host_bytes),
            pace: PaceMonitor::default(),
            journal: Journal::new(folder, &device.watchdog, emit),
            job,
            steps,
            device,
            ranks,
            learner,
            position,
            plans_schedule,
            decay,
            saved: Instant::now(),
            queued: VecDeque::new(),
        };
        let continued = session.position.continued(&session.job.config);
        let logs = &session.job.config.log;
        for text in session.journal.folder.open_scalars(logs, continued) {
            session.journal.warn(text);
        }
        if let Some((checkpoint, damaged)) = loaded {
            session.warn_about(&checkpoint, damaged);
        }
        for text in warnings.into_iter().chain(session.about_conversations()) {
            session.journal.warn(text);
        }
        session.warn_about_settings();
        if let Some(error) = unwritten {
            session.journal.warn(format!("the settings of this run were not saved: {error}"));
        }
        Ok(session)
    }

    /// Returns a sentence about conversations that fit badly into windows.
    fn about_conversations(&self) -> Option<String> {
        let block_size = self.job.config.block_size.get();
        let windows = self.job.dataset.train.windows(block_size as usize);
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

    /// Warns about what differs from the run that wrote `checkpoint`.
    fn warn_about(&mut self, checkpoint: &Checkpoint, damaged: Vec<Damaged>) {
        let (journal, config) = (&mut self.journal, &self.job.config);
        for damaged in damaged {
            damaged.set_aside();
            let path = checkpoint.path.display();
            journal.warn(format!("{}; continuing from {path} instead", damaged.error));
        }
        let former = &checkpoint.state;
        if former.data != self.job.dataset.fingerprint {
            journal.warn("the data has changed since this run was started");
        }
        let (before, now) = (former.config.dtype, config.dtype);
        if before != now {
            journal.warn(format!(
                "this run computed in {before} and continues in {now}: its losses will differ slightly"
            ));
        }
        if let Some(text) = self.position.return_to_schedule(config, &former.config) {
            journal.warn(text);
        }
    }

    fn warn_about_settings(&mut self) {
        let config = &self.job.config;
        let wants_offload = config.offload_optimizer == Choice::True;
        if wants_offload && !self.steps.plan().offload_optimizer {
            let is_sharded = self.learner.optimizer.sharding.is_some();
            let place = if is_sharded { "with shard_optimizer" } else { "on the CPU" };
            self.journal.warn(format!("offload_optimizer=true has no effect {place}"));
        }
        if config.shard_optimizer && self.ranks.group.is_alone() {
            self.journal.warn("shard_optimizer has no effect in one process");
        }
    }

    /// Trains until the run is done or a command ends it.
    ///
    /// # Errors
    /// Any error that ends the run. Its checkpoints stay.
    pub async fn run(&mut self, commands: &mut impl Commands) -> Result<StopReason, Failure> {
        let result = if self.job.config.eval_only {
            self.announce();
            self.evaluate_only(commands).await
        } else {
            self.begin_and_train(commands).await
        };
        match &result {
            Ok(reason) => self.journal.emit(Event::Done {
                iter: self.position.iteration,
                best_val_loss: self.position.best_val_loss,
                seconds: self.job.started.elapsed().as_secs_f64(),
                reason: *reason,
            }),
            // Recorded only: the caller reports it.
            Err(error) => {
                let _ = self.journal.folder.record(&Event::Error(error.clone().into()));
            }
        }
        self.device.watchdog.pause();
        self.journal.folder.sync();
        result
    }

    /// Waits for the other ranks and ends the communication with them, after a run that ended without
    /// an error. The end of MPI would wait without a limit for a rank that still writes.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.ranks.group.collect(&())?;
        self.ranks.group.finish();
        Ok(())
    }

    fn announce(&mut self) {
        let config = &self.job.config;
        let padded = config::padded_vocab(self.learner.vocabulary());
        self.journal.emit(Event::Start {
            run: self.journal.folder.path.clone(),
            device: self.device.info.line(),
            config: Box::new(config.clone()),
            params: config.parameters(u64::from(padded)),
            resumed_from: self.position.resumed_from,
            entropy_floor: self.job.dataset.entropy_floor,
            ranks: self.ranks.division.ranks.clone(),
        });
        self.journal.emit(Event::Plan(Box::new(self.steps.forecast.clone())));
    }

    /// Settles the schedule, then trains.
    async fn begin_and_train(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<StopReason, Failure> {
        self.settle_shares().await?;
        let decides = self.ranks.group.is_first();
        let planned = if self.plans_schedule { self.plan_schedule().await? } else { None };
        self.announce();
        if let Some(text) = planned {
            self.journal.emit(Event::Note { text });
        }
        if decides {
            self.advise().await?;
        }
        if let Some(decay) = self.decay.take() {
            self.finish_after(decay).await?;
        }
        self.train(commands).await
    }

    async fn train(&mut self, commands: &mut impl Commands) -> Result<StopReason, Failure> {
        let mut clock = Clock::start();
        self.device.watchdog.heartbeat();
        self.learner.count_skipped().await;
        // A command may change the length of the run.
        while self.position.iteration < self.job.config.max_iters.get() {
            let aside = Instant::now();
            commands.yield_now().await;
            if let Some(reason) = self.between_updates(commands).await? {
                return Ok(reason);
            }
            clock.paused += aside.elapsed();

            self.update().await?;
            clock.iterations += 1;
            // An update in host memory has waited for the device already.
            if self.steps.plan().offload_optimizer || sync_is_due(&self.device.watchdog) {
                gpu::finish(&self.device.device).await?;
                self.device.watchdog.heartbeat();
                self.keep_within_budget().await?;
            }
            let aside = Instant::now();
            self.save_if_older(MAX_CHECKPOINT_AGE).await?;
            clock.paused += aside.elapsed();
            let log_interval = self.job.config.log_interval.get();
            if (self.position.iteration - 1).is_multiple_of(log_interval) {
                self.log(&mut clock).await?;
            }
        }
        if !self.position.was_evaluated() {
            self.evaluate_and_save(commands).await?;
        }
        self.write_checkpoint().await?;
        // A command has ended the last evaluation early.
        if !self.position.was_evaluated()
            && let Some(reason) = self.apply_commands(commands).await?
        {
            return Ok(reason);
        }
        self.sample_for_comparison().await;
        self.warn_of_overfitting();
        Ok(StopReason::Finished)
    }

    /// Does what is due before the next update. Returns a reason to end the run, if any.
    async fn between_updates(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<Option<StopReason>, Failure> {
        let config = &self.job.config;
        let evaluates =
            self.position.is_due(config.eval_interval.get()) && !self.position.was_evaluated();
        if evaluates {
            self.save_if_older(MAX_CHECKPOINT_AGE_AT_RISK).await?;
        }
        // From here a run can also be continued with a longer schedule.
        let config = &self.job.config;
        if config.schedule == Schedule::Wsd && self.position.iteration == config.decay_start() {
            self.save().await?;
        }
        // Before the evaluation, which takes longer: a text is the first thing to see.
        if self.sample_is_due(evaluates) {
            self.sample_for_comparison().await;
        }
        if evaluates {
            self.evaluate_and_save(commands).await?;
        }
        // Last, so that commands that arrived meanwhile do not wait for another update.
        let reason = self.apply_commands(commands).await?;
        if reason.is_some() {
            self.write_checkpoint().await?;
        }
        Ok(reason)
    }
}

/// Returns true if it is time to wait for the device.
fn sync_is_due(watchdog: &Watchdog) -> bool {
    watchdog.silence().is_some_and(|silence| silence >= SYNC_INTERVAL)
}
