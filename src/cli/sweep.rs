//! `wgpt sweep`: trains every combination of some settings with several seeds, and compares the results.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::activity::style;
use super::args::{ConfigFlags, ConfigSource, Global, SweepArgs, TrainArgs};
use super::recipe;
use crate::config::{Config, KEYS, ValueKind};
use crate::protocol::{Event, Failure, Progress, RunPhase, StopReason};
use crate::report::{RunRecord, SweepRow, sweep_rows, sweep_table};
use crate::runs::has_checkpoint;
use crate::worker::training;

/// The file with the [`CommonSettings`] of a sweep.
const SWEEP_FILE: &str = "sweep.json";

/// Values of settings, as they are typed.
type Values = Vec<(String, String)>;

/// A run of a sweep.
struct SweptRun {
    /// The swept settings, without the seed.
    settings: String,
    values: Values,
    folder: PathBuf,
}

pub(super) fn run(args: SweepArgs, global: &Global) -> Result<(), Failure> {
    let SweepArgs { source, seeds, output, json } = args;
    let (common, swept) = split(&source.flags.typed);
    if swept.is_empty() && seeds < 2 {
        return Err(Failure::usage(
            "nothing to compare",
            "give several values, like --learning_rate=1e-3,3e-3, or --seeds=5",
        ));
    }
    let folder = output.unwrap_or_else(|| default_folder(&swept));
    // Each run replaces these values by its own.
    let first = swept.iter().map(|(key, values)| (key.clone(), values[0].clone())).collect();
    let source = ConfigSource { flags: ConfigFlags { typed: common }, ..source };
    let (train, common) = common_arguments(source, first, &folder, global)?;
    let config = train.source.clone().resolve(Vec::new(), None)?.config;
    config.require_data()?;
    let runs = runs(&config, &swept, seeds, &folder);
    // A value that is not allowed ends the sweep before its first run.
    for run in &runs {
        let mut source = train.source.clone();
        source.flags.typed.extend(run.values.iter().cloned());
        source.resolve(Vec::new(), None)?;
    }
    fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
    let file = folder.join(SWEEP_FILE);
    fs::write(&file, json!(common).to_string()).map_err(Failure::file(&file))?;
    let bar = if global.quiet || json { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let bar = bar.with_style(style("[{bar:20}] {percent}%, {eta} left, {wide_msg}"));
    bar.set_length(UNITS * runs.len() as u64);
    for (index, run) in runs.iter().enumerate() {
        let report = |progress: &Progress| {
            bar.set_position(UNITS * index as u64 + (progress.fraction() * UNITS as f32) as u64);
            let loss = progress.loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
            bar.set_message(format!("run {} of {}: {}{loss}", index + 1, runs.len(), run.name()));
        };
        if !train_run(run, &train, global, report)? {
            bar.finish_and_clear();
            let hint = "the same command continues it: finished runs are kept";
            return Err(Failure::new("the sweep was stopped", hint));
        }
    }
    bar.finish_and_clear();
    show(&runs, &folder, json)
}

/// Steps of the bar for each run.
const UNITS: u64 = 1000;

impl SweptRun {
    fn name(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// Divides the typed settings into those with one value and those with several.
fn split(typed: &Values) -> (Values, Vec<(String, Vec<String>)>) {
    let (mut common, mut swept) = (Vec::new(), Vec::new());
    for (key, text) in typed {
        let kind = KEYS.iter().find(|known| known.name == key).map(|known| known.kind);
        let takes_commas = matches!(kind, None | Some(ValueKind::Text | ValueKind::Words(_)));
        if takes_commas || !text.contains(',') {
            common.push((key.clone(), text.clone()));
        } else {
            // An empty value is refused with the others that are not allowed.
            let values = text.split(',').map(|value| value.trim().to_string()).collect();
            swept.push((key.clone(), values));
        }
    }
    (common, swept)
}

/// Returns a folder that the same sweep finds again.
fn default_folder(swept: &[(String, Vec<String>)]) -> PathBuf {
    let keys: Vec<&str> = swept.iter().map(|(key, _)| key.as_str()).collect();
    let name = if keys.is_empty() { "seeds".to_string() } else { keys.join("-") };
    Path::new("out").join(format!("sweep-{name}"))
}

/// Returns every combination of the values with every seed: all settings with the first seed come first.
fn runs(
    config: &Config,
    swept: &[(String, Vec<String>)],
    seeds: u32,
    folder: &Path,
) -> Vec<SweptRun> {
    let mut combinations: Vec<Values> = vec![Vec::new()];
    for (key, values) in swept {
        let with = |before: &Values, value: &String| {
            let mut all = before.clone();
            all.push((key.clone(), value.clone()));
            all
        };
        combinations = combinations
            .iter()
            .flat_map(|before| values.iter().map(|value| with(before, value)))
            .collect();
    }
    let seeds = (0..u64::from(seeds)).map(|number| config.seed.wrapping_add(number));
    let of_seed = |seed: u64| {
        combinations.clone().into_iter().map(move |mut values| {
            let assigned = |(key, value): &(String, String)| format!("{key}={value}");
            let settings: Vec<String> = values.iter().map(assigned).collect();
            values.push(("seed".into(), seed.to_string()));
            let name: Vec<String> = values.iter().map(assigned).collect();
            let folder = folder.join(name.join(","));
            let settings =
                if settings.is_empty() { "the same settings".into() } else { settings.join(" ") };
            SweptRun { settings, values, folder }
        })
    };
    seeds.flat_map(of_seed).collect()
}

/// The settings that all runs of a sweep share, as its folder records them.
#[derive(Serialize, Deserialize)]
struct CommonSettings {
    /// As they were typed.
    typed: Vec<String>,
    /// The same with those that the rule has chosen for the time.
    all: Values,
}

/// Returns the arguments that all runs of the sweep share, with the values of `first` for the swept settings,
/// and what its folder is to record. The arguments of a sweep in `folder` are kept: the rule would choose
/// others after another measurement.
///
/// # Errors
/// If the sweep in `folder` was started with other settings.
fn common_arguments(
    mut source: ConfigSource,
    first: Values,
    folder: &Path,
    global: &Global,
) -> Result<(TrainArgs, CommonSettings), Failure> {
    let typed = source.arguments().into_iter().map(|text| text.to_string_lossy().into_owned());
    let typed: Vec<String> = typed.collect();
    let before = fs::read(folder.join(SWEEP_FILE)).ok();
    let before = before.and_then(|text| serde_json::from_slice::<CommonSettings>(&text).ok());
    if let Some(before) = before {
        if before.typed != typed {
            let text = format!("{} has a sweep with other settings", folder.display());
            return Err(Failure::usage(text, "give another folder with --output"));
        }
        let flags = ConfigFlags { typed: before.all.clone() };
        return Ok((TrainArgs::of(ConfigSource { flags, ..source }), before));
    }
    source.flags.typed.extend(first);
    let train = recipe::with_choice(TrainArgs::of(source), global)?;
    let all = train.source.flags.typed.clone();
    Ok((train, CommonSettings { typed, all }))
}

/// Trains a run, or continues it, unless it has ended. Returns false if it was stopped.
fn train_run(
    run: &SweptRun,
    train: &TrainArgs,
    global: &Global,
    report: impl Fn(&Progress),
) -> Result<bool, Failure> {
    if let Some(progress) = ended(run) {
        report(&progress);
        return Ok(true);
    }
    let mut progress = Progress::default();
    report(&progress);
    let mut child = start(run, train, global)
        .map_err(|error| Failure::new(format!("a process of wgpt did not start: {error}"), ""))?;
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    for line in lines.into_iter().flatten().map_while(Result::ok) {
        if let Ok(event) = serde_json::from_str::<Event>(&line) {
            progress.apply(&event);
            report(&progress);
        }
    }
    let _ = child.wait();
    match progress.state {
        RunPhase::Finished(StopReason::Finished | StopReason::MaxTime) => Ok(true),
        // A learning rate that is too high, for example.
        RunPhase::Failed(_) if progress.iteration > 0 => Ok(true),
        RunPhase::Failed(error) => Err(Failure::new(error.text, &error.hint)),
        _ => Ok(false),
    }
}

/// Returns the record of a run that has ended by itself: with its last update, or with an error that it would
/// have again.
fn ended(run: &SweptRun) -> Option<Progress> {
    let RunRecord { progress, .. } = RunRecord::read(&run.folder).ok()?;
    let is_over = match &progress.state {
        RunPhase::Finished(reason) => matches!(reason, StopReason::Finished | StopReason::MaxTime),
        RunPhase::Failed(error) => error.cause.is_none() && progress.iteration > 0,
        _ => false,
    };
    is_over.then_some(progress)
}

fn start(run: &SweptRun, train: &TrainArgs, global: &Global) -> std::io::Result<Child> {
    let mut process = training(&run.folder)?;
    process.arg(format!("--device={}", global.typed_device()));
    if has_checkpoint(&run.folder) {
        process.arg("--resume");
    }
    process.args(train.source.arguments());
    process.args(run.values.iter().map(|(key, value)| format!("--{key}={value}")));
    process.spawn()
}

/// Prints the table of the sweep.
fn show(runs: &[SweptRun], folder: &Path, json: bool) -> Result<(), Failure> {
    let records: Vec<(&str, Option<Progress>)> =
        runs.iter().map(|run| (run.settings.as_str(), ended(run))).collect();
    let has_bytes =
        records.iter().flat_map(|(_, run)| run).all(|run| run.bytes_per_token.is_some());
    let metric = if has_bytes { "bits per byte" } else { "validation loss" };
    let result = |progress: &Progress| {
        let loss = progress.val_loss.filter(|_| !matches!(progress.state, RunPhase::Failed(_)))?;
        let bytes = progress.bytes_per_token.filter(|_| has_bytes);
        Some(bytes.map_or(loss, |bytes| loss / std::f64::consts::LN_2 / bytes))
    };
    let mut results: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for (settings, progress) in &records {
        let value = progress.as_ref().and_then(result);
        match results.iter_mut().find(|(known, _)| known == settings) {
            Some((_, values)) => values.push(value),
            None => results.push((settings.to_string(), vec![value])),
        }
    }
    let rows: Vec<SweepRow> = sweep_rows(results);
    if json {
        output!("{}", json!({ "metric": metric, "rows": rows, "folder": folder }));
        return Ok(());
    }
    output!("{}", sweep_table(&rows, metric).plain(&[2, 3, 4]).trim_end());
    output!(
        "p: the probability of such a difference from the first row by chance (Welch's t-test)"
    );
    message!("wgpt compare {}/*/ -o sweep.html  draws the curves", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_values_are_swept_and_texts_with_commas_are_not() {
        let typed = [
            ("learning_rate", "1e-3,3e-3"),
            ("log", "csv,tensorboard"),
            ("optimizer", "adamw, muon"),
            ("max_iters", "100"),
        ];
        let typed: Values = typed.map(|(key, text)| (key.to_string(), text.to_string())).into();
        let (common, swept) = split(&typed);
        assert_eq!(common.len(), 2);
        let all = runs(&Config::default(), &swept, 2, Path::new("out/s"));
        let names: Vec<&str> = all.iter().map(SweptRun::name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "learning_rate=1e-3,optimizer=adamw,seed=1337");
        assert_eq!(names[5], "learning_rate=1e-3,optimizer=muon,seed=1338");
        assert_eq!(all[5].settings, "learning_rate=1e-3 optimizer=muon");
        assert_eq!(default_folder(&swept), Path::new("out/sweep-learning_rate-optimizer"));
    }
}
