//! The preparation of a session for its first update.

use super::Session;
use crate::config::{Config, padded_vocab};
use crate::disk;
use crate::plan::{self, DeviceSpeed};
use crate::protocol::Event;
use crate::runs::known_speed;
use crate::train::Result;
use crate::train::measurement::{device_speed, micro_batch_time, pace_of_ranks};
use crate::train::pace::{totals, update_work};
use crate::train::training::Training;
use crate::train::warnings::about_warmup;

/// The operations of a run that is measured before it starts: two days on a small CPU, minutes on a
/// GPU, where a measurement of a second or two does not count.
const MUCH_WORK: f64 = 1e16;

impl Session<'_> {
    /// Settles the shares of the ranks and the schedule.
    pub(super) async fn prepare(&mut self) -> Result<()> {
        self.settle_shares().await?;
        let planned =
            if self.preparation.plans_schedule { self.plan_schedule().await? } else { None };
        self.announce();
        if let Some(text) = planned {
            self.journal.emit(Event::Note { text });
        }
        if self.training.ranks.group.is_first() {
            self.advise().await?;
        }
        if let Some(decay) = self.preparation.decay.take() {
            self.finish_after(decay).await?;
        }
        Ok(())
    }

    pub(super) fn announce(&mut self) {
        let Self { training, journal, .. } = self;
        let Training { inputs, steps, ranks, learner, position } = training;
        let padded = padded_vocab(learner.vocabulary());
        journal.emit(Event::Start {
            run: journal.folder.path.clone(),
            device: learner.device.info.line(),
            config: Box::new(inputs.config.clone()),
            params: inputs.config.parameters(u64::from(padded)),
            resumed_from: position.resumed_from,
            entropy_floor: inputs.dataset.entropy_floor,
            products: inputs.products(),
            ranks: ranks.division.ranks.clone(),
        });
        journal.emit(Event::Plan(Box::new(steps.forecast.clone())));
    }

    /// Divides the global batch in proportion to the speeds of the ranks, which all measure at the same
    /// time, unless their shares are known. Records the shares.
    async fn settle_shares(&mut self) -> Result<()> {
        let run = &self.journal.folder.path;
        if self.training.ranks.division.is_unmeasured {
            // Not a speed to keep: ranks on one machine slow each other down.
            let time = micro_batch_time(&self.training).await?;
            let Training { inputs, steps, ranks, learner, .. } = &mut self.training;
            let own = steps.plan().micro_batch as f64 / time.as_secs_f64().max(1e-9);
            let speeds = ranks.measurements(own)?;
            ranks.division.settle(&inputs.config, &speeds)?;
            let own = ranks.own_config(&inputs.config);
            let speed = known_speed(&learner.device.info, inputs.mode);
            let vocab = learner.vocabulary();
            let forecast = plan::replan(&own, steps.plan(), vocab, &steps.limits, speed.as_ref())?;
            steps.change(forecast);
        }
        let ranks = &self.training.ranks;
        if ranks.group.is_first() && !ranks.group.is_alone() {
            ranks.division.record(run);
        }
        Ok(())
    }

    /// Shortens the schedule so that it ends in time. Returns what was planned, if
    /// anything was, as text.
    ///
    /// Measures gradients of this run's first micro-batch, on all ranks at the same time, which changes
    /// no state of the run. Rank 0 plans. The planned numbers go into the configuration of the run, so
    /// that a resumed run keeps them.
    async fn plan_schedule(&mut self) -> Result<Option<String>> {
        let config = &self.training.inputs.config;
        // A schedule that follows the speed of the run needs no plan.
        let limit = self.training.inputs.time_limit().filter(|_| !config.fill_time);
        let Some(limit) = limit else { return Ok(None) };
        let point = device_speed(&self.training).await?;
        let pace = pace_of_ranks(&mut self.training, DeviceSpeed::measured(vec![point]))?;
        let Training { inputs, ranks, .. } = &mut self.training;
        let left = limit.saturating_sub(inputs.clock.used());
        let decides = ranks.group.is_first();
        let planned = pace.filter(|_| decides).and_then(|pace| pace.within(&inputs.config, left));
        let updates = inputs.config.max_iters;
        let planned = planned.map_or(updates, |planned| planned.max_iters);
        inputs.config = inputs.config.with_updates(ranks.group.share(planned)?.get());
        let Config { max_iters, warmup_iters, .. } = inputs.config;
        if max_iters == updates {
            return Ok(None);
        }
        self.journal.folder.write_config(&inputs.config)?;
        let time = match inputs.config.end_at {
            Some(end) if inputs.config.max_time != Some(limit) => {
                format!("until {}", end.format("%Y-%m-%d %H:%M"))
            }
            _ => format!("into max_time = {}", humantime::format_duration(limit)),
        };
        Ok(Some(format!(
            "{max_iters} updates fit {time}, instead of {updates}; the first {warmup_iters} \
             are warmup",
        )))
    }

    /// Warns before a new run that would disappoint, as [`Totals::advice`](plan::Totals::advice) has it. If
    /// the speed of the device is unknown, measures it for a run that may take long.
    async fn advise(&mut self) -> Result<()> {
        let Self { training, journal, pace, .. } = self;
        if training.position.resumed_from.is_some() {
            return Ok(());
        }
        let config = &training.inputs.config;
        let about_warmup = about_warmup(config);
        let mut speed = known_speed(&training.learner.device.info, training.inputs.mode);
        let flop = update_work(training).flop * config.max_iters.get() as f64;
        if speed.is_none() && flop >= MUCH_WORK && !config.is_timed() {
            speed = DeviceSpeed::measured(vec![device_speed(training).await?]);
        }
        pace.is_told = speed.is_some();
        let totals = totals(training, speed.as_ref());
        let free = disk::free_space(&journal.folder.path);
        let about_disk = free.and_then(|free| totals.about_disk(free));
        for text in totals.advice(config).into_iter().chain(about_disk).chain(about_warmup) {
            journal.warn(text);
        }
        Ok(())
    }
}
