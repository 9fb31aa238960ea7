//! The optimizer states of ranks that train apart.
//!
//! Each has its own, of twice the size of the model. That of rank 0 is in the checkpoint; the others
//! keep theirs next to their log, in the run folder on their machine, and send them nowhere.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::TrainError;
use super::checkpoint::{Checkpoint, OPTIMIZER_FILE};
use crate::config::Config;
use crate::disk;
use crate::model::{
    Architecture, LossScale, Parameter, WeightError, WeightFile, WeightSource, saved_shape,
    write_tensors,
};
use crate::ranks::{Group, RANKS_FOLDER};

/// The ends of file names: of states, and of states that are being written.
const SUFFIX: &str = "safetensors";
const UNFINISHED: &str = "writing";

/// Returns the file of the states of `rank` after `iteration` updates.
pub fn file(run: &Path, rank: usize, iteration: u64) -> PathBuf {
    run.join(RANKS_FOLDER).join(format!("{rank}-{iteration:08}.{SUFFIX}"))
}

pub async fn write(
    file: &Path,
    architecture: &Architecture,
    mut states: Vec<Parameter>,
) -> Result<(), TrainError> {
    for saved in &mut states {
        saved.shape = saved_shape(architecture, &saved.name, &saved.shape);
    }
    let temporary = file.with_extension(UNFINISHED);
    let result = async {
        write_tensors(&temporary, &states, HashMap::new()).await?;
        disk::sync_file(&temporary).map_err(TrainError::io("sync", &temporary))?;
        disk::publish(&temporary, file).map_err(TrainError::io("rename", &temporary))
    };
    let written = result.await;
    if written.is_err() {
        let _ = disk::remove_file(&temporary);
    }
    written
}

/// Removes the states of `rank` that belong to none of the `existing` checkpoints, given by their
/// iterations, and those that a killed process has left unfinished. If there are no checkpoints, maybe
/// their folder could not be read: then all finished states stay.
pub fn prune(run: &Path, rank: usize, existing: &[u64]) {
    let needed: Vec<PathBuf> = existing.iter().map(|&at| file(run, rank, at)).collect();
    let start = format!("{rank}-");
    let is_useless = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let of_rank = name.strip_prefix(&start).and_then(|rest| rest.split_once('.'));
        match of_rank {
            Some((_, UNFINISHED)) => true,
            Some((_, SUFFIX)) => !needed.is_empty() && !needed.contains(path),
            _ => false,
        }
    };
    let entries = disk::read_dir(run.join(RANKS_FOLDER)).into_iter().flatten().flatten();
    let useless = entries.map(|entry| entry.path()).filter(is_useless);
    useless.for_each(|path| drop(disk::remove_file(path)));
}

/// The files from which a rank reads the states that belong to a checkpoint.
pub struct OwnStates {
    /// That of this rank; `None` if all take the states of rank 0.
    pub file: Option<WeightFile>,
    /// True if ranks that trained apart have to share the states of rank 0.
    pub are_missing: bool,
}

impl OwnStates {
    /// Finds the states of all ranks in a run of `config` that continues from `checkpoint`. Ranks that
    /// sum their gradients have the same.
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

    /// Reads the state of loss scaling of this rank, if it has its own.
    pub fn loss_scale(&mut self, rank: usize) -> Result<Option<LossScale>, WeightError> {
        let file = self.file.as_mut().filter(|_| rank > 0);
        file.map(|file| file.weight(LossScale::NAME, &[4]).map(LossScale::of)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_removes_its_states_without_a_checkpoint() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(RANKS_FOLDER);
        disk::create_dir_all(&folder).unwrap();
        let all = ["1-00000005.safetensors", "1-00000010.safetensors", "1-00000020.safetensors"];
        let others = ["1.json", "1.log", "11-00000020.safetensors", "11-00000020.writing"];
        for name in all.iter().chain(&others).chain(&["1-00000020.writing"]) {
            disk::write(folder.join(name), "").unwrap();
        }
        let left = || {
            let entries = disk::read_dir(&folder).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let expected =
            |own: &[&str]| own.iter().chain(&others).map(|name| name.to_string()).collect();
        prune(run.path(), 1, &[]);
        assert_eq!(left(), expected(&all));
        prune(run.path(), 1, &[5, 10, 15]);
        assert_eq!(left(), expected(&all[..2]));
    }
}
