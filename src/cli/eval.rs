//! `wgpt eval`: loss, perplexity and bits per byte of a model, and its share of right answers.

use std::path::Path;

use indicatif::ProgressBar;
use serde_json::json;

use super::activity::{Activity, style};
use super::args::{EvalArgs, Global};
use super::find_model::{check_tokenizer, find_model, find_tokenizer, load_model};
use super::sample::text_of;
use super::terminal::draws;
use super::text_loss;
use crate::data::{DataError, Dataset};
use crate::eval::{DataLosses, Evaluation, Exam, ExamError, Score};
use crate::model::Gpt;
use crate::protocol::{Failure, Task, Working};
use crate::runs::ModelSource;
use crate::text::percent;

pub(super) fn run(args: EvalArgs, global: &Global) -> Result<(), Failure> {
    let source = find_model(args.model.as_deref(), global.quiet)?;
    if let Some(text) = &args.text {
        return text_loss::run(&text_of(text, false)?, &source, &args, global);
    }
    let exam = args.hellaswag.as_deref().map(|path| open_exam(path, &args, &source, global.quiet));
    let exam = exam.transpose()?;
    let data = match (args.data, &exam) {
        (None, None) => source.data()?,
        (data, _) => data,
    };
    if data.is_none() && exam.is_none() {
        return Err(Failure::usage("no data to evaluate on", "give a data folder with --data"));
    }
    let dataset = data.map(|data| open_data(&data, &source)).transpose()?;
    let (model, mode) = load_model(&source, global)?;
    let block_size = source.window();
    let evaluation = Evaluation { block_size, sequences: 8, chunk: 256, mode };
    let losses = dataset.map(|dataset| {
        let mut activity = Activity::new(global.quiet);
        let show = |done, total| {
            activity.show(Working { task: Task::Evaluation, done, total }.to_string());
        };
        let losses = DataLosses::of(&model, &dataset, &evaluation, args.windows, show);
        pollster::block_on(losses)
    });
    let losses = losses.transpose()?;
    let score = exam.map(|exam| take(exam, &model, &evaluation, global.quiet)).transpose();
    let score = score.map_err(|error| match error {
        ExamError::NotFinite => Failure::checkpoint(&source.name, error),
        error => Failure::from(error),
    })?;
    if args.json {
        let mut object = losses.map_or_else(|| json!({}), |losses| losses.json());
        if let Some(score) = score {
            object["hellaswag"] = score.json();
        }
        output!("{object}");
        return Ok(());
    }
    if let Some(losses) = losses {
        output!("{losses}");
    }
    if let Some(score) = score {
        output!("{score}");
    }
    Ok(())
}

/// Opens the data and checks that it has the model's tokens.
fn open_data(data: &str, source: &ModelSource) -> Result<Dataset, Failure> {
    let mut dataset = Dataset::open(data, source.window() as u64)?;
    let hint = "prepare the data with the model's tokenizer: --tokenizer=MODEL, where MODEL is a \
                checkpoint or another folder with a tokenizer.json";
    check_tokenizer(source, data, dataset.tokenizer.as_ref(), hint)?;
    dataset.fit(source.architecture.vocab_size)?;
    Ok(dataset)
}

/// Opens an exam and, with `--results`, its former results. Prints warnings about lines that are
/// skipped.
fn open_exam(
    path: &Path,
    args: &EvalArgs,
    source: &ModelSource,
    quiet: bool,
) -> Result<Exam, Failure> {
    let tokenizer = find_tokenizer(source, args.data.as_deref())?;
    let block_size = source.window();
    let mut exam = Exam::open(path, &tokenizer, block_size, args.skip_bad_lines)?;
    report(&exam.skipped, exam.score.cropped, block_size);
    if let Some(path) = &args.results {
        let done = exam.continue_in(path, source.fingerprint()?)?;
        if done > 0 && !quiet {
            let all = exam.total;
            message!("{}: {done} of {all} questions are answered, continuing", path.display());
        }
    }
    Ok(exam)
}

fn report(skipped: &[DataError], cropped: usize, block_size: usize) {
    const NAMED: usize = 3;
    for error in &skipped[..skipped.len().min(NAMED)] {
        message!("warning: skipped {error}");
    }
    if skipped.len() > NAMED {
        message!("warning: skipped {} more lines", skipped.len() - NAMED);
    }
    if cropped > 0 {
        message!(
            "warning: {cropped} questions are longer than the model's {block_size} positions and \
             were shortened from the left; do not compare their scores with another model's"
        );
    }
}

impl From<ExamError> for Failure {
    fn from(error: ExamError) -> Self {
        match error {
            ExamError::File { path, source } => Failure::file(path)(source),
            error => Failure::usage(error.to_string(), "give another file with --results"),
        }
    }
}

/// Takes an exam, with a bar on a terminal, else with a line every ten seconds.
fn take(exam: Exam, model: &Gpt, evaluation: &Evaluation, quiet: bool) -> Result<Score, ExamError> {
    let bar = (!quiet && draws(&std::io::stderr())).then(|| {
        let style = style("[{bar:12}] {pos}/{len} questions, {eta} left, {wide_msg}");
        ProgressBar::new(exam.total as u64).with_style(style)
    });
    let mut activity = Activity::new(quiet);
    let mut show = |score: &Score| {
        let right = format!("{} right", percent(score.accuracy(), 1));
        match &bar {
            Some(bar) => {
                if score.answered > 0 {
                    bar.set_message(right);
                }
                bar.set_position(score.answered as u64);
            }
            None => activity.show(format!("{} questions answered, {right}", score.answered)),
        }
    };
    show(&exam.score);
    pollster::block_on(exam.take(model, evaluation, show))
}
