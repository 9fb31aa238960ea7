//! The part of this rank in a run.

use std::time::Duration;

use super::Result;
use crate::config::Config;
use crate::plan::{self, Plan};
use crate::protocol::RankStep;
use crate::ranks::{Division, Group, within};

pub(super) struct RankPart {
    /// The processes that train the run in step, each with a session like this one.
    pub group: Group,
    pub division: Division,
    /// The plan that this rank must not exceed: a larger one has run out of memory.
    pub max_plan: Option<Plan>,
    /// The time in the communication between ranks since the last log line.
    pub network: Duration,
}

impl RankPart {
    /// Returns the sequences of the global batch that this rank computes.
    pub fn sequences(&self) -> u64 {
        self.division.shares.sequences(self.group.rank())
    }

    pub fn first_sequence(&self) -> usize {
        self.division.shares.first(self.group.rank()) as usize
    }

    pub fn share(&self, config: &Config) -> f64 {
        self.sequences() as f64 / config.global_batch() as f64
    }

    /// Returns the configuration of this rank's share, within its limit.
    pub fn own_config(&self, config: &Config) -> Config {
        let own = plan::of_share(config, self.sequences());
        match &self.max_plan {
            Some(limit) => within(own, limit),
            None => own,
        }
    }

    /// Returns what a checkpoint with this plan and this configuration has requested of this rank. Its plan is to be kept
    /// if it is within the limit.
    pub fn config_before(&self, config: &Config, plan: &Plan) -> Config {
        let is_within = |limit: &Plan| {
            plan.micro_batch <= limit.micro_batch
                && plan.loss_chunk <= limit.loss_chunk
                && (plan.grad_checkpoint || !limit.grad_checkpoint)
                && (plan.offload_optimizer || !limit.offload_optimizer)
        };
        if self.max_plan.as_ref().is_none_or(is_within) {
            self.own_config(config)
        } else {
            plan::of_share(config, self.sequences())
        }
    }

    /// Returns the measurements of all ranks, with the same bits on each.
    pub fn measurements(&mut self, own: f64) -> Result<Vec<f64>> {
        let all = self.group.collect(&own.to_bits())?;
        Ok(all.into_iter().map(f64::from_bits).collect())
    }

    /// Returns the parts of all ranks in the last updates; none for a run in one process.
    pub fn steps(&mut self, own: RankStep) -> Result<Vec<RankStep>> {
        if self.group.is_alone() {
            return Ok(Vec::new());
        }
        Ok(self.group.collect(&own)?)
    }
}
