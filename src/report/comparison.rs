//! Runs side by side.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::chart::chart;
use super::page::{fill, page, write_picture};
use super::record::{Over, RunRecord, shown};
use crate::config::KEYS;
use crate::protocol::Failure;
use crate::runs;
use crate::text::{Table, escape_html, escape_markdown};

/// Runs, and the settings in which they differ.
pub(crate) struct Comparison {
    runs: Vec<RunRecord>,
    /// The name of each setting, then its value in every run.
    settings: Table,
}

impl Comparison {
    pub fn new(runs: Vec<RunRecord>) -> Self {
        let settings = Table { head: head(&runs), rows: settings(&runs) };
        Self { runs, settings }
    }

    fn results(&self) -> Table {
        let columns: Vec<_> = self.runs.iter().map(RunRecord::results).collect();
        let row = |(index, (name, _)): (usize, &(&str, String))| {
            let cells = columns.iter().map(|column| column[index].1.clone());
            std::iter::once(name.to_string()).chain(cells).collect()
        };
        let rows = columns.first().into_iter().flatten().enumerate().map(row).collect();
        Table { head: head(&self.runs), rows }
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

    /// Returns the comparison for programs.
    pub fn json(&self) -> serde_json::Value {
        let runs: Vec<_> = self.runs.iter().map(RunRecord::json).collect();
        let settings: BTreeMap<&String, &[String]> =
            self.settings.rows.iter().map(|row| (&row[0], &row[1..])).collect();
        json!({ "runs": runs, "settings": settings })
    }

    /// Returns the comparison for a terminal.
    pub fn plain(&self) -> String {
        let mut text = self.results().plain(&[]);
        if !self.settings.rows.is_empty() {
            text += "\nsettings that differ\n";
            text += &self.settings.plain(&[]);
        }
        text
    }

    /// Returns a page.
    pub fn html(&self) -> String {
        let settings = match self.settings.html() {
            none if none.is_empty() => "<p>None.</p>".into(),
            table => table,
        };
        let (results, [tokens, time, compute]) = (self.results().html(), self.charts());
        let values = [
            ("results", results.as_str()),
            ("tokens", &tokens.1),
            ("time", &time.1),
            ("compute", &compute.1),
            ("settings", &settings),
        ];
        let template = include_str!("../../assets/pages/comparison.html");
        page(&self.title(), &fill(template, escape_html, &values))
    }

    /// Returns the comparison in Markdown, and writes its charts into the folder of `path`.
    pub fn markdown(&self, path: &Path) -> Result<String, Failure> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut images = Vec::new();
        for (name, chart) in self.charts().iter().filter(|(_, chart)| !chart.is_empty()) {
            let file = format!("{stem}-{name}.svg");
            write_picture(&path.with_file_name(&file), chart)?;
            images.push(format!("![validation loss over {name}]({file})"));
        }
        let (title, results) = (self.title(), self.results().markdown());
        let settings = self.settings.markdown();
        let values = [
            ("title", title.as_str()),
            ("results", &results),
            ("images", &images.join("\n\n")),
            ("settings", &settings),
        ];
        Ok(fill(include_str!("../../assets/pages/comparison.md"), escape_markdown, &values))
    }

    fn title(&self) -> String {
        let titles: Vec<&str> = self.runs.iter().map(|run| run.title.as_str()).collect();
        titles.join(" and ")
    }
}

/// Returns the headings of a table with a column for each run.
fn head(runs: &[RunRecord]) -> Vec<String> {
    std::iter::once(String::new()).chain(runs.iter().map(|run| run.title.clone())).collect()
}

/// Returns the settings that are not the same in all runs, each with its value in every run.
fn settings(runs: &[RunRecord]) -> Vec<Vec<String>> {
    let configs: Vec<_> = runs.iter().map(|run| run.config.as_ref()).collect();
    let Some(first) = configs.iter().flatten().next() else { return Vec::new() };
    // The value of each run that differs from the first, by the name of the setting.
    let mut changed: BTreeMap<&str, (String, Vec<Option<String>>)> = BTreeMap::new();
    for (index, config) in configs.iter().enumerate() {
        let Some(config) = config else { continue };
        for (name, before, after) in runs::difference(first, config) {
            let of_none = || (before, vec![None; runs.len()]);
            changed.entry(name).or_insert_with(of_none).1[index] = Some(after);
        }
    }
    let row = |name: &'static str| {
        let (usual, values) = changed.get(name)?;
        let value = |(value, config): (&Option<String>, &Option<_>)| match config {
            Some(_) => shown(name, value.as_ref().unwrap_or(usual).clone()),
            None => "unknown".into(),
        };
        let values = values.iter().zip(&configs).map(value);
        Some(std::iter::once(name.to_string()).chain(values).collect())
    };
    KEYS.iter().filter_map(|key| row(key.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};
    use crate::report::record::examples::{eval, record, step};

    fn run(title: &str, settings: &[(&str, &str)]) -> RunRecord {
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let config = resolve(vec![Layer::flags(settings).unwrap()]).unwrap().config;
        RunRecord { config: Some(config), ..record(title, &[]) }
    }

    #[test]
    fn only_settings_that_differ_are_listed() {
        let runs = [
            run("a", &[("seed", "1")]),
            run("b", &[("seed", "2"), ("n_layer", "3")]),
            run("c", &[("seed", "1"), ("data", "/some/where/x")]),
        ];
        assert_eq!(
            settings(&runs),
            [["data", "", "", "x"], ["seed", "1", "2", "1"], ["n_layer", "12", "3", "12"]]
        );
        let comparison = Comparison::new(runs.into());
        let text = comparison.plain();
        assert!(text.contains("\nseed     1   2  1\n"), "{text}");
        assert!(comparison.html().contains("<th>n_layer</th><td>12</td><td>3</td>"));
        assert_eq!(comparison.json()["settings"]["seed"], json!(["1", "2", "1"]));
    }

    #[test]
    fn the_name_of_a_run_is_no_markup() {
        let events = [eval(0, 4.0, None), step(0, 4.0), eval(1, 3.0, None)];
        let config = run("", &[("data", "<script>")]).config;
        let runs = [RunRecord { config, ..record("<b>", &events) }, run("a", &[])];
        let comparison = Comparison::new(runs.into());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ab.md");
        let markdown = comparison.markdown(&path).unwrap();
        let svg = std::fs::read_to_string(folder.path().join("ab-tokens.svg")).unwrap();
        for page in [comparison.html(), markdown, svg] {
            assert!(page.contains("&lt;b"), "{page}");
            assert!(!page.contains("<b>") && !page.contains("<script>"), "{page}");
        }
    }
}
