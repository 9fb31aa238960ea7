//! The pace of a run: the speed of its device, and a schedule that ends within `max_time`.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use web_time::Instant;

use super::Session;
use crate::config::{Config, DecayLength, Schedule, padded_vocab};
use crate::gpu;
use crate::model::WeightGradients;
use crate::plan::{self, DeviceSpeed, Pace, SpeedPoint, Totals, Work};
use crate::protocol::{Command, Failure};
use crate::ranks::within_limit;
use crate::runs::{known_speed, remember_speed};
use crate::train::micro_batches::MicroBatches;

/// The updates since the speed of a run was last kept, and their time.
#[derive(Default)]
pub(super) struct PaceMonitor {
    /// True after the first log interval, which compiles the kernels.
    is_warm: bool,
    time: Duration,
    updates: u64,
    kept: u32,
    /// True once the user was warned that the run takes long, or no warning is needed.
    is_told: bool,
}

impl PaceMonitor {
    /// Counts the updates of a log interval. Returns the seconds of an update when they are to be kept.
    fn count(&mut self, time: Duration, updates: u64) -> Option<f64> {
        if !std::mem::replace(&mut self.is_warm, true) {
            return None;
        }
        self.time += time;
        self.updates += updates;
        let next = KNOWN_AFTER.saturating_mul(2u32.saturating_pow(self.kept));
        if self.time < next || self.updates < KNOWN_UPDATES {
            return None;
        }
        let seconds = self.time.as_secs_f64() / self.updates as f64;
        (self.time, self.updates) = (Duration::ZERO, 0);
        self.kept += 1;
        Some(seconds)
    }
}

/// The settings of a shortened schedule, on which all ranks agree.
#[derive(Serialize, Deserialize)]
struct PlannedLength {
    max_iters: NonZeroU64,
    warmup_iters: u64,
    lr_decay_iters: u64,
    eval_interval: NonZeroU64,
    eval_iters: NonZeroU32,
}

impl PlannedLength {
    fn of(config: &Config) -> Self {
        let Config { max_iters, warmup_iters, lr_decay_iters, eval_interval, eval_iters, .. } =
            *config;
        Self { max_iters, warmup_iters, lr_decay_iters, eval_interval, eval_iters }
    }

    fn apply(self, config: &mut Config) {
        let Self { max_iters, warmup_iters, lr_decay_iters, eval_interval, eval_iters } = self;
        (config.max_iters, config.warmup_iters) = (max_iters, warmup_iters);
        (config.lr_decay_iters, config.eval_interval) = (lr_decay_iters, eval_interval);
        config.eval_iters = eval_iters;
    }
}

/// The time and the updates after which the speed of a run is first known. Then it is kept after
/// twice the time, and so on: other programs may have slowed the first updates down.
const KNOWN_AFTER: Duration = Duration::from_secs(5);
const KNOWN_UPDATES: u64 = 3;

/// The time of a measurement before a run, without its first micro-batch, and the most micro-batches
/// in it.
const MEASUREMENT: Duration = Duration::from_secs(1);
const MAX_MICRO_BATCHES: u32 = 8;

/// A first micro-batch of this length is measured itself: compiling its kernels takes less.
const LONG_MICRO_BATCH: Duration = Duration::from_secs(20);

/// The operations of a run that is measured before it starts: two days on a small CPU, minutes on a
/// GPU, where a measurement of a second or two does not count.
const MUCH_WORK: f64 = 1e16;

/// The most values of the sum that measures the network: 4 MiB, a third of a second at 100 Mbit/s.
const SUMMED_VALUES: u64 = 1 << 20;

impl Session<'_> {
    /// Shortens the schedule so that it ends within `max_time`. Returns what was planned, if
    /// anything was, as text.
    ///
    /// Measures gradients of this run's first micro-batch, on all ranks at the same time, which changes
    /// no state of the run. Rank 0 plans. The planned numbers go into the configuration of the run, so
    /// that a resumed run keeps them.
    pub(super) async fn plan_schedule(&mut self) -> Result<Option<String>, Failure> {
        let Some(limit) = self.job.config.max_time else { return Ok(None) };
        let point = self.measure_micro_batch().await?;
        let pace = self.pace_of_ranks(DeviceSpeed::measured(vec![point]))?;
        let left = limit.saturating_sub(self.job.started.elapsed());
        let decides = self.ranks.group.is_first();
        let config = &mut self.job.config;
        let planned = pace.filter(|_| decides).and_then(|pace| pace.within(config, left));
        let updates = config.max_iters;
        if let Some(planned) = planned {
            *config = planned;
        }
        let own = PlannedLength::of(config);
        self.ranks.group.share(own)?.apply(config);
        if config.max_iters == updates {
            return Ok(None);
        }
        self.journal.folder.write_config(config)?;
        Ok(Some(format!(
            "{} updates fit into max_time = {}, instead of {updates}; the first {} are warmup",
            config.max_iters,
            humantime::format_duration(limit),
            config.warmup_iters,
        )))
    }

    /// Returns the pace of the run on all ranks, where this one has a device of `speed`. Each has its
    /// part of an update and of an evaluation, and all wait for the slowest, then for the network.
    fn pace_of_ranks(&mut self, speed: Option<DeviceSpeed>) -> Result<Option<Pace>, Failure> {
        let (config, vocab) = (&self.job.config, self.learner.vocabulary());
        let data = Some(self.job.data_size());
        let own = speed.map(|speed| Pace::new(config, vocab, self.steps.plan(), data, &speed));
        if self.ranks.group.is_alone() {
            return Ok(own);
        }
        let share = self.ranks.share(config);
        let [update, evaluation] =
            own.as_ref().map_or([0.0; 2], |own| [own.update, share * own.evaluation]);
        let slowest = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
        let update = slowest(self.ranks.measurements(update)?);
        let evaluation = slowest(self.ranks.measurements(evaluation)?);
        let update = update + self.network_seconds()?;
        let Some(mut pace) = own else { return Ok(None) };
        (pace.update, pace.evaluation) = (update, evaluation);
        Ok(Some(pace))
    }

    /// Returns the seconds that the network takes in an update, from the time of a small sum, as
    /// [`plan::RanksEstimate`] has them from the speed of the network.
    fn network_seconds(&mut self) -> Result<f64, Failure> {
        let weights = self.job.config.parameters(padded_vocab(self.learner.vocabulary()).into());
        let count = weights.min(SUMMED_VALUES);
        let mut values = vec![1.0; count as usize];
        let mut seconds = 0.0;
        // The first sum connects the ranks.
        for _ in 0..2 {
            let begun = Instant::now();
            self.ranks.group.sum(&mut values)?;
            seconds = begun.elapsed().as_secs_f64();
        }
        // The weights of a sharded optimizer travel half as far as the gradients.
        let rounds = if self.job.config.shard_optimizer { 1.5 } else { 1.0 };
        let sums = weights as f64 / count as f64;
        Ok(rounds * sums * seconds)
    }

    /// Divides the global batch in proportion to the speeds of the ranks, which all measure at the same
    /// time, unless their shares are known. Records the shares.
    pub(super) async fn settle_shares(&mut self) -> Result<(), Failure> {
        let run = self.journal.folder.path.clone();
        if self.ranks.division.is_unmeasured {
            // Not a speed to keep: ranks on one machine slow each other down.
            let time = self.mean_micro_batch().await?;
            let own = self.steps.plan().micro_batch as f64 / time.as_secs_f64().max(1e-9);
            let speeds = self.ranks.measurements(own)?;
            self.ranks.division.settle(&self.job.config, &speeds)?;
            let own = self.ranks.own_config(&self.job.config);
            let own = within_limit(own, &run, self.ranks.group.rank());
            let speed = known_speed(&self.device.info, self.job.mode);
            let (plan, vocab) = (self.steps.plan(), self.learner.vocabulary());
            let limits = &self.steps.limits;
            self.steps.change(plan::replan(&own, plan, vocab, limits, speed.as_ref())?);
        }
        if self.ranks.group.is_first() && !self.ranks.group.is_alone() {
            self.ranks.division.record(&run);
        }
        Ok(())
    }

    /// Measures the gradients of a micro-batch, and keeps their speed, but not of ranks: they slow each
    /// other down if they are on one machine.
    async fn measure_micro_batch(&self) -> Result<SpeedPoint, Failure> {
        let time = self.mean_micro_batch().await?;
        let vocab = self.learner.vocabulary();
        let work = Work::micro_batch(&self.job.config, vocab, self.steps.plan());
        let point = work.point(time.as_secs_f64());
        if self.ranks.group.is_alone() {
            remember_speed(&self.device.info, self.job.mode, &[point]);
        }
        Ok(point)
    }

    /// Returns the time of the gradients of a micro-batch, once its kernels are compiled.
    async fn mean_micro_batch(&self) -> Result<Duration, Failure> {
        self.device.watchdog.heartbeat();
        let mut time = self.time_micro_batch().await?;
        if time < LONG_MICRO_BATCH {
            let start = Instant::now();
            let mut count = 0;
            while count < MAX_MICRO_BATCHES && start.elapsed() < MEASUREMENT {
                self.time_micro_batch().await?;
                count += 1;
            }
            time = start.elapsed() / count.max(1);
        }
        Ok(time)
    }

    async fn time_micro_batch(&self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut grads = WeightGradients::default().scaled(self.learner.optimizer.loss_scale());
        let (plan, iteration) = (self.steps.plan(), self.position.iteration);
        let micro_batches = MicroBatches { job: &self.job, plan, ranks: &self.ranks, iteration };
        let counted = micro_batches.counted()?;
        micro_batches.add_gradients(self.learner.model(), 0, counted, &mut grads, None)?;
        gpu::finish(&self.device.device).await?;
        self.device.watchdog.restart();
        Ok(start.elapsed())
    }

    /// Returns the command to decay the learning rate from now on, if `wsd` would otherwise still be constant
    /// when `max_time` is over, because the run is slower than planned.
    pub(super) fn due_decay(&self) -> Option<Command> {
        let (config, iter) = (&self.job.config, self.position.iteration);
        let limit =
            config.max_time.filter(|_| config.decay_lr && config.schedule == Schedule::Wsd)?;
        let elapsed = self.job.started.elapsed();
        let left = limit.saturating_sub(elapsed);
        if config.is_decaying(iter) || left > limit.mul_f64(config.decay_fraction) {
            return None;
        }
        let made = iter - self.position.resumed_from.unwrap_or(0);
        let possible = made as f64 * left.as_secs_f64() / elapsed.as_secs_f64();
        let is_late = possible < (config.max_iters.get() - iter) as f64;
        let updates = NonZeroU64::new((0.9 * possible) as u64).filter(|_| is_late)?;
        Some(Command::Finish { decay: DecayLength::Updates(updates) })
    }

    fn work(&self) -> Work {
        Work::update(&self.job.config, self.learner.vocabulary(), self.steps.plan())
    }

    /// Warns before a new run that would disappoint, as [`Totals::advice`] has it. If the speed of the device
    /// is unknown, measures it for a run that may take long.
    pub(super) async fn advise(&mut self) -> Result<(), Failure> {
        if self.position.resumed_from.is_some() {
            return Ok(());
        }
        let mut speed = known_speed(&self.device.info, self.job.mode);
        let flop = self.work().flop * self.job.config.max_iters.get() as f64;
        if speed.is_none() && flop >= MUCH_WORK && self.job.config.max_time.is_none() {
            speed = DeviceSpeed::measured(vec![self.measure_micro_batch().await?]);
        }
        self.pace.is_told = speed.is_some();
        let totals = self.totals(speed.as_ref());
        let free = crate::disk::free_space(&self.journal.folder.path);
        let about_disk = free.and_then(|free| totals.about_disk(free));
        for text in totals.advice(&self.job.config).into_iter().chain(about_disk) {
            self.journal.warn(text);
        }
        Ok(())
    }

    fn totals(&self, speed: Option<&DeviceSpeed>) -> Totals {
        let (config, vocab) = (&self.job.config, self.learner.vocabulary());
        let data = Some(self.job.data_size());
        // A limit is planned for.
        let speed = speed.filter(|_| config.max_time.is_none());
        Totals::new(config, vocab, self.steps.plan(), data, speed, false)
    }

    fn warn_of_time(&mut self, speed: &DeviceSpeed) {
        // A resumed run is no surprise.
        let is_told = std::mem::replace(&mut self.pace.is_told, true);
        if is_told || self.position.resumed_from.is_some() {
            return;
        }
        if let Some(text) = self.totals(Some(speed)).about_time() {
            self.journal.warn(text);
        }
    }

    /// Counts the updates of a log interval, and keeps their speed for later estimates.
    pub(super) fn count_pace(&mut self, time: Duration, updates: u64) {
        let Some(seconds) = self.pace.count(time, updates) else { return };
        let point = self.work().point(seconds);
        remember_speed(&self.device.info, self.job.mode, &[point]);
        if let Some(speed) = DeviceSpeed::measured(vec![point]) {
            self.warn_of_time(&speed);
        }
    }
}
