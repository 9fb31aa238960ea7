//! `wgpt sweep`: trains every combination of some settings with several seeds, and compares the results.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::activity::bar;
use super::args::{Global, SweepArgs};
use super::{recipe, train};
use crate::config::{ConfigSource, KEYS, RunLength, ValueKind};
use crate::disk;
use crate::protocol::{Exit, Failure, Progress, RunPhase, StartRun, StopReason};
use crate::ranks::Group;
use crate::report::{RunRecord, SWEEP_FILE, Sweep};
use crate::runs::has_checkpoint;
use crate::worker::{Ended, start_silently};

/// Typed values of settings.
type Values = Vec<(String, String)>;

/// A run of a sweep.
struct SweptRun {
    /// All settings that differ from the default.
    settings: Values,
    folder: PathBuf,
}

pub(super) fn run(args: SweepArgs, global: &Global) -> Result<(), Failure> {
    let SweepArgs { source, seeds, output, json } = args;
    let devices: Vec<Global> =
        global.typed_device().split(',').map(|name| global.with_device(name.trim())).collect();
    for device in &devices {
        device.device()?;
    }
    let global = &devices[0];
    let (common, swept) = split(&source.flags);
    if swept.is_empty() && seeds < 2 {
        return Err(Failure::usage(
            "nothing to compare",
            "give several values, like --learning_rate=1e-3,3e-3, or --seeds=5",
        ));
    }
    let folder = output.unwrap_or_else(|| default_folder(&swept));
    let combinations = combinations(&swept);
    let source = ConfigSource { flags: common, ..source };
    let settings = all_settings(&source, &combinations, &folder, global)?;
    // The settings of each combination have the length.
    let source = ConfigSource { flags: Vec::new(), length: None, ..source };
    let seed = with(&source, &settings[0]).resolve(Vec::new(), None)?.config.seed;
    let runs = runs(seed, seeds, &combinations, &settings, &folder);
    let template = "[{bar:20}] {percent}%, {eta} left, {wide_msg}";
    let bar = bar(global.quiet || json, UNITS * runs.len() as u64, template);
    train_all(&runs, &source, &devices, &bar)?;
    show(&folder, json)
}

/// Steps of the bar for each run.
const UNITS: u64 = 1000;

/// The interval at which we check if a trainer has ended. Its events come at once.
const POLL: Duration = Duration::from_millis(50);

/// Trains the runs in their order, one at a time on each of `devices`.
fn train_all(
    runs: &[SweptRun],
    source: &ConfigSource,
    devices: &[Global],
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let shares: Vec<AtomicU64> = runs.iter().map(|_| AtomicU64::new(0)).collect();
    let train = |device: &Global| {
        while let Some((index, run)) = runs.iter().enumerate().nth(next.fetch_add(1, Relaxed)) {
            let report = |progress: &Progress| {
                let share = (progress.fraction() * UNITS as f32) as u64;
                shares[index].store(share, Relaxed);
                bar.set_position(shares.iter().map(|share| share.load(Relaxed)).sum());
                let loss = progress.loss.map_or(String::new(), |loss| format!(", loss {loss:.4}"));
                let name = run.folder.file_name().unwrap_or_default().display();
                bar.set_message(format!("run {} of {}: {name}{loss}", index + 1, runs.len()));
            };
            let hint = "the same command continues it: finished runs are kept";
            let ended = match train_run(run, source, device, report) {
                Ok(true) => continue,
                Ok(false) => Err(Failure::new("the sweep was stopped", hint)),
                Err(failure) => Err(failure),
            };
            // The other devices finish their runs and begin no more.
            next.store(runs.len(), Relaxed);
            return ended;
        }
        Ok(())
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = devices.iter().map(|device| scope.spawn(|| train(device))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    bar.finish_and_clear();
    for result in ended {
        result.unwrap_or_else(|panic| resume_unwind(panic))?;
    }
    Ok(())
}

/// Divides the typed settings into those with one value and those with several.
fn split(typed: &Values) -> (Values, Vec<(String, Vec<String>)>) {
    let mut common = Vec::new();
    let mut swept = Vec::new();
    for (key, text) in typed {
        let kind = KEYS.iter().find(|known| known.name == key).map(|known| known.kind);
        let takes_commas = matches!(
            kind,
            None | Some(
                ValueKind::Text | ValueKind::Words(_) | ValueKind::Scaling | ValueKind::Hours
            )
        );
        if takes_commas || !text.contains(',') {
            common.push((key.clone(), text.clone()));
        } else {
            // An empty value is refused later, with others that are not allowed.
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

/// Returns every combination of the values.
fn combinations(swept: &[(String, Vec<String>)]) -> Vec<Values> {
    let mut all: Vec<Values> = vec![Vec::new()];
    for (key, values) in swept {
        let with = |before: &Values, value: &String| {
            [&before[..], &[(key.clone(), value.clone())]].concat()
        };
        all =
            all.iter().flat_map(|before| values.iter().map(|value| with(before, value))).collect();
    }
    all
}

/// Returns the runs of the `combinations` with each of `seeds` seeds from `seed` on: all combinations with the
/// first seed come first. `settings` has the complete settings of each combination.
fn runs(
    seed: u64,
    seeds: u32,
    combinations: &[Values],
    settings: &[Values],
    folder: &Path,
) -> Vec<SweptRun> {
    let of_seed = |number: u32| {
        combinations.iter().zip(settings).map(move |(values, settings)| {
            let seed = ("seed".to_string(), seed.wrapping_add(number.into()).to_string());
            let named = [&values[..], std::slice::from_ref(&seed)].concat();
            let named: Vec<_> = named.iter().map(|(key, value)| format!("{key}={value}")).collect();
            SweptRun {
                settings: [&settings[..], &[seed]].concat(),
                folder: folder.join(named.join(",")),
            }
        })
    };
    (0..seeds).flat_map(of_seed).collect()
}

/// Returns `source` with `values` as more flags.
fn with(source: &ConfigSource, values: &Values) -> ConfigSource {
    ConfigSource { flags: [&source.flags[..], values].concat(), ..source.clone() }
}

/// The record in the folder of a sweep. The rule would choose other settings after another measurement.
#[derive(Serialize, Deserialize)]
struct SweepRecord {
    /// The settings that all runs share, as they were typed.
    typed: Vec<String>,
    /// Each combination with these, and with the rule's choice for it.
    settings: Vec<Values>,
}

/// Returns the settings of each of `combinations`, with the rule's choice if the sweep has a time and no preset.
/// Records them in `folder`, or takes them from its record.
///
/// # Errors
/// If the sweep in `folder` was started with other settings, or a value is not allowed.
fn all_settings(
    source: &ConfigSource,
    combinations: &[Values],
    folder: &Path,
    global: &Global,
) -> Result<Vec<Values>, Failure> {
    let typed = typed(source);
    let file = folder.join(SWEEP_FILE);
    // A sweep whose first run was refused leaves nothing to continue.
    let has_runs = disk::read_dir(folder)
        .is_ok_and(|entries| entries.flatten().any(|entry| disk::is_dir(&entry.path())));
    let before = disk::read_own(&file).ok().filter(|_| has_runs);
    let before = before.and_then(|text| serde_json::from_slice(&text).ok());
    let mut record = before.unwrap_or(SweepRecord { typed: typed.clone(), settings: Vec::new() });
    if record.typed != typed {
        let text = format!("{} has a sweep with other settings", folder.display());
        return Err(Failure::usage(text, "give another folder with --output"));
    }
    let mut all = Vec::new();
    for values in combinations {
        let has = |settings: &&Values| values.iter().all(|value| settings.contains(value));
        let known = record.settings.iter().find(has).cloned();
        all.push(match known {
            Some(known) => known,
            None => chosen(with(source, values), global)?,
        });
    }
    let new = all.iter().filter(|settings| !record.settings.contains(settings)).cloned();
    record.settings.extend(new.collect::<Vec<_>>());
    disk::replace_json(&file, &record).map_err(Failure::file(&file))?;
    Ok(all)
}

/// Returns what was typed, for the record of a sweep.
fn typed(source: &ConfigSource) -> Vec<String> {
    let file = source.file.iter().map(|file| file.to_string_lossy().into_owned());
    let preset = source.preset.iter().map(|name| format!("--preset={name}"));
    let flags = source.flags.iter().map(|(key, text)| format!("--{key}={text}"));
    let length = source.length.iter().map(RunLength::to_string);
    file.chain(preset).chain(flags).chain(length).collect()
}

/// Returns the settings of `source` with the rule's choice.
fn chosen(source: ConfigSource, global: &Global) -> Result<Values, Failure> {
    let config = source.clone().resolve(Vec::new(), None)?.config;
    config.require_data()?;
    if config.end_at.is_some() {
        let text = "the runs of a sweep cannot end at a moment";
        return Err(Failure::usage(text, "give each of them a time, like --time=10min"));
    }
    let typed = source.flags.len();
    let choice = recipe::with_choice(source, global, 1)?.0;
    let is_chosen = choice.flags.len() > typed;
    let mut settings = choice.with_settled_length(&[], None)?.flags;
    if is_chosen {
        // The updates are chosen for the time. A run that found the machine busy would shorten them.
        settings.push(("max_time".into(), "0".into()));
    }
    Ok(settings)
}

/// Trains a run, or continues it, unless it has ended. Returns false if it was stopped.
fn train_run(
    run: &SweptRun,
    source: &ConfigSource,
    global: &Global,
    report: impl Fn(&Progress),
) -> Result<bool, Failure> {
    if let Some(known) = RunRecord::read(&run.folder).ok().filter(RunRecord::has_ended) {
        report(&known.progress);
        return Ok(true);
    }
    let mut progress = Progress::default();
    report(&progress);
    let start = StartRun {
        run: run.folder.clone(),
        resume: has_checkpoint(&run.folder),
        quiet: true,
        ..train::start_with(with(source, &run.settings), global)?
    };
    let (start, _) = train::resolve(start, &mut Group::alone())?;
    let this = thread::current();
    let mut trainer = start_silently(start, move || this.unpark())
        .map_err(|error| Failure::new(format!("could not start a wgpt process: {error}"), ""))?;
    let mut ended = None;
    while ended.is_none() {
        thread::park_timeout(POLL);
        let events;
        (events, ended) = trainer.receive();
        events.iter().for_each(|event| progress.apply(event));
        report(&progress);
    }
    match progress.state {
        RunPhase::Finished(StopReason::Finished | StopReason::MaxTime) => Ok(true),
        // A learning rate that is too high, for example.
        RunPhase::Failed(_) if progress.iteration > 0 => Ok(true),
        RunPhase::Failed(error) => {
            let code = if let Some(Ended::Code(code)) = ended { code } else { 1 };
            Err(Failure::new(error.text, &error.hint).with_exit(Exit::of_code(code)))
        }
        _ => Ok(false),
    }
}

/// Prints the table of the sweep.
fn show(folder: &Path, json: bool) -> Result<(), Failure> {
    let sweep = Sweep::read(folder)?;
    if json {
        output!("{}", json!(sweep));
        return Ok(());
    }
    output!("{}", sweep.table().plain(&[2, 3, 4]).trim_end());
    output!(
        "p: the probability of such a difference from the first row by chance (Welch's t-test)"
    );
    message!("wgpt compare {} -o sweep.html  draws the curves", folder.display());
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
            ("hours", "mon-fri 23:00-07:00, sat-sun"),
            ("optimizer", "adamw, muon"),
            ("max_iters", "100"),
        ];
        let typed: Values = typed.map(|(key, text)| (key.to_string(), text.to_string())).into();
        let (common, swept) = split(&typed);
        assert_eq!(common.len(), 3);
        let combinations = combinations(&swept);
        let all = runs(1337, 2, &combinations, &combinations, Path::new("out/s"));
        assert_eq!(all.len(), 8);
        assert_eq!(all[0].folder, Path::new("out/s/learning_rate=1e-3,optimizer=adamw,seed=1337"));
        assert_eq!(all[5].folder, Path::new("out/s/learning_rate=1e-3,optimizer=muon,seed=1338"));
        assert_eq!(all[5].settings.last(), Some(&("seed".into(), "1338".into())));
        assert_eq!(default_folder(&swept), Path::new("out/sweep-learning_rate-optimizer"));
    }
}
