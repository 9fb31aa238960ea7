//! `wgpt report`: one page about a run, to give to others.

use super::CliError;
use super::args::{Global, ReportArgs};
use super::chart::{Curve, chart};
use super::facts::{Facts, Over};
use super::html::{self, escape};
use super::paths::shown_line;
use super::runs::newest_run;
use crate::plan::Row;
use crate::protocol::{Level, LogLine, Sample};
use crate::text::bytes;

/// The most samples that a page shows, evenly spread over the run.
const SAMPLES: usize = 8;

/// Runs `wgpt report`.
pub(super) fn run(args: ReportArgs, global: &Global) -> Result<(), CliError> {
    let run = match args.run {
        Some(run) => run,
        None => newest_run(global.quiet)?,
    };
    if args.output.extension().is_none_or(|ending| ending != "html" && ending != "htm") {
        return Err(CliError::Usage {
            what: format!("{}: not the name of a page", args.output.display()),
            hint: "-o takes a file called *.html",
        });
    }
    let facts = Facts::read(&run)?;
    html::write(&args.output, &html::page(&facts.title, &body(&facts)))?;
    output!("{}", args.output.display());
    Ok(())
}

/// Returns the content of the page.
fn body(facts: &Facts) -> String {
    let cells = |(name, value): (&str, String)| vec![name.to_string(), value];
    let results: Vec<Vec<String>> = facts.results().into_iter().map(cells).collect();
    let settings: Vec<Vec<String>> = facts.settings().into_iter().map(cells).collect();
    let mut body = format!("<h1>{}</h1>\n", escape(&facts.title));
    body += &html::table(&[], &results);
    let loss = |over: Over| chart(over.name(), "loss", &facts.losses(over));
    body += &section("Loss over tokens", &loss(Over::Tokens));
    body += &section("Loss over time", &loss(Over::time(facts.time())));
    body += &section("Samples", &samples(&facts.progress.samples));
    body += &section("Learning rate, gradient, speed and memory", &others(facts));
    body += &section("Memory by plan", &plan(facts));
    body += &section("Warnings", &warnings(facts));
    let settings = match settings.is_empty() {
        true => String::new(),
        false => html::table(&["setting".into(), "value".into()], &settings),
    };
    body + &section("Settings", &settings)
}

/// Returns content under a heading; nothing if it is empty.
fn section(heading: &str, content: &str) -> String {
    match content.is_empty() {
        true => String::new(),
        false => format!("<h2>{}</h2>\n{content}", escape(heading)),
    }
}

/// Returns samples from the first to the last.
fn samples(samples: &[Sample]) -> String {
    let last = samples.len().saturating_sub(1);
    let mut shown: Vec<usize> = (0..SAMPLES).map(|at| at * last / (SAMPLES - 1)).collect();
    shown.dedup();
    let shown = shown.into_iter().filter_map(|index| samples.get(index));
    let text = |sample: &Sample| {
        let Sample { iter, prompt, text } = sample;
        let (prompt, text) = (escape(prompt), escape(text));
        format!("<p>iteration {iter}</p>\n<pre><b>{prompt}</b>{text}</pre>\n")
    };
    shown.map(text).collect()
}

/// Returns the charts of everything but the loss.
fn others(facts: &Facts) -> String {
    let curves = &facts.progress.curves;
    let alone = |name: &str, series| -> String {
        let curve = facts.curve(name, series, Over::Tokens, false);
        let curves: Vec<Curve> = curve.into_iter().collect();
        chart("tokens", name, &curves)
    };
    [
        alone("learning rate", &curves.learning_rate),
        alone("gradient norm", &curves.grad_norm),
        alone("tokens per second", &curves.tokens_per_s),
        alone("bytes held by the memory pools", &curves.memory),
    ]
    .concat()
}

/// Returns how a step is split, and the tensors that take the most memory.
fn plan(facts: &Facts) -> String {
    const ROWS: usize = 12;
    let Some(forecast) = &facts.progress.forecast else { return String::new() };
    let mut rows: Vec<&Row> = forecast.rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let rows: Vec<Vec<String>> =
        rows.iter().take(ROWS).map(|row| vec![row.name.clone(), bytes(row.bytes)]).collect();
    let text = escape(&forecast.to_string());
    format!("<pre>{text}</pre>\n{}", html::table(&["tensor".into(), "memory".into()], &rows))
}

/// Returns the warnings and errors of the log, which name files, without their folders.
fn warnings(facts: &Facts) -> String {
    let lines = facts.progress.log.iter().filter(|line| line.level != Level::Info);
    let item = |line: &LogLine| format!("<li>{}</li>\n", escape(&shown_line(&line.text)));
    let items: String = lines.map(item).collect();
    if items.is_empty() { items } else { format!("<ul>\n{items}</ul>\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Progress};

    #[test]
    fn a_page_has_the_first_and_the_last_sample_and_no_markup_of_theirs() {
        let mut progress = Progress::default();
        for iter in 0..30 {
            let (prompt, text) = ("<i>".to_string(), format!("text {iter} <script>"));
            progress.apply(&Event::Sample { iter, prompt, text });
        }
        let text = samples(&progress.samples);
        assert_eq!(text.matches("<pre>").count(), SAMPLES);
        assert!(text.contains("text 0 &lt;script&gt;<") && text.contains("text 29 &lt;"), "{text}");
        assert!(text.contains("&lt;i&gt;") && !text.contains("<i>"), "{text}");
        assert!(!text.contains("<script>"), "{text}");
        assert_eq!(samples(&[]), "");
        assert_eq!(samples(&progress.samples[..1]).matches("<pre>").count(), 1);

        progress.apply(&Event::Warning { text: "look & see".into() });
        let facts = Facts { title: "<b>".into(), state: "running", progress, config: None };
        let body = body(&facts);
        assert!(body.contains("<li>look &amp; see</li>") && !body.contains("Settings"), "{body}");
        assert!(body.contains("<h1>&lt;b&gt;</h1>") && !body.contains("<script>"), "{body}");
    }

    #[test]
    fn a_page_shows_no_paths_of_warnings_and_errors() {
        let mut progress = Progress::default();
        let text = "no checkpoint was written: cannot write /home/me/out/r/00000250: no room";
        progress.apply(&Event::Warning { text: text.into() });
        let text = r"C:\Users\me\data: no training data".to_string();
        progress.apply(&Event::Error { text, hint: String::new(), cause: None });
        let facts = Facts { title: "r".into(), state: "failed", progress, config: None };
        let body = body(&facts);
        let item = "<li>no checkpoint was written: cannot write 00000250: no room</li>";
        assert!(body.contains(item) && body.contains("<li>data: no training data</li>"), "{body}");
        assert!(!body.contains("/me") && !body.contains("Users"), "{body}");
    }
}
