//! Checkpoints: Hugging Face GPT-2 folders with the optimizer's state next to the weights.
//!
//! A checkpoint is written under a temporary name, synced and renamed; its last file is
//! `state.json` with the hashes of the others. So a folder with a state is complete or provably
//! damaged, and former checkpoints stay until the new one is complete.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::data::Tokenizer;
use crate::disk;
use crate::model::{
    ARCHITECTURE_FILE, AdapterConfig, AdapterFolder, Architecture, Lora, LossScale, Parameter,
    TensorFile, WeightFile, WeightFolder, WeightSource, saved_shape, write_adapter,
    write_architecture, write_weights,
};
use crate::plan::Plan;
use crate::protocol::Failure;
use crate::ranks::OtherStates;
use crate::text::excerpt;

/// The advice about a checkpoint whose files are not those that were saved.
const COPY_AGAIN: &str =
    "copy the checkpoint again, or give another one; if you have changed this file, undo that";

/// The file that makes a Hugging Face folder a checkpoint.
pub const STATE_FILE: &str = "state.json";
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const TEMPORARY: &str = ".writing-";
const DECAYED: &str = "decayed-";
pub const VERSION: u32 = 1;

/// The state of a run besides its tensors. Data order and dropout are functions of the seed and the
/// iteration, so no random generator has to be saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    pub version: u32,
    pub iteration: u64,
    pub last_eval: Option<u64>,
    /// The validation loss of this checkpoint, if it was evaluated.
    pub val_loss: Option<f64>,
    pub best_val_loss: Option<f64>,
    /// The learning rate that a command has set in place of the schedule.
    pub learning_rate: Option<f64>,
    /// The state of loss scaling, where the loss is scaled or updates were skipped.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// The library that has computed the matrix products, with its version; `None` for wgpt's own kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<String>,
    /// The seconds that the run has used of its `max_time`, if it is to use all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The model that an adapter is for; `None` if all weights are trained, which the checkpoint then has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseModel>,
    pub config: Config,
    pub plan: Plan,
    pub tokenizer: Option<Tokenizer>,
    pub data: String,
    /// The BLAKE3 hashes of the other files, by name.
    pub hashes: BTreeMap<String, String>,
}

/// The model whose weights an adapter leaves as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaseModel {
    /// A path, or the name of a fetched model.
    pub name: String,
    /// The BLAKE3 hash of its weights.
    pub hash: String,
}

impl CheckpointState {
    /// Returns true if no earlier evaluation of the run was better.
    pub fn is_best(&self) -> bool {
        self.val_loss.is_some() && self.val_loss == self.best_val_loss
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    pub path: PathBuf,
    pub state: CheckpointState,
}

impl Checkpoint {
    /// Writes a checkpoint into `folder` and removes old ones: the newest `keep` and the best stay.
    /// Returns `None` if it is on the disk already. States without parts come from `others`. If writing fails,
    /// former checkpoints are unchanged.
    pub async fn write(
        folder: &Path,
        mut state: CheckpointState,
        tensors: SavedTensors<'_>,
        others: &mut OtherStates<'_>,
        keep: u32,
    ) -> Result<Option<Self>, Failure> {
        disk::own_folder(folder).map_err(Failure::io("create", folder))?;
        let name = format!("{:08}", state.iteration);
        let path = folder.join(&name);
        if let Ok(same) = Self::open(&path) {
            // The same updates give the same weights: only the evaluation can be new.
            state.hashes.clone_from(&same.state.hashes);
            state.seconds = same.state.seconds.or(state.seconds);
            state.val_loss = state.val_loss.or(same.state.val_loss);
            let file = path.join(STATE_FILE);
            let text = json(&state);
            // A float that was read back may differ in its last bit, so we compare the text.
            if state == same.state || disk::read_own(&file).is_ok_and(|saved| saved == text) {
                return Ok(None);
            }
            disk::replace(&file, &text).map_err(Failure::io("write", &file))?;
            return Ok(Some(Self { path, state }));
        }
        let temporary = folder.join(format!("{TEMPORARY}{name}"));
        let result = write_files(&temporary, &mut state, tensors, others)
            .await
            .and_then(|()| publish(&temporary, &path));
        if let Err(error) = result {
            // The disk may be full: the unfinished checkpoint goes first.
            let _ = disk::remove_dir_all(&temporary);
            return Err(error);
        }
        prune(folder, keep, &path);
        Ok(Some(Self { path, state }))
    }

    /// Opens a checkpoint and verifies the hashes of all its files.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Self::open_with(path, |_| true)
    }

    /// Opens a checkpoint for its model only: the optimizer state may be missing or damaged.
    pub fn open_model(path: &Path) -> Result<Self, Failure> {
        Self::open_with(path, |name| name != OPTIMIZER_FILE)
    }

    fn open_with(path: &Path, needed: impl Fn(&str) -> bool) -> Result<Self, Failure> {
        let checkpoint = Self::open_unverified(path)?;
        let entries = disk::read_dir(path).map_err(Failure::io("read", path))?;
        let names: BTreeSet<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        for (name, hash) in checkpoint.state.hashes.iter().filter(|(name, _)| needed(name)) {
            let file = path.join(name);
            let refuse = |reason: &str| {
                let text = format!("{}: {reason}", file.display());
                let hint = match name.as_str() {
                    OPTIMIZER_FILE => format!(
                        "start a new run from its weights, with --init_from={}",
                        path.display()
                    ),
                    _ => COPY_AGAIN.to_owned(),
                };
                Err(Failure::bad_data(text, hint))
            };
            // The state may come from somebody else, and its names may lead anywhere.
            if !names.contains(OsStr::new(name)) {
                return refuse("this file of the checkpoint is missing");
            }
            if hash_file(&file)? != *hash {
                return refuse("damaged: its hash differs from the one in state.json");
            }
        }
        Ok(checkpoint)
    }

    pub(super) fn open_unverified(path: &Path) -> Result<Self, Failure> {
        let file = path.join(STATE_FILE);
        let bad = |reason: String, hint| {
            Failure::bad_data(format!("{}: {}", file.display(), excerpt(reason)), hint)
        };
        let text = disk::read_regular(&file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => bad(
                "this file of the checkpoint is missing".to_owned(),
                format!(
                    "copy the checkpoint again; its weights may still be whole: give {} itself",
                    path.display()
                ),
            ),
            _ => Failure::io("read", &file)(error),
        })?;
        let damaged = |error| bad(format!("damaged: {error}"), COPY_AGAIN.to_owned());
        /// Parsed first, to distinguish a newer format from a damaged file.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != VERSION {
            let reason = format!("version {version}, this wgpt reads {VERSION}");
            return Err(bad(reason, "use a newer wgpt".to_owned()));
        }
        let state: CheckpointState = serde_json::from_slice(&text).map_err(damaged)?;
        Ok(Self { path: path.to_path_buf(), state })
    }

    /// Opens the newest intact checkpoint in `folder`; also returns the damaged ones that are newer. The
    /// error is `NoCheckpoint` if none exists.
    pub fn newest(folder: &Path) -> Result<(Self, Vec<Damaged>), Failure> {
        Self::first_whole(newest_first(folder)?, folder, Self::open)
    }

    /// Opens the intact checkpoint in `folder` with the best validation loss, else the newest; also
    /// returns the damaged ones that are better. The error is `NoCheckpoint` if none exists.
    pub fn best(folder: &Path) -> Result<(Self, Vec<Damaged>), Failure> {
        let loss = |path: &PathBuf| Self::open_unverified(path).ok()?.state.val_loss;
        let rated = |path| (loss(&path).unwrap_or(f64::INFINITY), path);
        let mut paths: Vec<(f64, PathBuf)> = newest_first(folder)?.map(rated).collect();
        // Of those with the same loss, or none, the newest stays first.
        paths.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let paths = paths.into_iter().map(|(_, path)| path);
        Self::first_whole(paths, folder, Self::open_model)
    }

    /// Returns the iteration of the checkpoint in `folder` with the best validation loss, and that loss.
    pub fn best_loss(folder: &Path) -> Option<(u64, f64)> {
        let losses =
            states(folder).filter_map(|found| Some((found.state.iteration, found.state.val_loss?)));
        losses.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    fn first_whole(
        paths: impl Iterator<Item = PathBuf>,
        folder: &Path,
        open: impl Fn(&Path) -> Result<Self, Failure>,
    ) -> Result<(Self, Vec<Damaged>), Failure> {
        let mut damaged = Vec::new();
        for path in paths {
            match check_files(&path).and_then(|()| open(&path)) {
                Ok(checkpoint) => return Ok((checkpoint, damaged)),
                Err(error) => damaged.push(Damaged { path, error }),
            }
        }
        match damaged.pop() {
            Some(last) => Err(last.error),
            None => Err(Failure::no_checkpoint(folder)),
        }
    }

    pub fn optimizer_states(&self) -> Result<Box<dyn WeightSource>, Failure> {
        Ok(Box::new(WeightFile::open(&self.path.join(OPTIMIZER_FILE))?))
    }

    /// Opens what the run trains: all weights, or an adapter.
    pub fn weights(&self, architecture: &Architecture) -> Result<Box<dyn WeightSource>, Failure> {
        Ok(match Lora::new(&self.state.config) {
            Some(lora) => Box::new(AdapterFolder::open(&self.path, architecture, &lora)?),
            None => Box::new(WeightFolder::open(&self.path, architecture)?),
        })
    }
}

/// The tensors of a checkpoint, in the order of the model.
pub struct SavedTensors<'a> {
    pub architecture: &'a Architecture,
    pub weights: Vec<Parameter>,
    pub states: Vec<Parameter>,
}

#[derive(Debug)]
pub struct Damaged {
    pub path: PathBuf,
    pub error: Failure,
}

impl Damaged {
    /// Renames the folder, so that it counts neither as one of the newest checkpoints nor as the
    /// best when old ones are removed. The caller must hold the run's lock.
    pub fn set_aside(&self) {
        if let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) {
            let aside = folder.join(format!("damaged-{}", name.to_string_lossy()));
            let _ = disk::rename(&self.path, aside);
        }
    }
}

/// Renames the checkpoints in `folder` whose learning rate has decayed before that of `config`, a longer
/// schedule, unless no checkpoint is from before the decay. Returns a sentence about them, if there are any.
/// The caller must hold the run's lock.
pub fn set_aside_decayed(folder: &Path, config: &Config) -> Option<String> {
    let has_decayed = |Checkpoint { state, .. }: &Checkpoint| {
        let before = state.iteration.saturating_sub(1);
        state.config.is_decaying(before) && !config.is_decaying(before)
    };
    let (decayed, others): (Vec<Checkpoint>, Vec<Checkpoint>) =
        states(folder).partition(has_decayed);
    let newest = others.first()?;
    let last = decayed.first()?.state.iteration;
    for Checkpoint { path, state } in &decayed {
        let _ = disk::rename(path, folder.join(format!("{DECAYED}{:08}", state.iteration)));
    }
    Some(format!(
        "continuing from iteration {}, before the learning rate decayed; the model of iteration {last} \
         stays in {}",
        newest.state.iteration,
        folder.join(format!("{DECAYED}{last:08}")).display()
    ))
}

/// Removes the unfinished checkpoints of a killed process. The caller must hold the run's lock.
pub fn remove_unfinished(folder: &Path) {
    let entries = disk::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let _ = disk::remove_dir_all(entry.path());
        }
    }
}

/// Returns the folders of the checkpoints in `folder`, intact or not.
pub fn newest_first(folder: &Path) -> Result<impl Iterator<Item = PathBuf> + use<>, Failure> {
    Ok(numbered(folder)?.into_iter().rev().map(|(_, path)| path))
}

/// Opens the checkpoints in `folder` with a readable state, the newest first.
pub(super) fn states(folder: &Path) -> impl Iterator<Item = Checkpoint> + use<> {
    let paths = newest_first(folder).into_iter().flatten();
    paths.filter_map(|path| Checkpoint::open_unverified(&path).ok())
}

/// Returns the folders in `folder` that are named by an iteration, the oldest first; none if `folder` does not
/// exist. A link is an error, because old checkpoints are removed.
fn numbered(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    match disk::check_own(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        checked => checked.map_err(Failure::io("read", folder))?,
    }
    let mut found = Vec::new();
    for entry in disk::read_dir(folder).map_err(Failure::io("read", folder))?.flatten() {
        let path = entry.path();
        if let Some(iteration) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            disk::check_own(&path).map_err(Failure::io("read", &path))?;
            found.push((iteration, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Checks that a checkpoint in a run has no links. A checkpoint that a person names may have links, as in the
/// Hugging Face cache.
fn check_files(path: &Path) -> Result<(), Failure> {
    for entry in disk::read_dir(path).map_err(Failure::io("read", path))?.flatten() {
        let file = entry.path();
        disk::check_own(&file).map_err(Failure::io("read", &file))?;
    }
    Ok(())
}

/// Removes all checkpoints but the newest `keep`, the best, the one just written, and the one where its decay
/// began.
fn prune(folder: &Path, keep: u32, written: &Path) {
    let all: Vec<Checkpoint> = states(folder).collect();
    let rated = all.iter().filter_map(|Checkpoint { path, state }| Some((path, state.val_loss?)));
    let best = rated.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(path, _)| path);
    let config = all.iter().find(|known| known.path == written).map(|known| &known.state.config);
    let is_decay_start = |iter: u64| {
        config.is_some_and(|config| config.is_decaying(iter) && config.decay_start() == iter)
    };
    for Checkpoint { path, state } in all.iter().skip(keep as usize) {
        let is_kept = Some(path) == best || path == written || is_decay_start(state.iteration);
        if !is_kept {
            // The state goes first: a folder without it is not a checkpoint.
            let _ = disk::remove_file(path.join(STATE_FILE));
            let _ = disk::remove_dir_all(path);
        }
    }
}

async fn write_files(
    folder: &Path,
    state: &mut CheckpointState,
    SavedTensors { architecture, weights, mut states }: SavedTensors<'_>,
    others: &mut OtherStates<'_>,
) -> Result<(), Failure> {
    let _ = disk::remove_dir_all(folder);
    disk::own_folder(folder).map_err(Failure::io("create", folder))?;
    write_description(folder, architecture, state.tokenizer.as_ref())?;
    match Lora::new(&state.config) {
        Some(lora) => {
            let base = state.base.as_ref().map(|base| base.name.clone()).unwrap_or_default();
            let config = AdapterConfig { base, lora };
            write_adapter(folder, architecture, &config, weights).await?;
        }
        None => write_weights(folder, architecture, weights).await?,
    }
    for saved in &mut states {
        saved.shape = saved_shape(architecture, &saved.name, &saved.shape);
    }
    write_states(&folder.join(OPTIMIZER_FILE), &mut states, others).await?;
    let entries = disk::read_dir(folder).map_err(Failure::io("read", folder))?;
    for entry in entries.flatten() {
        let file = entry.path();
        disk::sync_file(&file).map_err(Failure::io("sync", &file))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        state.hashes.insert(name, hash_file(&file)?);
    }
    let file = folder.join(STATE_FILE);
    disk::replace(&file, &json(state)).map_err(Failure::io("write", &file))
}

/// Writes the optimizer's states. Other ranks hold the states without parts.
async fn write_states(
    path: &Path,
    states: &mut [Parameter],
    others: &mut OtherStates<'_>,
) -> Result<(), Failure> {
    states.sort_by(|a, b| a.name.cmp(&b.name));
    let all: Vec<&Parameter> = states.iter().collect();
    let mut file = TensorFile::create(path, &all, HashMap::new())?;
    for state in all {
        if state.parts.is_empty() {
            let elements = state.shape.iter().product();
            others.read(&state.name, elements, |bytes| file.append(bytes))?;
        } else {
            file.write(state).await?
        }
    }
    Ok(())
}

/// Writes a model folder as Hugging Face transformers reads it: `config.json`, `model.safetensors`
/// and the files of the tokenizer. `weights` are in the order of a model.
pub async fn write_model(
    folder: &Path,
    architecture: &Architecture,
    weights: Vec<Parameter>,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), Failure> {
    write_description(folder, architecture, tokenizer)?;
    Ok(write_weights(folder, architecture, weights).await?)
}

/// Writes `config.json` and the files of the tokenizer.
fn write_description(
    folder: &Path,
    architecture: &Architecture,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), Failure> {
    let config = write_architecture(
        architecture,
        Tokenizer::special_ids(tokenizer, architecture.vocab_size),
    );
    let file = folder.join(ARCHITECTURE_FILE);
    disk::write(&file, config).map_err(Failure::io("write", &file))?;
    for (name, content) in tokenizer.map(Tokenizer::hugging_face_files).unwrap_or_default() {
        let file = folder.join(name);
        disk::write(&file, content).map_err(Failure::io("write", &file))?;
    }
    Ok(())
}

/// Renames a complete folder to its final name.
fn publish(temporary: &Path, path: &Path) -> Result<(), Failure> {
    if disk::exists(path) {
        // A damaged checkpoint of the same iteration.
        disk::remove_dir_all(path).map_err(Failure::io("replace", path))?;
    }
    disk::publish(temporary, path).map_err(Failure::io("rename", temporary))
}

fn json(state: &CheckpointState) -> Vec<u8> {
    // Numbers, strings and maps with string keys: serializing cannot fail.
    let mut text = serde_json::to_vec_pretty(state).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Returns the BLAKE3 hash of a file, in hexadecimal. Only weights may have more than 64 MiB.
pub(super) fn hash_file(path: &Path) -> Result<String, Failure> {
    let is_small = path.extension().is_some_and(|ending| ending == "json" || ending == "jinja");
    let hash = || {
        if is_small {
            return io::Result::Ok(blake3::hash(&disk::read_regular(path)?));
        }
        let file = disk::open_regular(path)?;
        Ok(blake3::Hasher::new().update_reader(file)?.finalize())
    };
    Ok(hash().map_err(Failure::io("read", path))?.to_hex().to_string())
}

#[cfg(test)]
mod tests;
