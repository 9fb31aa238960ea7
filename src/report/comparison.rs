//! `wgpt compare`: runs side by side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::CliError;
use super::args::CompareArgs;
use super::chart::{Curve, chart};
use super::facts::{Facts, Over};
use super::html;
use super::paths::shown;
use crate::config::KEYS;
use crate::runs;

/// Runs `wgpt compare`.
pub(super) fn run(args: CompareArgs) -> Result<(), CliError> {
    let facts = args.runs.iter().map(|run| Facts::read(run)).collect::<Result<Vec<_>, _>>()?;
    let comparison = Comparison { settings: settings(&facts), facts: &facts };
    let text = match &args.output {
        None if args.json => {
            output!("{}", comparison.json());
            return Ok(());
        }
        None => {
            super::write_out(format_args!("{}", comparison.text()));
            return Ok(());
        }
        Some(path) => match extension(path).as_deref() {
            Some("html" | "htm") => comparison.html(),
            Some("md") => comparison.markdown(path)?,
            _ => {
                return Err(CliError::Usage {
                    what: format!("{}: not the name of a page", path.display()),
                    hint: "-o takes a file called *.html or *.md",
                });
            }
        },
    };
    let path = args.output.unwrap_or_default();
    html::write(&path, &text)?;
    output!("{}", path.display());
    Ok(())
}

/// Returns the ending of a file's name, in lowercase.
fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// Returns the settings that are not the same in all runs, each with its value in every run.
fn settings(runs: &[Facts]) -> Vec<Vec<String>> {
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

/// Runs, and what tells them apart.
struct Comparison<'a> {
    facts: &'a [Facts],
    /// The settings that differ: their names, then their values in every run.
    settings: Vec<Vec<String>>,
}

impl Comparison<'_> {
    fn head(&self) -> Vec<String> {
        let titles = self.facts.iter().map(|facts| facts.title.clone());
        std::iter::once(String::new()).chain(titles).collect()
    }

    fn results(&self) -> Vec<Vec<String>> {
        let columns: Vec<_> = self.facts.iter().map(Facts::results).collect();
        let Some(first) = columns.first() else { return Vec::new() };
        let row = |index: usize, name: &str| -> Vec<String> {
            let cells = columns.iter().map(|column| column[index].1.clone());
            std::iter::once(name.to_string()).chain(cells).collect()
        };
        first.iter().enumerate().map(|(index, (name, _))| row(index, name)).collect()
    }

    fn charts(&self) -> Vec<(Over, String)> {
        let longest = self.facts.iter().map(Facts::time).max().unwrap_or_default();
        let of = |over: Over| {
            let curve = |facts: &Facts| -> Option<Curve> {
                facts.curve(&facts.title, &facts.progress.curves.eval_val, over, false)
            };
            let curves: Vec<Curve> = self.facts.iter().filter_map(curve).collect();
            (over, chart(over.name(), "validation loss", &curves))
        };
        let all = [Over::Tokens, Over::time(longest), Over::Compute];
        all.map(of).into_iter().filter(|(_, chart)| !chart.is_empty()).collect()
    }

    fn json(&self) -> serde_json::Value {
        let runs: Vec<_> = self.facts.iter().map(Facts::json).collect();
        let settings: BTreeMap<&String, &[String]> =
            self.settings.iter().map(|row| (&row[0], &row[1..])).collect();
        json!({ "runs": runs, "settings": settings })
    }

    fn text(&self) -> String {
        let mut text = columns(&self.head(), &self.results());
        if !self.settings.is_empty() {
            text += "\nsettings that differ\n";
            text += &columns(&self.head(), &self.settings);
        }
        text
    }

    fn html(&self) -> String {
        let title = self.title();
        let mut body = format!("<h1>{}</h1>\n", html::escape(&title));
        body += &html::table(&self.head(), &self.results());
        for (over, chart) in self.charts() {
            body +=
                &format!("<h2>Validation loss over {}</h2>\n{chart}", html::escape(over.name()));
        }
        body += "<h2>Settings that differ</h2>\n";
        body += &match self.settings.is_empty() {
            true => "<p>None.</p>".to_string(),
            false => html::table(&self.head(), &self.settings),
        };
        html::page(&title, &body)
    }

    /// Returns the comparison in Markdown, and writes its charts beside it.
    fn markdown(&self, path: &Path) -> Result<String, CliError> {
        let title = self.title();
        let mut body = format!("# {}\n\n", html::escape_markdown(&title));
        body += &html::markdown_table(&self.head(), &self.results());
        for (over, chart) in self.charts() {
            let picture = picture(path, over);
            html::write_picture(&picture, &chart)?;
            let name = picture.file_name().unwrap_or_default().to_string_lossy();
            body += &format!("\n![validation loss over {}]({name})\n", over.name());
        }
        if !self.settings.is_empty() {
            body += "\n## Settings that differ\n\n";
            body += &html::markdown_table(&self.head(), &self.settings);
        }
        Ok(html::markdown(&body))
    }

    fn title(&self) -> String {
        let titles: Vec<&str> = self.facts.iter().map(|facts| facts.title.as_str()).collect();
        titles.join(" and ")
    }
}

/// Returns the path of a chart beside a page.
fn picture(page: &Path, over: Over) -> PathBuf {
    let word = match over {
        Over::Tokens => "tokens",
        Over::Minutes | Over::Hours => "time",
        Over::Compute => "compute",
    };
    let stem = page.file_stem().unwrap_or_default().to_string_lossy();
    page.with_file_name(format!("{stem}-{word}.svg"))
}

/// Formats a table for a terminal.
fn columns(head: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let width = |column: usize| {
        let cells = all().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Layer, resolve};
    use crate::protocol::Progress;

    fn facts(title: &str, settings: &[(&str, &str)]) -> Facts {
        let settings = settings.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let config: Config = resolve(vec![Layer::flags(settings).unwrap()]).unwrap().config;
        let (title, progress) = (title.to_string(), Progress::default());
        Facts { title, state: "finished", progress, config: Some(config) }
    }

    #[test]
    fn only_settings_that_differ_are_listed() {
        let runs = [
            facts("a", &[("seed", "1")]),
            facts("b", &[("seed", "2"), ("n_layer", "3")]),
            facts("c", &[("seed", "1"), ("data", "/some/where/x")]),
        ];
        assert_eq!(
            settings(&runs),
            [["data", "", "", "x"], ["seed", "1", "2", "1"], ["n_layer", "12", "3", "12"]]
        );
        let comparison = Comparison { settings: settings(&runs), facts: &runs };
        let text = comparison.text();
        assert!(text.contains("\nseed     1   2  1\n"), "{text}");
        assert!(comparison.html().contains("<th>n_layer</th><td>12</td><td>3</td>"));
        assert_eq!(comparison.json()["settings"]["seed"], json!(["1", "2", "1"]));
    }

    #[test]
    fn the_name_of_a_run_is_no_markup() {
        let mut runs = [facts("<b>", &[("data", "<script>")]), facts("a", &[])];
        for run in &mut runs {
            for (iter, val_loss) in [(0, 4.0), (1, 3.0)] {
                let (bits_per_byte, hellaswag) = (None, None);
                let train_loss = val_loss;
                run.progress.apply(&crate::protocol::Event::Eval {
                    iter,
                    train_loss,
                    val_loss,
                    bits_per_byte,
                    hellaswag,
                });
            }
            let step = r#"{"iter":0,"loss":4.0,"lr":1e-3,"grad_norm":1.0,"tokens":512,"ms":500.0,
                "tokens_per_s":1024.0}"#;
            let step = serde_json::from_str(step).unwrap();
            run.progress.apply(&crate::protocol::Event::Step(step));
        }
        let comparison = Comparison { settings: settings(&runs), facts: &runs };
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
