//! The pace of a run: the speed of its device, and a schedule that ends within `max_time`.

use std::time::Duration;

use web_time::Instant;

use super::Session;
use super::together::waiting;
use super::update::MicroBatches;
use crate::config::padded_vocab;
use crate::gpu;
use crate::model::WeightGradients;
use crate::plan::{self, DataSize, DeviceSpeed, Pace, SpeedPoint, Totals, Work};
use crate::ranks::within_limit;
use crate::runs::{known_speed, remember_speed};
use crate::train::TrainError;

/// The updates since the speed of a run was last kept, and their time.
pub(super) struct PaceMonitor {
    /// True after the first log interval, which compiles the kernels.
    is_warm: bool,
    time: Duration,
    updates: u64,
    /// The time after which their speed is kept.
    next: Duration,
    /// True once the user was told that the run takes long, or that question was settled.
    is_told: bool,
}

impl Default for PaceMonitor {
    fn default() -> Self {
        let (time, next) = (Duration::ZERO, KNOWN_AFTER);
        Self { is_warm: false, time, updates: 0, next, is_told: false }
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
    pub(super) async fn plan_schedule(&mut self) -> Result<Option<String>, TrainError> {
        let Some(limit) = self.config.max_time else { return Ok(None) };
        let point = self.measure_micro_batch().await?;
        let pace = self.pace_of_ranks(DeviceSpeed::measured(vec![point]))?;
        let left = limit.saturating_sub(self.started.elapsed());
        let decides = self.group.is_first();
        let planned = pace.filter(|_| decides).and_then(|pace| pace.within(&self.config, left));
        let before = self.config.clone();
        self.config = planned.unwrap_or_else(|| before.clone());
        self.share_schedule()?;
        if self.config.max_iters == before.max_iters {
            return Ok(None);
        }
        self.folder.write_config(&self.config)?;
        Ok(Some(format!(
            "max_time = {}: planned {} updates instead of {}, with {} of warmup, so that the \
             schedule ends in time",
            humantime::format_duration(limit),
            self.config.max_iters,
            before.max_iters,
            self.config.warmup_iters,
        )))
    }

    /// Returns the pace of the run on all ranks, where this one has a device of `speed`: each has its part
    /// of an update and of an evaluation, of which the slowest counts, and then the network.
    fn pace_of_ranks(&mut self, speed: Option<DeviceSpeed>) -> Result<Option<Pace>, TrainError> {
        let (plan, vocab, data) = (&self.forecast.plan, self.vocabulary(), self.data_size());
        let own = speed.map(|speed| Pace::new(&self.config, vocab, plan, Some(data), &speed));
        if self.group.is_alone() {
            return Ok(own);
        }
        let sequences = self.division.shares.sequences(self.group.rank());
        let part = sequences as f64 / self.config.global_batch() as f64;
        let [update, evaluation] =
            own.as_ref().map_or([0.0; 2], |own| [own.update, part * own.evaluation]);
        let slowest = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
        let update = slowest(self.measured_by_ranks(update)?);
        let evaluation = slowest(self.measured_by_ranks(evaluation)?);
        let update = update + self.network_seconds()?;
        let Some(mut pace) = own else { return Ok(None) };
        (pace.update, pace.evaluation) = (update, evaluation);
        Ok(Some(pace))
    }

    /// Returns the seconds that the network takes in an update, from those of a small sum, as
    /// [`plan::RanksEstimate`] has it from the speed of the network.
    fn network_seconds(&mut self) -> Result<f64, TrainError> {
        let weights = self.config.parameters(padded_vocab(self.vocabulary()).into());
        let count = weights.min(SUMMED_VALUES);
        let mut values = vec![1.0; count as usize];
        let mut seconds = 0.0;
        // The first sum connects the ranks.
        for _ in 0..2 {
            let begun = Instant::now();
            let (group, wire) = (&mut self.group, self.wire);
            waiting(&self.device.watchdog, || group.sum(&mut values, wire))?;
            seconds = begun.elapsed().as_secs_f64();
        }
        // The weights of a sharded optimizer travel half as far as the gradients.
        let rounds = if self.config.shard_optimizer { 1.5 } else { 1.0 };
        let sums = weights as f64 / count as f64;
        Ok(rounds * sums * seconds / self.config.sync_every.get() as f64)
    }

    /// Divides the global batch in proportion to the speeds of the ranks, which all measure at the same
    /// time, unless their shares are known. Records the shares.
    pub(super) async fn settle_shares(&mut self) -> Result<(), TrainError> {
        if self.division.is_unmeasured {
            // Not a speed to keep: ranks on one machine slow each other down.
            let time = self.mean_micro_batch().await?;
            let own = self.forecast.plan.micro_batch as f64 / time.as_secs_f64().max(1e-9);
            let speeds = self.measured_by_ranks(own)?;
            self.division.settle(&self.config, &speeds)?;
            let own = within_limit(self.own_config(), self.folder.path(), self.group.rank());
            let speed = known_speed(&self.device.info, self.mode);
            let (plan, vocab) = (&self.forecast.plan, self.vocabulary());
            self.forecast = plan::replan(&own, plan, vocab, &self.limits, speed.as_ref())?;
            self.plan_limit.set(&self.forecast.plan);
        }
        if self.group.is_first() && !self.group.is_alone() {
            self.division.record(self.folder.path());
        }
        Ok(())
    }

    /// Measures the gradients of a micro-batch, and keeps their speed, but not of ranks: they slow each
    /// other down if they are on one machine.
    async fn measure_micro_batch(&self) -> Result<SpeedPoint, TrainError> {
        let time = self.mean_micro_batch().await?;
        let work = Work::micro_batch(&self.config, self.vocabulary(), &self.forecast.plan);
        let point = work.point(time.as_secs_f64());
        if self.group.is_alone() {
            remember_speed(&self.device.info, self.mode, &[point]);
        }
        Ok(point)
    }

    /// Returns the time of the gradients of a micro-batch, once its kernels are compiled.
    async fn mean_micro_batch(&self) -> Result<Duration, TrainError> {
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

    async fn time_micro_batch(&self) -> Result<Duration, TrainError> {
        let start = Instant::now();
        let mut grads = WeightGradients::default().scaled(self.optimizer.loss_scale());
        let micro_batches = MicroBatches {
            config: &self.config,
            dataset: &self.dataset,
            plan: &self.forecast.plan,
            mode: self.mode,
            iteration: self.iteration,
            first_sequence: self.first_sequence(),
            mean_over: self.mean_over(),
        };
        let counted = micro_batches.counted()?;
        micro_batches.add_gradients(self.model(), 0, counted, &mut grads)?;
        gpu::finish(&self.device.device).await?;
        self.device.watchdog.restart();
        Ok(start.elapsed())
    }

    /// Warns before a new run that takes longer than a user may expect. If the speed of the device
    /// is unknown, measures it for a run that may be so long.
    pub(super) async fn warn_if_long(&mut self) -> Result<(), TrainError> {
        if self.resumed_from.is_some() {
            return Ok(());
        }
        let mut speed = known_speed(&self.device.info, self.mode);
        let update = Work::update(&self.config, self.vocabulary(), &self.forecast.plan);
        if speed.is_none() && update.flop * self.config.max_iters.get() as f64 >= MUCH_WORK {
            speed = DeviceSpeed::measured(vec![self.measure_micro_batch().await?]);
        }
        if let Some(speed) = speed {
            self.warn_of_time(&speed);
        }
        Ok(())
    }

    fn warn_of_time(&mut self, speed: &DeviceSpeed) {
        if self.pace.is_told {
            return;
        }
        self.pace.is_told = true;
        // A limit is planned for, and a resumed run is no surprise.
        if self.config.max_time.is_some() || self.resumed_from.is_some() {
            return;
        }
        let (plan, data) = (&self.forecast.plan, Some(self.data_size()));
        let totals = Totals::new(&self.config, self.vocabulary(), plan, data, Some(speed), false);
        if let Some(warning) = totals.time.and_then(|time| time.warning()) {
            self.warn(warning);
        }
    }

    /// Counts the updates of a log interval, and keeps their speed for later estimates.
    pub(super) fn count_pace(&mut self, time: Duration, updates: u64) {
        if !std::mem::replace(&mut self.pace.is_warm, true) {
            return;
        }
        self.pace.time += time;
        self.pace.updates += updates;
        if self.pace.time < self.pace.next || self.pace.updates < KNOWN_UPDATES {
            return;
        }
        let seconds = self.pace.time.as_secs_f64() / self.pace.updates as f64;
        (self.pace.time, self.pace.updates) = (Duration::ZERO, 0);
        self.pace.next = self.pace.next.saturating_mul(2);
        let work = Work::update(&self.config, self.vocabulary(), &self.forecast.plan);
        let point = work.point(seconds);
        remember_speed(&self.device.info, self.mode, &[point]);
        if let Some(speed) = DeviceSpeed::measured(vec![point]) {
            self.warn_of_time(&speed);
        }
    }

    fn data_size(&self) -> DataSize {
        DataSize { train: self.dataset.train.len(), val: self.dataset.val.len() }
    }
}
