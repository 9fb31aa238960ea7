//! The memory of one rank: a smaller plan after its device ran out of memory.
//!
//! Each rank keeps its own limit, in the run folder of its machine, so the supervisor or scheduler that
//! starts the job again need not know which rank it was.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::RANKS_FOLDER;
use crate::config::{Choice, Config};
use crate::disk;
use crate::plan::{Plan, smaller_or_offloaded};

/// The file with the plan that the next process of a rank must not exceed.
#[derive(Clone, Debug)]
pub struct PlanLimit {
    file: PathBuf,
    /// The plan of this process: its session changes it, its watcher reads it.
    plan: Arc<Mutex<Plan>>,
    /// True if the optimizer can move to a memory that is not the device's.
    can_offload: bool,
}

impl PlanLimit {
    pub fn new(run: &Path, rank: usize, plan: Plan, can_offload: bool) -> Self {
        Self { file: file(run, rank), plan: Arc::new(Mutex::new(plan)), can_offload }
    }

    /// Takes the plan to which this process has changed.
    pub fn set(&self, plan: &Plan) {
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan.clone();
    }

    /// Limits the next process to the next smaller plan, after this one ran out of memory.
    ///
    /// # Errors
    /// With the reason why the next process would fail as this one did.
    pub fn lower(&self) -> Result<(), String> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(plan) = smaller_or_offloaded(&plan, self.can_offload) else {
            return Err("its steps cannot be split smaller".into());
        };
        // A run folder that was deleted is not made again.
        let folder = self.file.parent().unwrap_or(&self.file);
        let written = disk::own_folder(folder).and_then(|()| disk::replace_json(&self.file, &plan));
        written.map_err(|error| {
            format!("its smaller plan cannot be written to {}: {error}", self.file.display())
        })
    }
}

/// Returns the limit that a former process of a rank has left.
pub fn recorded_limit(run: &Path, rank: usize) -> Option<Plan> {
    serde_json::from_slice(&disk::read_own(file(run, rank)).ok()?).ok()
}

/// Returns `own` with settings that keep its plan within the memory of `limit`.
pub fn within(own: Config, limit: &Plan) -> Config {
    let share = own.global_batch();
    let micro_batch = u64::from(own.micro_batch().get()).min(limit.micro_batch as u64);
    // The largest that divides the share.
    let divisor = (1..=micro_batch).rev().find(|micro| share.is_multiple_of(*micro)).unwrap_or(1);
    let choice = |limited: bool, own: Choice| if limited { Choice::True } else { own };
    Config {
        micro_batch: u32::try_from(divisor).unwrap_or(1),
        loss_chunk: limit.loss_chunk as u32,
        grad_checkpoint: choice(limit.grad_checkpoint, own.grad_checkpoint),
        offload_optimizer: choice(limit.offload_optimizer, own.offload_optimizer),
        ..own
    }
}

fn file(run: &Path, rank: usize) -> PathBuf {
    run.join(RANKS_FOLDER).join(format!("{rank}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::of_share;

    #[test]
    fn a_rank_that_ran_out_of_memory_starts_again_with_half_the_micro_batch() {
        let folder = tempfile::tempdir().unwrap();
        let own = of_share(&Config::default(), 120);
        assert_eq!(recorded_limit(folder.path(), 1), None);
        let mut sizes = Vec::new();
        for _ in 0..4 {
            let limit = recorded_limit(folder.path(), 1);
            let config = limit.map_or(own.clone(), |limit| within(own.clone(), &limit));
            assert_eq!(config.global_batch(), 120);
            let plan = Plan::new(&config, 50_257);
            sizes.push(plan.micro_batch);
            PlanLimit::new(folder.path(), 1, plan, true).lower().unwrap();
        }
        assert_eq!(sizes, [12, 6, 3, 1]);
        // Of another rank it says nothing, and a damaged one is ignored.
        assert_eq!(recorded_limit(folder.path(), 0), None);
        disk::write(file(folder.path(), 1), "{").unwrap();
        assert_eq!(recorded_limit(folder.path(), 1), None);
    }

    #[test]
    fn a_limit_raises_no_micro_batch() {
        let limit = Plan { micro_batch: 6, ..Plan::new(&Config::default(), 50_257) };
        let own = of_share(&Config { micro_batch: 2, ..Config::default() }, 120);
        assert_eq!(within(own, &limit).micro_batch, 2);
    }

    #[test]
    fn a_rank_without_a_smaller_plan_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::new(&of_share(&Config::default(), 120), 50_257);
        let limit = PlanLimit::new(folder.path(), 1, plan.clone(), false);
        let watcher = limit.clone();
        let split = Plan { micro_batch: 1, accumulation: 120, loss_chunk: 32, ..plan.clone() };
        limit.set(&Plan { grad_checkpoint: true, ..split });
        assert_eq!(watcher.lower().unwrap_err(), "its steps cannot be split smaller");
        // A file where the folder goes.
        disk::write(folder.path().join(RANKS_FOLDER), "").unwrap();
        let error = PlanLimit::new(folder.path(), 1, plan, false).lower().unwrap_err();
        assert!(error.starts_with("its smaller plan cannot be written to "), "{error}");
    }
}
