//! Runs side by side.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::chart::chart;
use super::page::{fill, page};
use super::record::{Over, RunRecord, shown};
use crate::text::{Table, escape_html};

/// Runs, and the settings in which they differ.
pub(crate) struct Comparison {
    runs: Vec<RunRecord>,
    results: Table,
    /// The name of each setting, then its value in every run.
    settings: Table,
    /// The results as JSON, if the runs are a sweep.
    sweep: Option<Value>,
}

impl Comparison {
    pub fn new(runs: Vec<RunRecord>) -> Self {
        let settings = Table { head: head(&runs), rows: settings(&runs) };
        Self { results: results(&runs), runs, settings, sweep: None }
    }

    /// Compares the settings of a sweep, with the curves of their first seed.
    pub fn of_sweep(sweep: super::Sweep) -> Self {
        let results = sweep.table();
        let json = json!(sweep);
        Self { results, sweep: Some(json), ..Self::new(sweep.first_runs()) }
    }

    /// Returns the charts over tokens, time and compute with their names. A chart without a curve is
    /// empty.
    fn charts(&self) -> [(&'static str, String); 3] {
        let longest = self.runs.iter().map(RunRecord::time).max().unwrap_or_default();
        let axes =
            [("tokens", Over::Tokens), ("time", Over::time(longest)), ("compute", Over::Compute)];
        axes.map(|(name, over)| {
            let curve =
                |run: &RunRecord| run.curve(&run.title, &run.progress.curves.eval_val, over, false);
            let curves: Vec<_> = self.runs.iter().filter_map(curve).collect();
            (name, chart(over.name(), "validation loss", &curves))
        })
    }

    pub fn json(&self) -> serde_json::Value {
        let runs: Vec<_> = self.runs.iter().map(RunRecord::json).collect();
        let settings: BTreeMap<&String, &[String]> =
            self.settings.rows.iter().map(|row| (&row[0], &row[1..])).collect();
        json!({ "runs": runs, "settings": settings, "sweep": self.sweep })
    }

    pub fn plain(&self) -> String {
        let mut text = self.results.plain(&[]);
        if !self.settings.rows.is_empty() {
            text += "\nsettings that differ\n";
            text += &self.settings.plain(&[]);
        }
        text
    }

    pub fn html(&self) -> String {
        let mut settings = self.settings.html();
        if settings.is_empty() {
            settings = "<p>None.</p>".into();
        }
        let mut values = vec![("results", self.results.html()), ("settings", settings)];
        values.extend(self.charts());
        let template = include_str!("../../assets/pages/comparison.html");
        page(&self.title(), &fill(template, escape_html, &values))
    }

    fn title(&self) -> String {
        let titles: Vec<&str> = self.runs.iter().map(|run| run.title.as_str()).collect();
        titles.join(" and ")
    }
}

fn results(runs: &[RunRecord]) -> Table {
    let columns: Vec<_> = runs.iter().map(RunRecord::results).collect();
    let row = |(index, (name, _)): (usize, &(&str, String))| {
        let cells = || columns.iter().map(|column| column[index].1.clone());
        let has_any = cells().any(|cell| cell != "-");
        has_any.then(|| std::iter::once(name.to_string()).chain(cells()).collect())
    };
    let rows = columns.first().into_iter().flatten().enumerate().filter_map(row).collect();
    Table { head: head(runs), rows }
}

/// Returns the headings of a table with a column for each run.
fn head(runs: &[RunRecord]) -> Vec<String> {
    std::iter::once(String::new()).chain(runs.iter().map(|run| run.title.clone())).collect()
}

/// Returns the settings that differ between runs, each with its value in every run.
fn settings(runs: &[RunRecord]) -> Vec<Vec<String>> {
    let columns: Vec<_> = runs.iter().map(RunRecord::values).collect();
    let first = columns.iter().flatten().next().into_iter().flatten();
    let row = |(index, (name, value)): (usize, &(&str, String))| {
        if columns.iter().flatten().all(|column| column[index].1 == *value) {
            return None;
        }
        let cells = columns.iter().map(|column| match column {
            Some(column) => shown(name, column[index].1.clone()),
            None => "unknown".into(),
        });
        Some(std::iter::once(name.to_string()).chain(cells).collect())
    };
    first.enumerate().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};
    use crate::report::record::examples::{eval, record, step};

    fn run(title: &str, settings: &str) -> RunRecord {
        let config = resolve(vec![Layer::toml("test", settings).unwrap()]).unwrap().config;
        RunRecord { config: Some(config), ..record(title, &[]) }
    }

    #[test]
    fn only_settings_that_differ_are_listed() {
        let runs = [
            run("a", "seed = 1"),
            run("b", "seed = 2\nn_layer = 3"),
            run("c", "seed = 1\ndata = '/some/where/x'"),
        ];
        let wanted = [["data", "", "", "x"], ["seed", "1", "2", "1"], ["n_layer", "12", "3", "12"]];
        assert_eq!(settings(&runs), wanted);
        let comparison = Comparison::new(runs.into());
        let text = comparison.plain();
        assert!(text.contains("\nseed     1   2  1\n"), "{text}");
        assert!(comparison.html().contains("<th>n_layer</th><td>12</td><td>3</td>"));
        assert_eq!(comparison.json()["settings"]["seed"], json!(["1", "2", "1"]));
    }

    #[test]
    fn the_name_of_a_run_is_no_markup() {
        let events = [eval(0, 4.0, None), step(0, 4.0), eval(1, 3.0, None)];
        let config = run("", "data = '<script>'").config;
        let runs = [RunRecord { config, ..record("<b>", &events) }, run("a", "")];
        let comparison = Comparison::new(runs.into());
        let page = comparison.html();
        assert!(page.contains("&lt;b") && page.contains("<svg"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("<script>"), "{page}");
    }
}
