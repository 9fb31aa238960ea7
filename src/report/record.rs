//! The record of a run: its results, curves and settings.

use std::f64::consts::LN_2;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::chart::ChartCurve;
use crate::config::Config;
use crate::disk;
use crate::protocol::{Cumulative, Failure, Progress, Series, Smoothed, automatic_half_life};
use crate::runs::{self, CONFIG_FILE, EVENTS_FILE};
use crate::text::{bytes, count, duration, known, percent};

/// The approximate number of points of a curve in a chart.
const COLUMNS: usize = 300;

pub(crate) struct RunRecord {
    /// The display name, or else the name of the folder.
    pub title: String,
    pub state: &'static str,
    pub progress: Progress,
    /// `None` if this version of wgpt cannot read it.
    pub config: Option<Config>,
}

/// Returns the value of a setting for a page: paths without their folders, in the form of any system.
pub(super) fn shown(key: &str, value: String) -> String {
    if !matches!(key, "data" | "init_from" | "hellaswag") {
        return value;
    }
    let last = value.rsplit(['/', '\\']).find(|name| !name.is_empty());
    last.unwrap_or(&value).to_string()
}

/// The x axis of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tokens,
    /// Time spent on updates.
    Minutes,
    Hours,
    /// Floating-point operations.
    Compute,
}

impl Over {
    /// Returns the time axis on which the longest run has numbers that are easy to read.
    pub fn time(longest: Duration) -> Self {
        if longest < Duration::from_hours(3) { Self::Minutes } else { Self::Hours }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Minutes => "minutes of training",
            Self::Hours => "hours of training",
            Self::Compute => "floating-point operations (10^12)",
        }
    }
}

impl RunRecord {
    pub fn read(run: &Path) -> Result<Self, Failure> {
        disk::try_exists(&run.join(CONFIG_FILE)).map_err(Failure::file(run))?;
        if !runs::is_run(run) {
            let hint = "give run folders; `wgpt runs` lists the runs in out/";
            return Err(Failure::usage(format!("{}: not a run", run.display()), hint));
        }
        let record = run.join(EVENTS_FILE);
        let (progress, _) = runs::follow(run).map_err(Failure::file(record))?;
        let summary = runs::summary(run.to_path_buf());
        let config = progress.config.as_deref().cloned().or_else(|| runs::config(run));
        let title = summary.title().to_string();
        Ok(Self { title, state: summary.state.name(), progress, config })
    }

    /// Returns the iteration and the loss of the best evaluation.
    pub fn best(&self) -> Option<[f64; 2]> {
        self.progress.curves.eval_val.iter().min_by(|a, b| a[1].total_cmp(&b[1]))
    }

    /// Returns the best validation loss in bits per byte, if the tokenizer is known.
    fn bits_per_byte(&self) -> Option<f64> {
        Some(self.best()?[1] / LN_2 / self.progress.bytes_per_token?)
    }

    /// Returns the HellaSwag accuracy at an evaluation, if it was measured.
    fn hellaswag(&self, iteration: f64) -> Option<f64> {
        let mut shares = self.progress.curves.hellaswag.iter();
        shares.find(|point| point[0] == iteration).map(|point| point[1])
    }

    /// Returns the tokens that the run was trained on.
    fn tokens(&self) -> f64 {
        self.progress.curves.tokens.at(self.progress.iteration as f64)
    }

    pub fn time(&self) -> Duration {
        let seconds = self.progress.curves.seconds.at(self.progress.iteration as f64);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// Returns the median of the tokens per second.
    fn speed(&self) -> Option<f64> {
        let speeds = self.progress.curves.tokens_per_s.iter();
        let mut speeds: Vec<f64> = speeds.map(|[_, speed]| speed).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied()
    }

    /// Returns the most memory that the pools of the device held.
    fn memory(&self) -> Option<u64> {
        let peaks = self.progress.curves.memory_peak.iter();
        peaks.map(|[_, bytes]| bytes as u64).max()
    }

    fn devices(&self) -> Option<String> {
        let mut devices: Vec<(&str, usize)> = Vec::new();
        for rank in &self.progress.ranks {
            match devices.iter_mut().find(|(name, _)| *name == rank.device) {
                Some((_, count)) => *count += 1,
                None => devices.push((&rank.device, 1)),
            }
        }
        if devices.is_empty() {
            return self.progress.device.as_ref().map(|line| line.name.clone());
        }
        let text = |(name, count): &(&str, usize)| {
            if *count == 1 { name.to_string() } else { format!("{count} × {name}") }
        };
        Some(devices.iter().map(text).collect::<Vec<_>>().join(", "))
    }

    /// Returns the floating-point operations per token of the forward and the backward pass.
    fn operations(&self) -> Option<f64> {
        let config = self.config.as_ref()?;
        (self.progress.params > 0).then(|| config.operations(self.progress.params))
    }

    /// Returns the results of the run, with the HellaSwag of the best evaluation. `-` stands for a missing one.
    pub fn results(&self) -> Vec<(&'static str, String)> {
        self.results_of(self.best().map(|best| best[0]))
    }

    /// Returns the results of the run, with the HellaSwag of its checkpoint at `iteration`.
    pub fn results_of(&self, iteration: Option<f64>) -> Vec<(&'static str, String)> {
        let best = self.best();
        let hellaswag = iteration.and_then(|at| Some((at, self.hellaswag(at)?)));
        let answers = |(at, share)| format!("{} at iteration {at}", percent(share, 1));
        let loss = |[at, loss]: [f64; 2]| format!("{loss:.4} at iteration {at}");
        let progress = &self.progress;
        vec![
            ("best val loss", known(best, loss)),
            ("perplexity", known(best, |best| format!("{:.2}", best[1].exp()))),
            ("bits per byte", known(self.bits_per_byte(), |bits| format!("{bits:.4}"))),
            ("HellaSwag", known(hellaswag, answers)),
            ("iterations", format!("{} of {}", progress.iteration, progress.max_iters)),
            ("tokens", count(self.tokens() as u64)),
            ("time", duration(self.time())),
            ("tokens/s", known(self.speed(), |speed| format!("{speed:.0}"))),
            ("memory peak", known(self.memory(), bytes)),
            ("parameters", count(progress.params)),
            ("device", known(self.devices(), |devices| devices)),
            ("state", self.state.to_string()),
        ]
    }

    pub fn json(&self) -> Value {
        json!({
            "run": self.title,
            "state": self.state,
            "iterations": self.progress.iteration,
            "best_val_loss": self.best().map(|best| best[1]),
            "best_iteration": self.best().map(|best| best[0]),
            "bits_per_byte": self.bits_per_byte(),
            "hellaswag": self.best().and_then(|best| self.hellaswag(best[0])),
            "tokens": self.tokens(),
            "seconds": self.time().as_secs_f64(),
            "tokens_per_s": self.speed(),
            "memory_peak_bytes": self.memory(),
            "params": self.progress.params,
            "device": self.progress.device,
            "ranks": self.progress.ranks.iter().map(|rank| &rank.device).collect::<Vec<_>>(),
        })
    }

    /// Returns a series of the run as a curve over `over`; `None` if the axis is unknown.
    pub fn curve(
        &self,
        name: &str,
        series: &Series,
        over: Over,
        is_faint: bool,
    ) -> Option<ChartCurve> {
        let curves = &self.progress.curves;
        let (axis, scale): (&Cumulative, f64) = match over {
            Over::Tokens => (&curves.tokens, 1.0),
            Over::Minutes => (&curves.seconds, 1.0 / 60.0),
            Over::Hours => (&curves.seconds, 1.0 / 3600.0),
            Over::Compute => (&curves.tokens, self.operations()? / 1e12),
        };
        let points = series.window(Some(axis), [0.0, f64::INFINITY], COLUMNS);
        let points = points.into_iter().map(|[x, y]| [x * scale, y]).collect();
        Some(ChartCurve { name: name.to_string(), points, is_faint })
    }

    /// Returns the losses of the run as curves: of training, averaged, and of validation.
    pub fn losses(&self, over: Over) -> Vec<ChartCurve> {
        let curves = &self.progress.curves;
        let mut smoothed = Smoothed::default();
        let half_life = automatic_half_life(self.progress.iteration as f64);
        let training = smoothed.follow(&curves.loss, half_life);
        let training = self.curve("training", training, over, true);
        let validation = self.curve("validation", &curves.eval_val, over, false);
        training.into_iter().chain(validation).collect()
    }

    /// Returns the names and values of all settings but `out_dir`, if the configuration is known.
    pub fn values(&self) -> Option<Vec<(&'static str, String)>> {
        let mut values = self.config.as_ref()?.values();
        values.retain(|(name, _)| *name != "out_dir");
        Some(values)
    }

    /// Returns all settings with their values, as pages show them.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let values = self.values().unwrap_or_default().into_iter();
        values.map(|(name, value)| (name, shown(name, value))).collect()
    }
}

#[cfg(test)]
pub(super) mod examples {
    use super::*;
    use crate::protocol::Event;

    pub fn record(title: &str, events: &[String]) -> RunRecord {
        let mut progress = Progress::default();
        for event in events {
            progress.apply(&serde_json::from_str::<Event>(event).unwrap());
        }
        RunRecord { title: title.into(), state: "finished", progress, config: None }
    }

    pub fn step(iter: u64, loss: f64) -> String {
        format!(
            r#"{{"event":"step","iter":{iter},"loss":{loss},"lr":1e-3,"grad_norm":1.0,"tokens":512,
                "ms":500.0,"tokens_per_s":1024.0,"vram_peak_bytes":1048576}}"#
        )
    }

    /// Returns an evaluation with two bytes per token.
    pub fn eval(iter: u64, loss: f64, hellaswag: Option<f64>) -> String {
        let bits = loss / LN_2 / 2.0;
        let event = json!({
            "event": "eval", "iter": iter, "train_loss": 3.0, "val_loss": loss,
            "bits_per_byte": bits, "hellaswag": hellaswag,
        });
        event.to_string()
    }
}

/// Leaves out missing results.
pub fn present(mut results: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    results.retain(|(_, value)| value != "-");
    results
}

#[cfg(test)]
mod tests {
    use super::examples::{eval, record, step};
    use super::*;
    use crate::protocol::RankLine;

    #[test]
    fn the_results_are_those_of_the_best_evaluation() {
        let eval = |iter, loss| eval(iter, loss, None);
        let events = [eval(0, 4.0), step(0, 4.0), eval(1, 2.5), step(1, 3.0), eval(2, 3.0)];
        let run = record("r", &events);
        assert_eq!(run.best(), Some([1.0, 2.5]));
        let bits = run.bits_per_byte().unwrap();
        assert!((bits - 2.5 / LN_2 / 2.0).abs() < 1e-9, "{bits}");
        assert_eq!((run.tokens(), run.time()), (1024.0, Duration::from_secs(1)));
        assert_eq!((run.speed(), run.memory()), (Some(1024.0), Some(1 << 20)));
        let results = run.results();
        assert_eq!(results[0], ("best val loss", "2.5000 at iteration 1".into()));
        // Without a configuration, the operations are unknown.
        assert_eq!(run.losses(Over::Compute).len(), 0);
        let validation = &run.losses(Over::Tokens)[1];
        assert_eq!(validation.points, [[0.0, 4.0], [512.0, 2.5], [1024.0, 3.0]]);
        assert_eq!(Over::time(run.time()), Over::Minutes);
        let validation = &run.losses(Over::Minutes)[1];
        assert_eq!(validation.points[1], [0.5 / 60.0, 2.5]);
    }

    #[test]
    fn hellaswag_is_that_of_the_best_evaluation_or_of_a_checkpoint() {
        let evals = [eval(1, 4.0, Some(0.25)), eval(2, 2.5, Some(0.375)), eval(3, 3.0, Some(0.5))];
        let score = |run: &RunRecord, iteration| {
            let results = run.results_of(iteration);
            results.into_iter().find(|(name, _)| *name == "HellaSwag").unwrap().1
        };
        let three = record("r", &evals);
        assert!(three.results().contains(&("HellaSwag", "37.5% at iteration 2".into())));
        assert_eq!(three.json()["hellaswag"], json!(0.375));
        assert_eq!(score(&three, Some(3.0)), "50.0% at iteration 3");
        assert_eq!((score(&three, Some(4.0)), score(&three, None)), ("-".into(), "-".into()));
        // The best evaluation asked no questions.
        let best = record("r", &[eval(1, 4.0, Some(0.25)), eval(2, 2.5, None)]);
        assert!(best.results().contains(&("HellaSwag", "-".into())));
        assert!(present(best.results()).iter().all(|(name, _)| *name != "HellaSwag"));
        assert!(present(three.results()).iter().any(|(name, _)| *name == "HellaSwag"));
        assert_eq!(best.json()["hellaswag"], json!(null));
    }

    #[test]
    fn paths_are_shortened() {
        assert_eq!(shown("data", "/home/me/data/x".into()), "x");
        assert_eq!(shown("data", r"C:\Users\me\data\x\".into()), "x");
        assert_eq!(shown("data", "builtin:stories".into()), "builtin:stories");
        assert_eq!(shown("seed", "1/2".into()), "1/2");
    }

    #[test]
    fn the_devices_are_those_of_all_ranks() {
        let mut run = record("r", &[]);
        assert_eq!(run.devices(), None);
        let rank = |device: &str| {
            let machine = Some("box".into());
            RankLine { device: device.into(), machine, sequences: 4 }
        };
        run.progress.ranks = ["a", "b", "a"].map(rank).into();
        assert_eq!(run.devices().as_deref(), Some("2 × a, b"));
        assert_eq!(run.json()["ranks"], json!(["a", "b", "a"]));
    }
}
