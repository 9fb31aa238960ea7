//! The optimizer states of ranks that train apart.
//!
//! Each has its own, of twice the size of the model. That of rank 0 is in the checkpoint; the others
//! keep theirs beside their log, in the run folder on their machine, and send them nowhere.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::checkpoint::{Checkpoint, OPTIMIZER_FILE, saved_shape};
use super::run::RANKS_FOLDER;
use super::{LossScale, Optimizer, TrainError};
use crate::config::Config;
use crate::disk::{self, OpenOptions};
use crate::model::{Gpt, WeightError, WeightFile, WeightSource, write_tensors};
use crate::ranks::Group;

/// The end of a file's name, after the rank and the iteration.
const SUFFIX: &str = ".safetensors";

/// Returns the file of the states of `rank` after `iteration` updates.
pub(super) fn file(run: &Path, rank: usize, iteration: u64) -> PathBuf {
    run.join(RANKS_FOLDER).join(format!("{rank}-{iteration:08}{SUFFIX}"))
}

/// Writes the states of this rank, and removes all but the newest `keep` of it.
///
/// # Errors
/// If the file cannot be written.
pub(super) async fn write(
    file: &Path,
    keep: u32,
    model: &Gpt,
    optimizer: &Optimizer,
) -> Result<(), TrainError> {
    let mut states = optimizer.saved_states(model);
    for saved in &mut states {
        saved.shape = saved_shape(model.architecture(), &saved.name, &saved.shape);
    }
    states.push(optimizer.saved_loss_scale());
    let temporary = file.with_extension("writing");
    let result = async {
        write_tensors(&temporary, &states, HashMap::new()).await?;
        // Windows syncs a file only if it is open for writing.
        let open = OpenOptions::new().write(true).open(&temporary);
        let sync = open.and_then(|file| file.sync_all());
        sync.map_err(TrainError::io("sync", &temporary))?;
        disk::rename(&temporary, file).map_err(TrainError::io("rename", &temporary))
    };
    if let Err(error) = result.await {
        let _ = disk::remove_file(&temporary);
        return Err(error);
    }
    older(file).into_iter().skip(keep as usize).for_each(|old| drop(disk::remove_file(old)));
    Ok(())
}

/// Returns the files of the same rank, the newest first.
fn older(file: &Path) -> Vec<PathBuf> {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_string());
    let rank = name(file).and_then(|name| Some(format!("{}-", name.split_once('-')?.0)));
    let (Some(rank), Some(folder)) = (rank, file.parent()) else { return Vec::new() };
    let is_of_rank = |path: &PathBuf| {
        name(path).is_some_and(|name| name.starts_with(&rank) && name.ends_with(SUFFIX))
    };
    let entries = disk::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_of_rank).collect();
    found.sort();
    found.reverse();
    found
}

/// The files from which a rank reads the states that belong to a checkpoint.
pub(super) struct OwnStates {
    /// That of this rank; `None` if all take the states of rank 0.
    pub file: Option<WeightFile>,
    /// True if ranks that trained apart have to share the states of rank 0.
    pub are_missing: bool,
}

impl OwnStates {
    /// Finds the states of all ranks in a run of `config` that continues from `checkpoint`. Ranks that
    /// sum their gradients have the same.
    ///
    /// # Errors
    /// If a rank does not answer.
    pub fn find(
        checkpoint: &Checkpoint,
        config: &Config,
        run: &Path,
        group: &mut Group,
    ) -> Result<Self, TrainError> {
        let trained_apart = config.trains_apart() && checkpoint.state.config.trains_apart();
        if !trained_apart || group.is_alone() {
            return Ok(Self { file: None, are_missing: false });
        }
        let path = match group.rank() {
            0 => checkpoint.path.join(OPTIMIZER_FILE),
            rank => file(run, rank, checkpoint.state.iteration),
        };
        let own = WeightFile::open(&path).ok();
        let found = group.collect(&own.is_some())?;
        let are_complete = found.into_iter().all(|found| found);
        Ok(Self { file: own.filter(|_| are_complete), are_missing: !are_complete })
    }

    /// Reads the state of loss scaling of this rank, if it has one of its own.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn loss_scale(&mut self, rank: usize) -> Result<Option<LossScale>, WeightError> {
        let file = self.file.as_mut().filter(|_| rank > 0);
        file.map(|file| file.weight(LossScale::NAME, &[4]).map(LossScale::of)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_finds_its_own_files() {
        let run = tempfile::tempdir().unwrap();
        disk::create_dir_all(run.path().join(RANKS_FOLDER)).unwrap();
        for (rank, iteration) in [(1, 5), (1, 20), (1, 10), (11, 30), (2, 30)] {
            disk::write(file(run.path(), rank, iteration), "").unwrap();
        }
        disk::write(run.path().join(RANKS_FOLDER).join("1.log"), "").unwrap();
        let expected = [20, 10, 5].map(|iteration| file(run.path(), 1, iteration));
        assert_eq!(older(&file(run.path(), 1, 20)), expected);
    }
}
