//! `wgpt bench --result`: what a device learns in a fixed time, as a part of its benchmark row, and `--verify`, which
//! repeats the beginning of such a run.

use std::path::Path;
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::activity::bar;
use super::args::{BenchArgs, Global};
use super::benchmark_row::{check_vacant, describe, former};
use super::find_model::select_device;
use super::{recipe, train};
use crate::config::{BUILTIN_STORIES, ConfigSource};
use crate::data::Dataset;
use crate::disk;
use crate::protocol::{Command, Event, Failure, Progress, RunPhase, StartRun, StopReason};
use crate::ranks::Group;
use crate::text::count;
use crate::version::{COMMIT, VERSION};
use crate::worker::start_silently;

/// The most updates that a verification repeats, and their largest share of a run. Their losses do not depend on how fast
/// the device is: the learning rate begins to decay later.
const REPEATED: u64 = 100;
const REPEATED_SHARE: u64 = 4;

/// The relative difference of losses in these updates that another device or dtype may have.
const TOLERANCE: f64 = 0.01;

/// The interval at which we check if the trainer has ended. Its events come at once.
const POLL: Duration = Duration::from_millis(50);

/// A result in the file of a benchmark row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TimedResult {
    /// The time that the run was given.
    seconds: u64,
    data: String,
    /// The hash of the data.
    data_hash: String,
    wgpt: String,
    commit: Option<String>,
    /// Of the validation split, the lowest.
    bits_per_byte: f64,
    val_loss: f64,
    parameters: u64,
    updates: u64,
    tokens: u64,
    /// The energy that the device reported.
    joules: Option<f64>,
    /// The settings of the run that are not the default, as flags.
    settings: Vec<(String, String)>,
    /// The iteration and the loss of the first updates.
    losses: Vec<(u64, f64)>,
}

impl TimedResult {
    /// Returns the hash that tells an edited result from what wgpt wrote. It is no signature.
    fn digest(&self) -> String {
        blake3::hash(json!(self).to_string().as_bytes()).to_hex()[..16].into()
    }

    fn name(&self) -> String {
        format!("the result of {} on {}", duration(self.seconds), self.data)
    }
}

fn duration(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

/// Trains the rule's model for `time`, and adds the result to the benchmark row at `path`.
pub(super) fn run(
    args: BenchArgs,
    time: Duration,
    path: &Path,
    global: &Global,
) -> Result<(), Failure> {
    check_vacant(path)?;
    let info = select_device(global)?.info;
    let mut source = args.source;
    if source.typed("data").is_none() {
        source.flags.push(("data".into(), BUILTIN_STORIES.into()));
    }
    source.flags.push(("max_time".into(), humantime::format_duration(time).to_string()));
    let chosen = recipe::with_choice(source, global, 1)?.0;
    let config = chosen.clone().resolve(Vec::new(), None)?.config;
    let data = Dataset::open(&config.data, u64::from(config.block_size.get()))?;
    let bar = bar(global.quiet, 1000, "[{bar:20}] {percent}%, {wide_msg}");
    let trained = train(chosen.clone(), global, None, &bar)?;
    let (Some(bits_per_byte), Some(val_loss)) = (trained.bits_per_byte, trained.val_loss) else {
        let text = format!("{} has no evaluation with bits per byte", config.data);
        return Err(Failure::new(
            text,
            "take data that `wgpt prepare` has made, and a longer time",
        ));
    };
    let progress = &trained.progress;
    let each = config.global_batch() * u64::from(config.block_size.get());
    let mut losses = trained.losses;
    let last = progress.iteration.min(config.max_iters.get()) / REPEATED_SHARE;
    losses.retain(|(iter, _)| *iter <= last);
    let result = TimedResult {
        seconds: time.as_secs(),
        data: data.name.clone(),
        data_hash: data.fingerprint.clone(),
        wgpt: VERSION.into(),
        commit: COMMIT.map(str::to_string),
        bits_per_byte,
        val_loss,
        parameters: progress.params,
        updates: progress.iteration,
        tokens: progress.iteration * each,
        joules: trained.joules,
        settings: chosen.flags,
        losses,
    };
    let mut card = former(path).unwrap_or_else(|| json!({ "rows": [] }));
    describe(&mut card, &info);
    let mut row = json!(result);
    row["digest"] = result.digest().into();
    add(&mut card, row);
    disk::write(path, format!("{card:#}\n")).map_err(Failure::file(path))?;
    let [parameters, tokens] = [result.parameters, result.tokens].map(count);
    let energy = result.joules.map(|joules| format!(", {joules:.0} J")).unwrap_or_default();
    output!(
        "{bits_per_byte:.4} bits per byte in {}: {parameters} parameters, {tokens} tokens{energy}",
        duration(result.seconds)
    );
    output!("{}", path.display());
    Ok(())
}

/// Adds a result to a benchmark row, in place of one of the same time and data.
fn add(card: &mut Value, row: Value) {
    let same = |other: &Value| ["seconds", "data_hash"].iter().all(|key| other[key] == row[key]);
    let mut results = card["results"].as_array().cloned().unwrap_or_default();
    results.retain(|other| !same(other));
    results.push(row);
    card["results"] = results.into();
}

/// The results of a run.
struct Trained {
    progress: Progress,
    bits_per_byte: Option<f64>,
    val_loss: Option<f64>,
    joules: Option<f64>,
    /// Of its first updates.
    losses: Vec<(u64, f64)>,
}

/// Trains a run in a temporary folder, or only its first `updates`.
fn train(
    source: ConfigSource,
    global: &Global,
    updates: Option<u64>,
    bar: &ProgressBar,
) -> Result<Trained, Failure> {
    let folder = tempfile::tempdir().map_err(|error| {
        Failure::new(format!("cannot make a temporary folder: {error}"), "is the disk full?")
    })?;
    let start = train::start_with(source, global)?;
    let start = StartRun { run: folder.path().join("run"), quiet: true, ..start };
    let (start, _) = train::resolve(start, &mut Group::alone())?;
    let this = thread::current();
    let mut trainer = start_silently(start, move || this.unpark())
        .map_err(|error| Failure::new(format!("could not start a wgpt process: {error}"), ""))?;
    let mut trained = Trained {
        progress: Progress::default(),
        bits_per_byte: None,
        val_loss: None,
        joules: None,
        losses: Vec::new(),
    };
    let mut ended = None;
    while ended.is_none() {
        thread::park_timeout(POLL);
        let events;
        (events, ended) = trainer.receive();
        for event in &events {
            trained.take(event);
            let is_enough = updates.is_some_and(|updates| trained.progress.iteration >= updates);
            if is_enough && matches!(event, Event::Step(_)) {
                // A trainer that has ended takes no command.
                let _ = trainer.send(&Command::Stop);
            }
        }
        let progress = &trained.progress;
        let fraction = match updates {
            Some(updates) => progress.iteration as f32 / updates as f32,
            None => progress.fraction(),
        };
        bar.set_position((1000.0 * fraction.min(1.0)) as u64);
        let loss = progress.loss.map(|loss| format!("loss {loss:.4}"));
        bar.set_message(loss.unwrap_or_default());
    }
    bar.finish_and_clear();
    match &trained.progress.state {
        RunPhase::Finished(StopReason::Finished | StopReason::MaxTime) => Ok(trained),
        RunPhase::Finished(StopReason::Stopped) if updates.is_some() => Ok(trained),
        RunPhase::Failed(error) => Err(Failure::new(error.text.clone(), &error.hint)),
        _ => Err(Failure::new("the run was stopped", "begin again; nothing was written")),
    }
}

impl Trained {
    fn take(&mut self, event: &Event) {
        self.progress.apply(event);
        match event {
            Event::Step(step) => {
                if step.iter <= REPEATED {
                    self.losses.push((step.iter, step.loss));
                }
                let watts = step.health.as_ref().and_then(|health| health.watts);
                let updates =
                    self.progress.config.as_ref().map_or(1, |config| config.log_interval.get());
                if let Some(watts) = watts {
                    let joules = watts * step.ms * 1e-3 * updates as f64;
                    self.joules = Some(self.joules.unwrap_or(0.0) + joules);
                }
            }
            Event::Eval { bits_per_byte: Some(bits), val_loss, .. }
                if self.bits_per_byte.is_none_or(|lowest| *bits < lowest) =>
            {
                (self.bits_per_byte, self.val_loss) = (Some(*bits), Some(*val_loss));
            }
            _ => {}
        }
    }
}

/// Runs `wgpt bench --verify`: repeats the first updates of each result of the benchmark row at `path`.
///
/// # Errors
/// If a result was edited, or does not repeat here.
pub(super) fn verify(path: &Path, global: &Global) -> Result<(), Failure> {
    let card: Value = serde_json::from_slice(&disk::read(path).map_err(Failure::file(path))?)
        .map_err(|error| not_a_row(path, &error.to_string()))?;
    let rows = card["results"].as_array().filter(|rows| !rows.is_empty());
    let rows = rows.ok_or_else(|| {
        let text = format!("{}: no results to verify", path.display());
        Failure::bad_data(text, "`wgpt bench --result=5min --card FILE` adds one")
    })?;
    for (number, row) in (1..).zip(rows) {
        let result: TimedResult = serde_json::from_value(row.clone())
            .map_err(|error| not_a_row(path, &format!("result {number}: {error}")))?;
        if row["digest"] != result.digest().as_str() {
            let text = format!("{}: {} was edited", path.display(), result.name());
            return Err(Failure::bad_data(text, "ask for the file that wgpt wrote"));
        }
        let difference = repeat(&result, global)?;
        let name = result.name();
        output!("{name} repeats: its first losses differ by at most {:.4}%", 100.0 * difference);
    }
    Ok(())
}

fn not_a_row(path: &Path, reason: &str) -> Failure {
    let text = format!("{}: not a benchmark row: {reason}", path.display());
    Failure::bad_data(text, "give a file that `wgpt bench --card` has written")
}

/// Repeats the first updates of a result. Returns the largest relative difference of their losses.
fn repeat(result: &TimedResult, global: &Global) -> Result<f64, Failure> {
    // The schedule must not follow the speed of this device.
    let fixed = [("max_time", ""), ("fill_time", "false")];
    let fixed = fixed.map(|(key, text)| (key.to_string(), text.to_string()));
    let flags = [&result.settings[..], &fixed].concat();
    let source = ConfigSource { flags, ..ConfigSource::default() };
    let config = source.clone().resolve(Vec::new(), None)?.config;
    let data = Dataset::open(&config.data, u64::from(config.block_size.get()))?;
    if data.fingerprint != result.data_hash {
        let text = format!("{}: {} here are other data", result.name(), config.data);
        return Err(Failure::bad_data(text, "fetch and prepare the same data first"));
    }
    let last = result.losses.last().map_or(0, |(iter, _)| *iter);
    let bar = bar(global.quiet, 1000, "[{bar:20}] {percent}%, {wide_msg}");
    let repeated = train(source, global, Some(last + 1), &bar)?;
    compare(&result.name(), &result.losses, &repeated.losses)
}

/// Returns the largest relative difference of the losses of two runs in the same updates.
fn compare(name: &str, before: &[(u64, f64)], now: &[(u64, f64)]) -> Result<f64, Failure> {
    let mut largest = 0.0_f64;
    let mut compared = 0;
    for (iter, before) in before {
        let Some((_, now)) = now.iter().find(|(other, _)| other == iter) else { continue };
        let difference = ((now - before) / before).abs();
        if difference.is_nan() || difference > TOLERANCE {
            let text = format!(
                "{name} does not repeat: update {iter} has a loss of {now:.4} here, and {before:.4} in the file"
            );
            return Err(Failure::bad_data(text, "the file is not of this program and these data"));
        }
        largest = largest.max(difference);
        compared += 1;
    }
    if compared == 0 {
        let text = format!("{name} has no losses to compare");
        return Err(Failure::bad_data(text, "ask for the file that wgpt wrote"));
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> TimedResult {
        TimedResult {
            seconds: 300,
            data: "builtin:stories".into(),
            data_hash: "abc".into(),
            wgpt: VERSION.into(),
            commit: None,
            bits_per_byte: 0.52,
            val_loss: 0.44,
            parameters: 238_000,
            updates: 1500,
            tokens: 1_000_000,
            joules: None,
            settings: vec![("n_layer".into(), "2".into())],
            losses: vec![(0, 3.5), (10, 2.5)],
        }
    }

    #[test]
    fn an_edited_result_has_another_digest() {
        let written = result();
        let text = json!(written).to_string();
        let read: TimedResult = serde_json::from_str(&text).unwrap();
        assert_eq!(read.digest(), written.digest());
        assert_ne!(TimedResult { bits_per_byte: 0.42, ..result() }.digest(), written.digest());
        assert_ne!(TimedResult { tokens: 1, ..result() }.digest(), written.digest());
    }

    #[test]
    fn a_new_result_replaces_that_of_the_same_time_and_data() {
        let mut card = json!({ "rows": [] });
        for result in [
            result(),
            TimedResult { seconds: 3600, ..result() },
            TimedResult { bits_per_byte: 0.4, ..result() },
        ] {
            add(&mut card, json!(result));
        }
        let results = card["results"].as_array().unwrap();
        let bits: Vec<&Value> = results.iter().map(|row| &row["bits_per_byte"]).collect();
        assert_eq!(bits, [&json!(0.52), &json!(0.4)]);
    }

    #[test]
    fn losses_of_the_same_updates_are_compared() {
        let before = [(0, 3.5), (10, 2.5), (20, 2.0)];
        assert_eq!(compare("r", &before, &before).unwrap(), 0.0);
        let close = compare("r", &before, &[(0, 3.5), (10, 2.5025)]).unwrap();
        assert!((close - 0.001).abs() < 1e-9, "{close}");
        let error = compare("r", &before, &[(0, 3.5), (10, 2.6)]).unwrap_err().text;
        assert!(error.contains("update 10 has a loss of 2.6000 here, and 2.5000"), "{error}");
        assert!(compare("r", &before, &[(0, f64::NAN)]).is_err());
        assert!(compare("r", &before, &[]).is_err());
    }
}
