//! The page about one run.

use super::chart::chart;
use super::page::{fill, page};
use super::record::{Over, RunRecord, present};
use crate::plan::Row;
use crate::protocol::Sample;
use crate::text::{Table, bytes, escape_html};

/// The most samples on a page. They are evenly spread over the run.
const SAMPLES: usize = 8;

/// The most tensors on a page: those that take the most memory.
const TENSORS: usize = 12;

pub(crate) fn run_page(run: &RunRecord) -> String {
    let loss = |over: Over| chart(over.name(), "loss", &run.losses(over));
    let plan = run.progress.forecast.as_ref().map_or_else(String::new, ToString::to_string);
    let content = fill(
        include_str!("../../assets/pages/run.html"),
        escape_html,
        &[
            ("results", &Table::named([], present(run.results())).html()),
            ("loss_over_tokens", &loss(Over::Tokens)),
            ("loss_over_time", &loss(Over::time(run.time()))),
            ("samples", &samples(&run.progress.samples)),
            ("figures", &figures(run)),
            ("plan", &plan),
            ("tensors", &tensors(run)),
            ("settings", &Table::named(["setting", "value"], run.settings()).html()),
        ],
    );
    page(&run.title, &content)
}

fn samples(samples: &[Sample]) -> String {
    let last = samples.len().saturating_sub(1);
    let mut shown: Vec<usize> = (0..SAMPLES).map(|at| at * last / (SAMPLES - 1)).collect();
    shown.dedup();
    let markup = |Sample { iter, prompt, text, .. }: &Sample| {
        let iter = iter.to_string();
        let values = [("iteration", &iter), ("prompt", prompt), ("text", text)];
        fill(include_str!("../../assets/pages/sample.html"), escape_html, &values)
    };
    shown.into_iter().filter_map(|index| samples.get(index)).map(markup).collect()
}

/// Returns the charts of everything but the loss.
fn figures(run: &RunRecord) -> String {
    let curves = &run.progress.curves;
    let alone = |(name, series)| {
        chart("tokens", name, run.curve(name, series, Over::Tokens, false).as_slice())
    };
    [
        ("learning rate", &curves.learning_rate),
        ("gradient norm", &curves.grad_norm),
        ("tokens per second", &curves.tokens_per_s),
        ("bytes held by the memory pools", &curves.memory),
    ]
    .map(alone)
    .concat()
}

fn tensors(run: &RunRecord) -> String {
    let forecast = run.progress.forecast.as_ref();
    let mut rows: Vec<&Row> = forecast.iter().flat_map(|forecast| &forecast.rows).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let rows = rows.into_iter().take(TENSORS).map(|row| (row.name.as_str(), bytes(row.bytes)));
    Table::named(["tensor", "memory"], rows).html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Progress};
    use crate::report::record::examples::record;

    #[test]
    fn a_page_has_the_first_and_the_last_sample_and_no_markup_of_theirs() {
        let mut progress = Progress::default();
        for iter in 0..30 {
            let (prompt, text) = ("<i>".to_string(), format!("text {iter} <script>"));
            progress.apply(&Event::Sample(Sample { iter, prompt, text, tokens: vec![] }));
        }
        let text = samples(&progress.samples);
        assert_eq!(text.matches("<pre>").count(), SAMPLES);
        assert!(text.contains("text 0 &lt;script&gt;<") && text.contains("text 29 &lt;"), "{text}");
        assert!(text.contains("&lt;i&gt;") && !text.contains("<i>"), "{text}");
        assert!(!text.contains("<script>"), "{text}");
        assert_eq!(samples(&[]), "");
        assert_eq!(samples(&progress.samples[..1]).matches("<pre>").count(), 1);

        let run = RunRecord { title: "<b>".into(), state: "running", progress, config: None };
        let page = run_page(&run);
        assert!(!page.contains("Settings") && !page.contains("Memory by plan"), "{page}");
        assert!(page.contains("<h1>&lt;b&gt;</h1>") && !page.contains("<script>"), "{page}");
    }

    #[test]
    fn a_page_shows_no_line_of_the_log() {
        let warning = r#"{"event":"warning","text":"cannot write /home/me/out/r/250: no room"}"#;
        let error = r#"{"event":"error","text":"/home/me/data: no training data","hint":""}"#;
        let run = record("r", &[warning.into(), error.into()]);
        let page = run_page(&run);
        assert!(!page.contains("/me") && !page.contains("no room"), "{page}");
    }
}
