//! `wgpt eval --hellaswag`: answers questions, shows how many are right so far, and continues a file of
//! results.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::CliError;
use super::activity::{Activity, style};
use super::args::EvalArgs;
use super::model::find_tokenizer;
use super::terminal::draws;
use crate::data::{DataError, Question, Questions};
use crate::eval::{Answer, EncodedQuestion, Evaluation, answer, encode};
use crate::model::Gpt;
use crate::runs::ModelSource;
use crate::text::percent;
use crate::train::TrainError;

/// Questions, ready to be answered by a model.
pub(super) struct Exam {
    questions: Vec<Question>,
    /// Those without an answer yet.
    open: Vec<EncodedQuestion>,
    score: Score,
    results: Option<Results>,
    /// The model, for errors.
    model: PathBuf,
}

/// The number of right answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Score {
    answered: usize,
    /// Right by the mean loss of an ending's tokens.
    right: usize,
    /// Right by the sum.
    right_by_sum: usize,
    /// Lines that were no questions.
    skipped: usize,
    /// Questions that were longer than the model's context.
    cropped: usize,
}

/// The result of a question, a line of the file of results.
#[derive(Serialize, Deserialize)]
struct Record {
    line: u64,
    label: usize,
    choice: usize,
    losses: Vec<f64>,
    tokens: Vec<usize>,
}

/// The first line of the file of results.
#[derive(Serialize, Deserialize, PartialEq)]
struct Header {
    /// The hash of the weights.
    model: String,
    /// The hash of the file of questions.
    questions: String,
}

impl Exam {
    /// Reads the questions and, if there are any, former results.
    pub fn open(
        path: &Path,
        args: &EvalArgs,
        source: &ModelSource,
        quiet: bool,
    ) -> Result<Self, CliError> {
        let tokenizer = find_tokenizer(source, args.data.as_deref())?;
        let Questions { questions, mut skipped, fingerprint } =
            Questions::read(path, args.skip_bad_lines)?;
        let mut open = Vec::new();
        let block_size = source.architecture.block_size;
        // Characters that the vocabulary lacks make a line as bad as a missing field does.
        let mut kept = Vec::new();
        for question in questions {
            match encode(kept.len(), &question, &tokenizer, block_size) {
                Ok(encoded) => {
                    open.push(encoded);
                    kept.push(question);
                }
                Err(error) => {
                    let (path, reason) = (path.to_path_buf(), error.to_string());
                    let error = DataError::BadQuestion { path, line: question.line, reason };
                    if !args.skip_bad_lines {
                        return Err(error.into());
                    }
                    skipped.push(error);
                }
            }
        }
        if kept.is_empty() {
            return Err(DataError::NoQuestions { path: path.to_path_buf() }.into());
        }
        let cropped = open.iter().filter(|question| question.is_cropped).count();
        report(&skipped, cropped, block_size);
        let mut exam = Self {
            questions: kept,
            open,
            score: Score { skipped: skipped.len(), cropped, ..Score::default() },
            results: None,
            model: source.path.clone(),
        };
        if let Some(path) = &args.results {
            let header = Header { model: source.fingerprint()?, questions: fingerprint };
            exam.resume(path, &header, quiet)?;
        }
        Ok(exam)
    }

    /// Counts the answers of a former, interrupted evaluation.
    fn resume(&mut self, path: &Path, header: &Header, quiet: bool) -> Result<(), CliError> {
        let (results, records) = Results::open(path, header)?;
        self.results = Some(results);
        let lines = self.questions.iter().enumerate();
        let index_of: HashMap<u64, usize> = lines.map(|(index, of)| (of.line, index)).collect();
        let mut done = HashSet::new();
        for Record { line, losses, tokens, .. } in records {
            let Some(&index) = index_of.get(&line) else { continue };
            let endings = self.questions[index].endings.len();
            if losses.len() == endings && tokens.len() == endings && done.insert(index) {
                self.score.count(&Answer { index, losses, tokens }, &self.questions[index]);
            }
        }
        self.open.retain(|question| !done.contains(&question.index()));
        if !done.is_empty() && !quiet {
            let (done, all) = (done.len(), self.questions.len());
            message!("{}: {done} of {all} questions are answered, continuing", path.display());
        }
        Ok(())
    }

    /// Answers all open questions.
    pub fn take(
        self,
        model: &Gpt,
        evaluation: &Evaluation,
        quiet: bool,
    ) -> Result<Score, CliError> {
        let Self { questions, open, mut score, mut results, model: path } = self;
        let mut display = Display::new(quiet, questions.len());
        display.show(&score);
        let mut answered = |answers: Vec<Answer>| -> Result<(), CliError> {
            for answer in &answers {
                if !answer.losses.iter().all(|loss| loss.is_finite()) {
                    let reason = "the losses of this model are not finite";
                    return Err(TrainError::checkpoint(&path, reason).into());
                }
                score.count(answer, &questions[answer.index]);
            }
            if let Some(results) = &mut results {
                results.append(&answers, &questions)?;
            }
            display.show(&score);
            Ok(())
        };
        pollster::block_on(answer(model, open, evaluation, &mut answered))?;
        display.clear();
        Ok(score)
    }
}

/// Says what was left out, and what was shortened.
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
             were shortened from the left; their scores compare with no other model's"
        );
    }
}

impl Score {
    fn count(&mut self, answer: &Answer, question: &Question) {
        self.answered += 1;
        self.right += usize::from(answer.choice() == question.label);
        self.right_by_sum += usize::from(answer.likeliest() == question.label);
    }

    /// Returns the share of right answers.
    fn share(&self, right: usize) -> f64 {
        right as f64 / self.answered.max(1) as f64
    }

    /// Returns the standard error of a share.
    fn standard_error(&self, share: f64) -> f64 {
        (share * (1.0 - share) / self.answered.max(1) as f64).sqrt()
    }

    pub fn json(&self) -> Value {
        let accuracy = self.share(self.right);
        json!({
            "accuracy": accuracy, "standard_error": self.standard_error(accuracy),
            "accuracy_by_sum": self.share(self.right_by_sum), "questions": self.answered,
            "skipped": self.skipped, "cropped": self.cropped,
        })
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, sum] = [self.right, self.right_by_sum].map(|right| 100.0 * self.share(right));
        let error = 100.0 * self.standard_error(mean / 100.0);
        let Self { answered, right, .. } = self;
        write!(
            f,
            "HellaSwag {mean:.2}% (± {error:.2}), {right} of {answered} right by mean loss; by sum \
             {sum:.2}%"
        )
    }
}

/// The file that results are appended to.
struct Results {
    path: PathBuf,
    file: File,
}

impl Results {
    /// Opens or creates a file of results; returns those that it has.
    ///
    /// # Errors
    /// If it cannot be read or written, or has something else than results of this model for these
    /// questions.
    fn open(path: &Path, header: &Header) -> Result<(Self, Vec<Record>), CliError> {
        let error = |source| CliError::File { path: path.to_path_buf(), source };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(source) => return Err(error(source)),
        };
        // A killed process may have left half a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole == 0 && !text.is_empty() {
            return Err(other(path, 1, "not a file of results"));
        }
        let records = match whole {
            0 => Vec::new(),
            whole => read(path, &text[..whole], header)?,
        };
        let mut options = OpenOptions::new();
        // Not for appending: Windows would not cut the half line off.
        let mut file =
            options.create(true).truncate(false).write(true).open(path).map_err(error)?;
        file.set_len(whole as u64).map_err(error)?;
        file.seek(SeekFrom::End(0)).map_err(error)?;
        if whole == 0 {
            writeln!(file, "{}", json!(header)).map_err(error)?;
        }
        Ok((Self { path: path.to_path_buf(), file }, records))
    }

    fn append(&mut self, answers: &[Answer], questions: &[Question]) -> Result<(), CliError> {
        let mut text = String::new();
        for answer in answers {
            let Question { line, label, .. } = questions[answer.index];
            let (losses, tokens) = (answer.losses.clone(), answer.tokens.clone());
            let record = Record { line, label, choice: answer.choice(), losses, tokens };
            text += &format!("{}\n", json!(record));
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(|source| CliError::File { path: self.path.clone(), source })
    }
}

/// Reads the lines of a file of results.
fn read(path: &Path, text: &str, header: &Header) -> Result<Vec<Record>, CliError> {
    let mut lines = (1..).zip(text.lines());
    let found: Option<Header> = lines.next().and_then(|(_, line)| serde_json::from_str(line).ok());
    match found {
        None => return Err(other(path, 1, "not a file of results")),
        Some(found) if found.model != header.model => {
            return Err(other(path, 1, "the results of another model"));
        }
        Some(found) if found.questions != header.questions => {
            return Err(other(path, 1, "the results for another file of questions"));
        }
        Some(_) => {}
    }
    let record = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|_| other(path, number, "not a result"))
    };
    lines.map(record).collect()
}

fn other(path: &Path, line: usize, what: &str) -> CliError {
    CliError::Usage {
        what: format!("{}:{line}: {what}", path.display()),
        hint: "give another file with --results",
    }
}

/// Shows the progress: a bar on a terminal, else a line every ten seconds.
enum Display {
    Bar(ProgressBar),
    Lines(Activity),
}

impl Display {
    fn new(quiet: bool, total: usize) -> Self {
        if quiet || !draws(&std::io::stderr()) {
            return Self::Lines(Activity::new(quiet));
        }
        let bar = ProgressBar::new(total as u64);
        Self::Bar(bar.with_style(style("[{bar:12}] {pos}/{len} questions, {eta} left, {wide_msg}")))
    }

    fn show(&mut self, score: &Score) {
        let right = format!("{} right", percent(score.share(score.right), 1));
        match self {
            Self::Bar(bar) => {
                if score.answered > 0 {
                    bar.set_message(right);
                }
                bar.set_position(score.answered as u64);
            }
            Self::Lines(activity) => {
                activity.show(format!("{} questions answered, {right}", score.answered));
            }
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines(activity) => activity.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(model: &str) -> Header {
        Header { model: model.into(), questions: "q".into() }
    }

    fn question(line: u64) -> Question {
        let endings = vec!["a".into(), "b".into()];
        Question { line, context: "c".into(), endings, label: 1 }
    }

    fn answer(index: usize) -> Answer {
        Answer { index, losses: vec![2.5, 1.0 / 3.0], tokens: vec![1, 9] }
    }

    #[test]
    fn results_continue_after_a_cut_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let (mut results, records) = Results::open(&path, &header("m")).unwrap();
        assert!(records.is_empty());
        results.append(&[answer(1), answer(0)], &[question(3), question(7)]).unwrap();
        drop(results);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let (mut results, records) = Results::open(&path, &header("m")).unwrap();
        let [record] = &records[..] else { panic!("{} records", records.len()) };
        assert_eq!((record.line, record.label, record.choice), (7, 1, 1));
        results.append(&[answer(0)], &[question(3), question(7)]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn other_files_are_refused_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        drop(Results::open(&path, &header("m")).unwrap());
        let good = std::fs::read_to_string(&path).unwrap();
        for (text, model, reason) in [
            (good.clone(), "n", ":1: the results of another model"),
            (good.replace("\"q\"", "\"p\""), "m", "another file of questions"),
            (format!("{good}{{}}\n"), "m", ":2: not a result"),
            ("my notes\n".into(), "m", ":1: not a file of results"),
            ("my notes".into(), "m", ":1: not a file of results"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Results::open(&path, &header(model)).err().expect(reason).to_string();
            assert!(error.contains(reason), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_score_tells_its_error() {
        let mut score = Score::default();
        for index in 0..4 {
            let label = usize::from(index > 0);
            score.count(&answer(index), &Question { label, ..question(1) });
        }
        // The mean chooses ending 1, the sum ending 0: 2.5 is less than 9/3.
        assert_eq!((score.right, score.right_by_sum), (3, 1));
        assert_eq!(
            score.to_string(),
            "HellaSwag 75.00% (± 21.65), 3 of 4 right by mean loss; by sum 25.00%"
        );
    }
}
