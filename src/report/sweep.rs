//! The results of a sweep: the settings that it compares, each with several seeds.

use std::f64::consts::LN_2;
use std::path::Path;

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::record::RunRecord;
use crate::protocol::{Failure, RunPhase, StopReason};
use crate::runs;
use crate::text::{Table, known};

/// The file in the folder of a sweep that says what it trains.
pub(crate) const SWEEP_FILE: &str = "sweep.json";

#[derive(Serialize)]
pub(crate) struct Sweep {
    metric: &'static str,
    rows: Vec<SweepRow>,
    /// The runs that have ended.
    #[serde(skip)]
    pub runs: Vec<RunRecord>,
}

/// The results of one choice of settings, one for each seed that ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SweepRow {
    /// The swept settings: `learning_rate=1e-3 optimizer=muon`.
    settings: String,
    results: Vec<f64>,
    /// Runs that ended with an error, like a loss that is not finite.
    failed: usize,
    mean: Option<f64>,
    /// The standard error of the mean; `None` for fewer than two results.
    standard_error: Option<f64>,
    /// The probability of a difference from the best row as large as this one by chance.
    p_value: Option<f64>,
}

impl Sweep {
    /// Reads the runs in the folder of a sweep, which are named after their settings, the seed last. Leaves out
    /// runs that have not ended.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let runs = runs::list(folder).map_err(Failure::file(folder))?;
        let mut paths: Vec<_> = runs.into_iter().map(|run| run.path).collect();
        paths.sort();
        let all: Result<_, _> = paths.iter().map(|path| RunRecord::read(path)).collect();
        Ok(Self::of(all?))
    }

    fn of(mut runs: Vec<RunRecord>) -> Self {
        runs.retain(RunRecord::has_ended);
        let has_bytes = runs.iter().all(|run| run.progress.bytes_per_token.is_some());
        let result = |run: &RunRecord| {
            let has_failed = matches!(run.progress.state, RunPhase::Failed(_));
            let loss = run.progress.val_loss.filter(|_| !has_failed)?;
            let bytes = run.progress.bytes_per_token.filter(|_| has_bytes);
            Some(bytes.map_or(loss, |bytes| loss / LN_2 / bytes))
        };
        let mut results: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for run in &runs {
            let settings = settings(run);
            match results.iter_mut().find(|(known, _)| *known == settings) {
                Some((_, values)) => values.push(result(run)),
                None => results.push((settings, vec![result(run)])),
            }
        }
        let metric = if has_bytes { "bits per byte" } else { "validation loss" };
        Self { metric, rows: sweep_rows(results), runs }
    }

    pub fn table(&self) -> Table {
        let cells = |row: &SweepRow| {
            let failed =
                if row.failed > 0 { format!(", {} failed", row.failed) } else { String::new() };
            let p_value = match row.p_value {
                Some(p) if p < 0.001 => "< 0.001".to_string(),
                p => known(p, |p| format!("{p:.3}")),
            };
            vec![
                row.settings.clone(),
                format!("{}{failed}", row.results.len()),
                known(row.mean, |mean| format!("{mean:.4}")),
                known(row.standard_error, |error| format!("{error:.4}")),
                p_value,
            ]
        };
        Table::new(
            ["settings", "runs", self.metric, "std. error", "p"],
            self.rows.iter().map(cells),
        )
    }

    /// Returns the first run of each choice of settings.
    pub(super) fn first_runs(self) -> Vec<RunRecord> {
        let mut firsts: Vec<RunRecord> = Vec::new();
        for run in self.runs {
            if firsts.iter().all(|first| settings(first) != settings(&run)) {
                firsts.push(run);
            }
        }
        firsts
    }
}

/// Returns the swept settings of a run, without the seed.
fn settings(run: &RunRecord) -> String {
    match run.title.rsplit_once(",seed=") {
        Some((settings, _)) => settings.replace(',', " "),
        None => "the same settings".into(),
    }
}

impl RunRecord {
    /// Returns true if the run has ended by itself: after its last update, or with an error that would happen
    /// again.
    pub fn has_ended(&self) -> bool {
        match &self.progress.state {
            RunPhase::Finished(reason) => {
                matches!(reason, StopReason::Finished | StopReason::MaxTime)
            }
            RunPhase::Failed(error) => error.cause.is_none() && self.progress.iteration > 0,
            _ => false,
        }
    }
}

/// Returns a row for each choice of settings, the lowest mean first. `results` are the losses of its
/// seeds, `None` for a run that failed.
fn sweep_rows(results: Vec<(String, Vec<Option<f64>>)>) -> Vec<SweepRow> {
    let row = |(settings, all): (String, Vec<Option<f64>>)| {
        let results: Vec<f64> = all.iter().flatten().copied().collect();
        let failed = all.len() - results.len();
        let moments = SampleMean::of(&results);
        let standard_error =
            moments.filter(|_| results.len() > 1).map(|of| of.error_squared.sqrt());
        let mean = moments.map(|of| of.mean);
        SweepRow { settings, results, failed, mean, standard_error, p_value: None }
    };
    let mut rows: Vec<SweepRow> = results.into_iter().map(row).collect();
    rows.sort_by(|a, b| {
        let key = |row: &SweepRow| row.mean.unwrap_or(f64::INFINITY);
        key(a).total_cmp(&key(b))
    });
    let Some(best) = rows.first().map(|row| row.results.clone()) else { return rows };
    for row in rows.iter_mut().skip(1) {
        row.p_value = welch(&row.results, &best);
    }
    rows
}

/// The mean of some results, and the variance of that mean.
#[derive(Clone, Copy)]
struct SampleMean {
    mean: f64,
    error_squared: f64,
}

impl SampleMean {
    fn of(results: &[f64]) -> Option<Self> {
        let count = results.len() as f64;
        let mean = results.iter().sum::<f64>() / count;
        let squares: f64 = results.iter().map(|result| (result - mean).powi(2)).sum();
        let error_squared = squares / (count - 1.0).max(1.0) / count;
        (!results.is_empty()).then_some(Self { mean, error_squared })
    }
}

/// Returns the p-value of Welch's two-sided t-test; `None` if either has fewer than two results, or if all are
/// equal.
fn welch(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let (first, second) = (SampleMean::of(a)?, SampleMean::of(b)?);
    let variance = first.error_squared + second.error_squared;
    let part =
        |moments: SampleMean, count: usize| moments.error_squared.powi(2) / (count - 1) as f64;
    let freedom = variance.powi(2) / (part(first, a.len()) + part(second, b.len()));
    let t = (first.mean - second.mean) / variance.sqrt();
    let distribution = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(2.0 * distribution.cdf(-t.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(results: &[(&str, &[f64])]) -> Vec<SweepRow> {
        let own = |(name, values): &(&str, &[f64])| {
            let values = values.iter().map(|value| value.is_finite().then_some(*value));
            (name.to_string(), values.collect())
        };
        sweep_rows(results.iter().map(own).collect())
    }

    #[test]
    fn welchs_test_agrees_with_the_integral_of_the_density() {
        // The density of Student's t for 7.2 degrees of freedom, integrated from 3.266 on.
        let p = welch(&[1.52, 1.55, 1.49, 1.51, 1.53], &[1.47, 1.50, 1.48, 1.46, 1.49]).unwrap();
        assert!((p - 0.013_217_9).abs() < 1e-6, "{p}");
        assert_eq!(welch(&[1.5], &[1.4, 1.5]), None);
    }

    #[test]
    fn the_best_settings_come_first_and_failures_are_counted() {
        let rows = rows(&[
            ("lr=1e-1", &[f64::NAN, f64::NAN]),
            ("lr=1e-3", &[2.0, 2.2]),
            ("lr=3e-3", &[1.8, 1.9]),
        ]);
        let names: Vec<_> = rows.iter().map(|row| row.settings.as_str()).collect();
        assert_eq!(names, ["lr=3e-3", "lr=1e-3", "lr=1e-1"]);
        assert!((rows[0].mean.unwrap() - 1.85).abs() < 1e-12);
        assert!((rows[1].standard_error.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((rows[0].p_value, rows[2].mean, rows[2].failed), (None, None, 2));
        let sweep = Sweep { metric: "bits per byte", rows, runs: Vec::new() };
        let table = sweep.table().plain(&[2, 3, 4]);
        assert!(table.contains("0, 2 failed") && table.contains("1.8500"), "{table}");
    }
}
