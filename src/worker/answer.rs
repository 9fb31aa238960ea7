//! The answers that are the same on every platform: files go through [`disk`](crate::disk).

use std::path::Path;

use super::data_requests as data;
use crate::config::{Config, Layer, resolve};
use crate::protocol::{Failure, Progress, Reply, Request};
use crate::runs::{self, CHECKPOINTS_FOLDER, EVENTS_FILE, Introduction, ModelSource, Tail};

/// Returns the last reply to a request, and passes earlier ones to `reply`. Returns `None` for a request
/// without a reply, or one that the platform answers.
pub(super) fn answer(
    request: Request,
    reply: &mut dyn FnMut(Reply),
) -> Result<Option<Reply>, Failure> {
    Ok(Some(match request {
        Request::DescribeData { spec } => Reply::Data { data: data::describe_fully(&spec), spec },
        Request::Prepare { texts, folder, model } => {
            data::prepare(texts, &folder, model.as_deref(), reply)?
        }
        Request::ListRuns { folder } => {
            Reply::Runs { runs: runs::list(&folder).unwrap_or_default(), folder }
        }
        Request::ReadRun { run, view } => {
            let (progress, tail) = read_run(&run)?;
            Reply::Run { run, view, progress: Box::new(progress), tail }
        }
        Request::Compare { runs } => match runs.each_ref().map(|run| runs::config(run)) {
            [Some(a), Some(b)] => Reply::Comparison { runs, configs: Box::new([a, b]) },
            _ => return Ok(None),
        },
        Request::DescribeModel { path } => {
            let has_chat = runs::has_chat(&path);
            let introduction = if has_chat { Introduction::of(&path) } else { Default::default() };
            Reply::Model { has_chat, introduction, path }
        }
        Request::Fork { checkpoint } => {
            Reply::Config { config: Box::new(config_of(&checkpoint)?), checkpoint }
        }
        Request::Describe { run, about } => {
            runs::describe(&run, &about).map_err(Failure::io("write", &run))?;
            Reply::Described
        }
        _ => return Ok(None),
    }))
}

/// Reads the record of a run, and where it ends. A run without a record has only begun.
fn read_run(run: &Path) -> Result<(Progress, Tail), Failure> {
    let (mut progress, tail) = match runs::follow(run) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (Progress::default(), Tail::open(run, true))
        }
        read => read.map_err(Failure::io("read", &run.join(EVENTS_FILE)))?,
    };
    // A run that was started from another folder recorded paths relative to that.
    for checkpoint in &mut progress.checkpoints {
        if let Some(name) = checkpoint.path.file_name() {
            checkpoint.path = run.join(CHECKPOINTS_FOLDER).join(name);
        }
    }
    Ok((progress, tail))
}

/// Returns the configuration of the checkpoint's run, else one with the model's shapes.
fn config_of(checkpoint: &Path) -> Result<Config, Failure> {
    if let Some(config) = checkpoint.ancestors().take(3).find_map(runs::config) {
        return Ok(config);
    }
    let settings = runs::settings(&ModelSource::open(checkpoint)?.architecture);
    let settings = settings.into_iter().map(|(key, value)| (key.to_string(), value));
    Ok(resolve(vec![Layer::flags(settings)?])?.config)
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
