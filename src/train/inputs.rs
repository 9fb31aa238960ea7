//! The inputs of a run, and the split of its steps.

use std::time::Duration;

use chrono::Local;

use super::clock::Moment;
use crate::config::Config;
use crate::data::Dataset;
use crate::eval::{Evaluation, Quiz};
use crate::ops::OpsMode;
use crate::plan::{Class, DataSize, Forecast, Limits, Plan};
use crate::ranks::PlanLimit;
use crate::runs::checkpoint::BaseModel;

pub(crate) struct RunInputs {
    /// Commands change a few of its settings while the run trains.
    pub config: Config,
    pub mode: OpsMode,
    pub dataset: Dataset,
    pub quiz: Option<Quiz>,
    pub clock: RunClock,
    /// The model that an adapter leaves as it is; known to rank 0.
    pub base: Option<BaseModel>,
}

/// The time that a run has used. Pauses are left out.
pub(crate) struct RunClock {
    /// Used by former trainers.
    before: Duration,
    started: Moment,
    paused: Duration,
}

impl RunClock {
    pub fn start(before: Duration) -> Self {
        Self { before, started: Moment::now(), paused: Duration::ZERO }
    }

    pub fn used(&self) -> Duration {
        (self.before + self.started.elapsed()).saturating_sub(self.paused)
    }

    /// Counts a time in which the run was paused.
    pub fn leave_out(&mut self, pause: Duration) {
        self.paused += pause;
    }

    /// Counts the time that the run has used before it was stopped.
    pub fn continue_from(&mut self, used: Duration) {
        // A trainer that failed has counted it.
        self.before = self.before.max(used);
    }
}

impl RunInputs {
    /// Returns the time on the clock of the run at which it is to end: after its `max_time`, or at its `end_at`.
    pub fn time_limit(&self) -> Option<Duration> {
        let by_clock =
            self.config.time_until_end(Local::now()).map(|left| self.clock.used() + left);
        self.config.max_time.into_iter().chain(by_clock).min()
    }

    /// Returns true once the run has used up its time.
    pub fn is_late(&self) -> bool {
        self.time_limit().is_some_and(|limit| self.clock.used() >= limit)
    }

    /// Returns the library of the products, by which the losses of two runs differ in the last bits.
    pub fn products(&self) -> Option<String> {
        self.mode.products().map(|library| library.name.clone())
    }

    pub fn data_size(&self) -> DataSize {
        DataSize { train: self.dataset.train.len(), val: self.dataset.val.len() }
    }

    pub fn evaluation(&self, plan: &Plan) -> Evaluation {
        Evaluation {
            block_size: self.config.eval_block_size().get() as usize,
            sequences: plan.eval_batch_size,
            chunk: plan.loss_chunk,
            mode: self.mode,
        }
    }
}

/// How the steps of this rank are split, and the memory that they may take.
pub(crate) struct StepPlan {
    pub limits: Limits,
    pub forecast: Forecast,
    /// Passes the plan on to the watcher of the device, which limits the next process to a smaller one.
    pub limit: PlanLimit,
    /// The limits and the forecast of a run that has made way for other programs: what it returns to.
    pub wanted: Option<(Limits, Box<Forecast>)>,
}

impl StepPlan {
    pub fn plan(&self) -> &Plan {
        &self.forecast.plan
    }

    pub fn change(&mut self, forecast: Forecast) {
        self.limit.set(&forecast.plan);
        self.forecast = forecast;
    }

    /// Returns the bytes of the classes that hold their memory for the whole run.
    pub fn lasting_classes(&self) -> impl Iterator<Item = (Class, u64)> {
        let bytes = |class| Some((class, *self.forecast.classes.get(&class)?));
        [Class::Weights, Class::Optimizer].into_iter().filter_map(bytes)
    }
}
