//! An exam: all questions of a file, the score, and the results that an interrupted evaluation continues.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::data::{DataError, Questions, Tokenizer};
use crate::disk::{self, File};
use crate::eval::Evaluation;
use crate::eval::quiz::{EncodedQuestion, QuizAnswer, answer, encode};
use crate::model::Gpt;

#[derive(Debug, Error)]
pub enum ExamError {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The file has no results, or results of another model or other questions.
    #[error("{}:{line}: {what}", path.display())]
    OtherResults { path: PathBuf, line: usize, what: &'static str },
    #[error("the losses of this model are not finite")]
    NotFinite,
}

pub struct Exam {
    /// The questions without an answer yet.
    open: Vec<EncodedQuestion>,
    pub total: usize,
    pub score: Score,
    /// The file of results, open for appending.
    results: Option<(PathBuf, File)>,
    pub skipped: Vec<DataError>,
    fingerprint: String,
}

/// The number of right answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    pub answered: usize,
    right: usize,
    right_by_sum: usize,
    /// Lines that are no questions.
    skipped: usize,
    /// Questions that are longer than the model's context.
    pub cropped: usize,
}

#[derive(Serialize, Deserialize)]
struct ResultsHeader {
    model: String,
    questions: String,
}

impl Exam {
    /// Reads questions for a model with this context. With `skip_bad_lines`, other lines are skipped.
    pub fn open(
        path: &Path,
        tokenizer: &Tokenizer,
        block_size: usize,
        skip_bad_lines: bool,
    ) -> Result<Self, DataError> {
        let Questions { questions, mut skipped, fingerprint } =
            Questions::read(path, skip_bad_lines)?;
        let mut open = Vec::new();
        for question in &questions {
            // A character that the vocabulary lacks makes a line as bad as a missing field does.
            match encode(path, question, tokenizer, block_size) {
                Ok(encoded) => open.push(encoded),
                Err(error) if skip_bad_lines => skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        if open.is_empty() {
            return Err(DataError::no_questions(path));
        }
        let cropped = open.iter().filter(|question| question.is_cropped).count();
        let score = Score { skipped: skipped.len(), cropped, ..Score::default() };
        Ok(Self { total: open.len(), open, score, results: None, skipped, fingerprint })
    }

    /// Appends the results to a file, and counts those that it has from an interrupted evaluation.
    /// Returns their number. `model` is the hash of the weights.
    pub fn continue_in(&mut self, path: &Path, model: String) -> Result<usize, ExamError> {
        let header = ResultsHeader { model, questions: self.fingerprint.clone() };
        let (file, lines) = open_results(path, &header)?;
        self.results = Some((path.to_path_buf(), file));
        let losses: HashMap<u64, Vec<f64>> =
            lines.into_iter().map(|answer| (answer.line, answer.losses)).collect();
        let score = &mut self.score;
        self.open.retain(|question| {
            let losses = losses.get(&question.line).filter(|losses| question.has(losses.len()));
            let answer = losses.map(|losses| QuizAnswer::new(question, losses.clone()));
            answer.inspect(|answer| score.count(answer)).is_none()
        });
        Ok(self.score.answered)
    }

    /// Answers all open questions. `show` gets the score after each micro-batch.
    pub async fn take(
        self,
        model: &Gpt,
        evaluation: &Evaluation,
        mut show: impl FnMut(&Score),
    ) -> Result<Score, ExamError> {
        let Self { open, mut score, mut results, .. } = self;
        let mut answered = |answers: Vec<QuizAnswer>| {
            for answer in &answers {
                if !answer.losses.iter().all(|loss| loss.is_finite()) {
                    return Err(ExamError::NotFinite);
                }
                score.count(answer);
            }
            if let Some((path, file)) = &mut results {
                append(file, &answers)
                    .map_err(|source| ExamError::File { path: path.clone(), source })?;
            }
            show(&score);
            Ok(())
        };
        answer(model, open, evaluation, &mut answered).await?;
        Ok(score)
    }
}

impl Score {
    fn count(&mut self, answer: &QuizAnswer) {
        self.answered += 1;
        self.right += usize::from(answer.is_right());
        self.right_by_sum += usize::from(answer.is_right_by_sum());
    }

    fn share(&self, right: usize) -> f64 {
        right as f64 / self.answered.max(1) as f64
    }

    /// Returns the share of questions that are right by mean loss.
    pub fn accuracy(&self) -> f64 {
        self.share(self.right)
    }

    fn standard_error(&self) -> f64 {
        let share = self.accuracy();
        (share * (1.0 - share) / self.answered.max(1) as f64).sqrt()
    }

    pub fn json(&self) -> Value {
        json!({
            "accuracy": self.accuracy(), "standard_error": self.standard_error(),
            "accuracy_by_sum": self.share(self.right_by_sum), "questions": self.answered,
            "skipped": self.skipped, "cropped": self.cropped,
        })
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, sum] = [self.right, self.right_by_sum].map(|right| 100.0 * self.share(right));
        let error = 100.0 * self.standard_error();
        let Self { answered, right, .. } = self;
        write!(
            f,
            "HellaSwag {mean:.2}% (± {error:.2}), {right} of {answered} right by mean loss; by sum \
             {sum:.2}%"
        )
    }
}

/// Opens or creates a file of results. Returns the results that it has.
fn open_results(path: &Path, header: &ResultsHeader) -> Result<(File, Vec<QuizAnswer>), ExamError> {
    let error = |source| ExamError::File { path: path.to_path_buf(), source };
    // A link could lead to any file, and a pipe would be waited for.
    let text = match disk::open_own(path).and_then(io::read_to_string) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(source) => return Err(error(source)),
    };
    // A killed process may have left half a line.
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = if text.is_empty() { Vec::new() } else { read(path, &text[..whole], header)? };
    if whole < text.len() {
        disk::replace(path, &text.as_bytes()[..whole]).map_err(error)?;
    }
    let mut file = disk::append_own(path).map_err(error)?;
    if whole == 0 {
        writeln!(file, "{}", json!(header)).map_err(error)?;
    }
    Ok((file, lines))
}

fn append(file: &mut File, answers: &[QuizAnswer]) -> io::Result<()> {
    let text: String = answers.iter().map(|answer| format!("{}\n", json!(answer))).collect();
    file.write_all(text.as_bytes()).and_then(|()| file.flush())
}

/// Reads the whole lines of a file of results.
fn read(path: &Path, text: &str, header: &ResultsHeader) -> Result<Vec<QuizAnswer>, ExamError> {
    let other = |line, what| ExamError::OtherResults { path: path.to_path_buf(), line, what };
    let mut lines = (1..).zip(text.lines());
    let found = lines.next().and_then(|(_, line)| serde_json::from_str::<ResultsHeader>(line).ok());
    let found = found.ok_or_else(|| other(1, "not a file of results"))?;
    if found.model != header.model {
        return Err(other(1, "the results of another model"));
    }
    if found.questions != header.questions {
        return Err(other(1, "the results for another file of questions"));
    }
    let result = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|_| other(number, "not a result"))
    };
    lines.map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(model: &str) -> ResultsHeader {
        ResultsHeader { model: model.into(), questions: "q".into() }
    }

    fn answer(line: u64, label: usize) -> QuizAnswer {
        let text = json!({
            "line": line, "label": label, "choice": 1, "losses": [2.5, 1.0 / 3.0], "tokens": [1, 9],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn results_continue_after_a_cut_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let (mut file, lines) = open_results(&path, &header("m")).unwrap();
        assert!(lines.is_empty());
        append(&mut file, &[answer(7, 1), answer(3, 1)]).unwrap();
        drop(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let (mut file, lines) = open_results(&path, &header("m")).unwrap();
        assert_eq!(lines, [answer(7, 1)]);
        append(&mut file, &[answer(3, 1)]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn other_files_are_refused_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        drop(open_results(&path, &header("m")).unwrap());
        let good = std::fs::read_to_string(&path).unwrap();
        for (text, model, reason) in [
            (good.clone(), "n", ":1: the results of another model"),
            (good.replace("\"q\"", "\"p\""), "m", "another file of questions"),
            (format!("{good}{{}}\n"), "m", ":2: not a result"),
            ("my notes\n".into(), "m", ":1: not a file of results"),
            ("my notes".into(), "m", ":1: not a file of results"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = open_results(&path, &header(model)).expect_err(reason).to_string();
            assert!(error.contains(reason), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn results_are_not_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [elsewhere, path] = ["elsewhere", "results.jsonl"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let error = open_results(&path, &header("m")).unwrap_err();
        assert!(error.to_string().contains("it is a link"), "{error}");
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_score_tells_its_error() {
        let mut score = Score::default();
        for label in [0, 1, 1, 1] {
            score.count(&answer(1, label));
        }
        // The mean chooses ending 1, the sum ending 0: 2.5 is less than 9/3.
        assert_eq!((score.right, score.right_by_sum), (3, 1));
        assert_eq!(
            score.to_string(),
            "HellaSwag 75.00% (± 21.65), 3 of 4 right by mean loss; by sum 25.00%"
        );
    }
}
