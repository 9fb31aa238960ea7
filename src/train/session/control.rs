//! Changes to a session while it trains: by commands, and for lack of memory.

use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Session;
use crate::config::{Budget, DecayLength, Schedule};
use crate::gpu;
use crate::plan::{self, Forecast, OtherUse, PlanError};
use crate::protocol::{Command, Event, Exit, ReplanReason, Setting, StopReason, Waiting};
use crate::runs::known_speed;
use crate::text::{bytes, duration, percent};
use crate::train::checkpoint_writer::MAX_AGE_AT_RISK;
use crate::train::clock::Moment;
use crate::train::commands::CommandQueue;
use crate::train::memory::MemoryPressure;
use crate::train::room::Change;
use crate::train::sampling::sample;
use crate::train::training::Training;
use crate::train::{Commands, Result};

/// What every rank does before its next update.
#[derive(Serialize, Deserialize)]
enum Due {
    Command(Command),
    /// The run ends after so many more updates.
    Retiming(NonZeroU64),
}

impl Session<'_> {
    /// Applies the commands that have arrived, and waits while the run is paused. Returns a reason
    /// to end the run, if any.
    pub(super) async fn apply_commands(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<Option<StopReason>> {
        let mut paused = false;
        let mut announced = false;
        loop {
            let iter = self.training.position.iteration;
            let (due, is_late) = self.next_command(commands)?;
            if is_late {
                return Ok(Some(StopReason::MaxTime));
            }
            let Some(due) = due else {
                if paused {
                    if !std::mem::replace(&mut announced, true) {
                        self.journal.emit(Event::Paused { iter });
                    }
                    let watchdog = &self.training.learner.device.watchdog;
                    let _silence = watchdog.allow_silence(Duration::MAX);
                    let began = Moment::now();
                    commands.idle().await;
                    self.training.inputs.clock.leave_out(began.elapsed());
                    continue;
                }
                if announced {
                    self.journal.emit(Event::Resumed { iter });
                }
                return Ok(None);
            };
            let command = match due {
                Due::Command(command) => command,
                Due::Retiming(left) => {
                    self.retime(left).await?;
                    continue;
                }
            };
            let Self { training, journal, checkpoints, .. } = self;
            match command {
                Command::Pause => paused = true,
                Command::Resume => paused = false,
                Command::Stop => return Ok(Some(StopReason::Stopped)),
                Command::StandBy => return Ok(Some(StopReason::StandBy)),
                Command::Finish { decay } => self.finish_after(decay).await?,
                Command::Checkpoint => checkpoints.save(training, journal).await?,
                Command::Sample { prompt, probabilities } => {
                    let seed = training.inputs.config.seed.wrapping_add(iter);
                    let stop = || commands.wants_stop();
                    sample(training, journal, &prompt, seed, probabilities, stop).await;
                }
                Command::Set(setting) => self.set(setting).await?,
            }
        }
    }

    /// Returns what is due next by rank 0, and true once the run has used up its time by the clock of
    /// rank 0: all ranks apply the same commands between the same two updates. A signal may stop any rank, which
    /// stops all.
    fn next_command(
        &mut self,
        commands: &mut CommandQueue<'_, impl Commands>,
    ) -> Result<(Option<Due>, bool)> {
        let is_late = self.training.inputs.is_late();
        let command = if self.training.ranks.group.is_first() && !is_late {
            let retiming = self.retiming().map(Due::Retiming);
            retiming.or_else(|| commands.next().map(Due::Command))
        } else {
            None
        };
        let ranks = &mut self.training.ranks;
        if ranks.group.is_alone() {
            return Ok((command, is_late));
        }
        let stops = !ranks.group.is_first() && commands.wants_stop();
        let all = ranks.group.collect(&(command, is_late, stops))?;
        let stops = all.iter().any(|(.., stops)| *stops);
        let (command, is_late, _) = all.into_iter().next().unwrap_or_default();
        Ok((if stops { Some(Due::Command(Command::Stop)) } else { command }, is_late))
    }

    /// Returns the number of updates that the run is still to make, if its time allows more or fewer than planned
    /// and its schedule can follow.
    fn retiming(&mut self) -> Option<NonZeroU64> {
        let Self { training: Training { inputs, position, .. }, recent, .. } = self;
        let config = &inputs.config;
        let follows = config.decay_lr && config.schedule == Schedule::Wsd;
        let limit = inputs.time_limit().filter(|_| follows)?;
        // A run that was planned far too short would be over before its speed is known.
        let must = config.fill_time && position.iteration == config.decay_start();
        let possible = recent.updates_left(inputs.clock.used(), position.iteration, limit, must)?;
        let most = plan::most_updates(config, inputs.data_size());
        position.retiming(config, possible, most)
    }

    /// Lets the run end after `left` more updates.
    async fn retime(&mut self, left: NonZeroU64) -> Result<()> {
        let Self { training, journal, checkpoints, .. } = self;
        let iter = training.position.iteration;
        let former = &training.inputs.config;
        let config = former.retimed(iter, left);
        if config.is_decaying(iter) && !former.is_decaying(iter) {
            // From here the run can also be continued without the decay.
            checkpoints.save(training, journal).await?;
        }
        journal.folder.write_config(&config)?;
        training.inputs.config = config.clone();
        journal.emit(Event::Retimed { iter, config: Box::new(config) });
        Ok(())
    }

    /// Decays the learning rate over the next updates, after which the run ends. The checkpoint that it
    /// writes first stays, so that the run can also continue without the decay.
    pub(super) async fn finish_after(&mut self, decay: DecayLength) -> Result<()> {
        let Self { training, journal, checkpoints, .. } = self;
        let Training { inputs, position, .. } = &*training;
        let iter = position.iteration;
        if inputs.config.is_decaying(iter) && position.set_rate.is_none() {
            let end = inputs.config.max_iters;
            journal.warn(format!("the run is already finishing: it ends at iteration {end}"));
            return Ok(());
        }
        let rate = position.learning_rate(&inputs.config);
        let ending = inputs.config.ending_after(iter, rate, decay.updates(iter));
        checkpoints.save(training, journal).await?;
        training.position.set_rate = None;
        journal.folder.write_config(&ending)?;
        let config = Box::new(ending.clone());
        training.inputs.config = ending;
        journal.emit(Event::Finishing { iter, config });
        Ok(())
    }

    async fn set(&mut self, setting: Setting) -> Result<()> {
        let Training { inputs, position, .. } = &mut self.training;
        match setting {
            Setting::LearningRate(rate) => position.set_rate = Some(rate),
            Setting::EvalInterval(interval) => inputs.config.eval_interval = interval,
            Setting::LogInterval(interval) => inputs.config.log_interval = interval,
            Setting::VramBudget(bytes) => self.set_budget(bytes.get()).await?,
            // A setting of the process that reads stdin, which has applied it.
            Setting::StopOnClose(_) => {}
        }
        Ok(())
    }

    /// Changes the budget, and the plan if it no longer fits.
    pub(super) async fn set_budget(&mut self, budget: u64) -> Result<()> {
        let Self { training, journal, .. } = self;
        let config = training.own_config();
        let Training { inputs, steps, learner, .. } = training;
        let limits = plan::Limits { budget: Some(budget), ..steps.limits };
        let speed = known_speed(&learner.device.info, inputs.mode);
        let vocab = learner.vocabulary();
        let whole = steps.wanted.as_ref().map_or(steps.plan(), |(_, whole)| &whole.plan);
        let reason = match plan::replan(&config, whole, vocab, &limits, speed.as_ref()) {
            Ok(mut forecast) => {
                let less = steps.limits;
                let is_shrunk = steps.wanted.take().is_some();
                steps.limits = limits;
                // Other programs still need what they need: the budget is for the plan that the run returns to.
                if is_shrunk && less.budget.is_some_and(|less| less < forecast.predicted_bytes) {
                    steps.wanted = Some((limits, Box::new(forecast)));
                    (steps.limits, forecast) = (less, steps.forecast.clone());
                }
                inputs.config.vram_budget = Budget::Bytes(budget);
                if let Err(error) = journal.folder.write_config(&inputs.config) {
                    journal.warn(format!("the new budget was not saved: {error}"));
                }
                let text = format!("the budget is now {}", bytes(budget));
                return self.replan(text, forecast).await;
            }
            Err(PlanError::TooBig { least, .. }) if least.predicted_bytes > budget => {
                let least = bytes(least.predicted_bytes);
                format!("the run needs at least {least}, more than {}", bytes(budget))
            }
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                format!("{error}{hint}")
            }
        };
        journal.warn(format!("the budget is unchanged: {reason}"));
        Ok(())
    }

    /// Takes the memory that other programs need from the plan, or gives it back to the plan. A run that cannot do with
    /// less, or whose device others need, is to make way.
    pub(super) async fn share_device(&mut self) -> Result<()> {
        let Self { training: Training { steps, .. }, memory, makes_way, .. } = self;
        if self.way.is_some() {
            return Ok(());
        }
        let wanted = steps.wanted.as_ref().map(|(_, forecast)| forecast.predicted_bytes);
        match memory.change(wanted) {
            Some(Change::Less(most)) => return self.shrink(most).await,
            Some(Change::More) => {
                let Some((limits, forecast)) = steps.wanted.take() else { return Ok(()) };
                steps.limits = limits;
                let text = "other programs have given memory of the device back".into();
                return self.replan(text, *forecast).await;
            }
            None => {}
        }
        if let Some(OtherUse { share, program }) = memory.rivals().filter(|_| *makes_way) {
            let share = percent(share, 0);
            let text = format!("other programs, above all {program}, use {share} of the GPU");
            let least = self.least_bytes();
            self.wait_for(text, "they have hardly used it", least);
        }
        Ok(())
    }

    /// Changes to a plan with at most `most` bytes, if there is one.
    async fn shrink(&mut self, most: u64) -> Result<()> {
        let Self { training, memory, .. } = self;
        let config = training.own_config();
        let Training { inputs, steps, learner, .. } = training;
        let held = memory.room.latest().others();
        let text = format!("other programs use {} of the device's memory", bytes(held));
        let limits = plan::Limits { budget: Some(most), ..steps.limits };
        let speed = known_speed(&learner.device.info, inputs.mode);
        let vocab = learner.vocabulary();
        let least = match plan::replan(&config, steps.plan(), vocab, &limits, speed.as_ref()) {
            Ok(forecast) if forecast.plan != *steps.plan() => {
                let before = std::mem::replace(&mut steps.limits, limits);
                let forecast_before = Box::new(steps.forecast.clone());
                steps.wanted.get_or_insert((before, forecast_before));
                return self.replan(text, forecast).await;
            }
            // The plan fits, but its pools hold more.
            Ok(_) if !std::mem::replace(&mut memory.has_released, true) => {
                gpu::release_unused(&learner.device.device);
                memory.room.change_plan();
                return Ok(());
            }
            Err(PlanError::TooBig { least, .. }) => least.predicted_bytes,
            Ok(_) | Err(_) => steps.forecast.predicted_bytes,
        };
        if self.makes_way {
            self.wait_for(text, "", least);
        } else if !std::mem::replace(&mut self.is_told_of_others, true) {
            self.journal.warn(format!("{text}, and the steps of the run cannot be split smaller"));
        }
        Ok(())
    }

    /// Returns the bytes of the smallest plan that the run can change to.
    fn least_bytes(&self) -> u64 {
        let Training { steps, learner, .. } = &self.training;
        let limits = plan::Limits { budget: Some(0), ..steps.limits };
        let (config, vocab) = (self.training.own_config(), learner.vocabulary());
        match plan::replan(&config, steps.plan(), vocab, &limits, None) {
            Err(PlanError::TooBig { least, .. }) => least.predicted_bytes,
            _ => steps.forecast.predicted_bytes,
        }
    }

    /// Lets the run make way until a plan of this many bytes has had room, and what else is said, for the quiet time.
    fn wait_for(&mut self, reason: String, what: &str, least: u64) {
        let device = &self.training.learner.device.info;
        let context =
            if device.kind.shares_memory() { 0 } else { device.id.backend.context_bytes() };
        let free_bytes = self.memory.room.need(least + context);
        let room = format!("{} have been free", bytes(free_bytes));
        let what = if what.is_empty() { room } else { format!("{what} and {room}") };
        let quiet = duration(self.training.inputs.config.quiet_time.unwrap_or_default());
        let text = format!("{reason}; the run continues when {what} for {quiet}");
        self.way = Some(Waiting { text, free_bytes: Some(free_bytes), ..Waiting::default() });
    }

    /// Ends this process of the run, unless its checkpoint cannot be written.
    pub(super) async fn make_way(&mut self) -> Result<Option<StopReason>> {
        let Self { training, journal, checkpoints, way, makes_way, .. } = self;
        if let Err(error) = checkpoints.write(training, journal).await {
            if error.exit != Exit::Failure {
                return Err(error);
            }
            journal.warn(format!("the run cannot make way for other programs: {error}"));
            (*way, *makes_way) = (None, false);
            return Ok(None);
        }
        if let Some(waiting) = way.take() {
            journal.emit(Event::Waiting(waiting));
        }
        Ok(Some(StopReason::StandBy))
    }

    /// Returns free pages to the driver, and splits steps smaller if that is not enough.
    pub(super) async fn relieve(&mut self, pressure: MemoryPressure) -> Result<()> {
        let Self { training, journal, .. } = self;
        let Training { steps, learner, .. } = &*training;
        gpu::release_unused(&learner.device.device);
        let MemoryPressure::Split { text, warns } = pressure else { return Ok(()) };
        let Some(plan) = plan::smaller(steps.plan()) else {
            if warns {
                journal.warn(format!("{text}, and its steps cannot be split smaller"));
            }
            return Ok(());
        };
        let config = training.own_config();
        let forecast = Forecast::of(plan, &config, learner.vocabulary(), &steps.limits);
        self.replan(text, forecast).await
    }

    pub(super) async fn replan(&mut self, text: String, forecast: Forecast) -> Result<()> {
        let Self { training, journal, checkpoints, memory, .. } = self;
        let from = training.steps.plan().clone();
        if from != forecast.plan {
            // Each rank has its own budget, so the others may not be here to save their states.
            if training.learner.optimizer.sharding.is_none() {
                checkpoints.save_if_older(MAX_AGE_AT_RISK, training, journal).await?;
            }
            let to = Some(forecast.plan.clone());
            let reason = ReplanReason::Budget;
            journal.emit(Event::Replan { reason, text, from: Some(from), to });
        }
        journal.emit(Event::Plan(Box::new(forecast.clone())));
        training.steps.change(forecast);
        memory.change_plan();
        // Frees empty pages of the former size.
        gpu::release_unused(&training.learner.device.device);
        Ok(())
    }
}
