//! HellaSwag: contexts with four endings, only one of them right (Zellers et al. 2019, "HellaSwag: Can a
//! Machine Really Finish Your Sentence?"), in the form of its public files: one JSON object a line, with
//! `ctx`, `endings` and `label`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::DataError;
use super::source::{SourceFile, read_line};

/// Largest line in bytes. The longest of the public files have 2 KiB.
const MAX_LINE: u64 = 1 << 20;

/// The most endings of a question, which are evaluated in one micro-batch.
const MAX_ENDINGS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The line in the file, from 1.
    pub line: u64,
    pub context: String,
    /// The endings, without the space before them.
    pub endings: Vec<String>,
    pub label: usize,
}

#[derive(Clone, Debug)]
pub struct Questions {
    pub questions: Vec<Question>,
    /// The errors of the lines that were skipped.
    pub skipped: Vec<DataError>,
    /// The BLAKE3 hash of the file, in hexadecimal.
    pub fingerprint: String,
}

impl Questions {
    /// Reads a file. Leaves out blank lines and, with `skip`, all lines that are not questions. Without `skip`
    /// such a line is an error.
    pub fn read(path: &Path, skip: bool) -> Result<Self, DataError> {
        let file = SourceFile::new(path, 0);
        let mut input = file.open()?;
        let mut hasher = blake3::Hasher::new();
        let mut questions = Vec::new();
        let mut skipped = Vec::new();
        let mut bytes = Vec::new();
        for line in 1.. {
            if read_line(&mut input, line, MAX_LINE, &mut bytes)? == 0 {
                break;
            }
            hasher.update(&bytes);
            let text = bytes.trim_ascii();
            if text.is_empty() {
                continue;
            }
            match question(text, line).map_err(|reason| DataError::question(path, line, &reason)) {
                Ok(question) => questions.push(question),
                Err(error) if skip => skipped.push(error),
                Err(error) => return Err(error),
            }
        }
        if questions.is_empty() {
            return Err(DataError::no_questions(path));
        }
        Ok(Self { questions, skipped, fingerprint: hasher.finalize().to_hex().to_string() })
    }
}

#[derive(Deserialize)]
struct Fields {
    ctx: String,
    endings: Vec<String>,
    /// A number or, in Hugging Face's copy of the data, its digits.
    #[serde(default)]
    label: Value,
}

/// Parses a line; the error is a clause that says what is wrong with it.
fn question(bytes: &[u8], line: u64) -> Result<Question, String> {
    let text = str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    let fields: Fields = serde_json::from_str(text).map_err(|error| {
        if error.is_eof() {
            "the JSON object does not end: the file is cut short".to_owned()
        } else {
            format!("not a question ({error})")
        }
    })?;
    let Fields { ctx: context, endings, label } = fields;
    if context.trim().is_empty() {
        return Err("`ctx` is empty".to_owned());
    }
    if !(2..=MAX_ENDINGS).contains(&endings.len()) {
        return Err(format!("{} endings, expected 2 to {MAX_ENDINGS}", endings.len()));
    }
    if let Some(index) = endings.iter().position(|ending| ending.trim().is_empty()) {
        return Err(format!("ending {index} is empty"));
    }
    let number = match &label {
        Value::String(digits) => digits.parse().ok(),
        label => label.as_u64().and_then(|label| usize::try_from(label).ok()),
    };
    match number {
        Some(label) if label < endings.len() => Ok(Question { line, context, endings, label }),
        Some(label) => Err(format!("`label` is {label}, but there are {} endings", endings.len())),
        None if label.is_null() || label == "" => {
            Err("no `label` (the test file has none): use the validation file".to_owned())
        }
        None => Err(format!("`label` is {label}, not the index of an ending")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_says, folder};
    use super::*;

    const GOOD: &str =
        r#"{"ind": 4, "ctx": "A cat sits.", "endings": ["it runs", "it flies"], "label": 1}"#;

    fn read(text: impl AsRef<[u8]>, skip: bool) -> Result<Questions, DataError> {
        let folder = folder(&[("choices.jsonl", text)]);
        Questions::read(&folder.path().join("choices.jsonl"), skip)
    }

    #[test]
    fn both_public_forms_are_read() {
        let digits = GOOD.replace("\"label\": 1", "\"label\": \"1\"");
        let read = read(format!("{GOOD}\n\n{digits}"), false).unwrap();
        let expected = |line| Question {
            line,
            context: "A cat sits.".into(),
            endings: vec!["it runs".into(), "it flies".into()],
            label: 1,
        };
        assert_eq!(read.questions, [expected(1), expected(3)]);
        assert!(read.skipped.is_empty());
    }

    #[test]
    fn each_bad_line_has_its_reason() {
        for (from, to, reason) in [
            ("\"ctx\"", "\"text\"", "missing field `ctx`"),
            ("A cat sits.", " ", "`ctx` is empty"),
            ("\"it flies\"", "\"\"", "ending 1 is empty"),
            (", \"it flies\"", "", "1 endings"),
            ("\"label\": 1", "\"label\": 2", "`label` is 2"),
            ("\"label\": 1", "\"label\": -1", "`label` is -1"),
            ("\"label\": 1", "\"label\": \"\"", "use the validation file"),
            (", \"label\": 1", "", "use the validation file"),
            ("\"label\": 1}", "\"la", "cut short"),
        ] {
            let bad = GOOD.replace(from, to);
            assert_ne!(bad, GOOD, "{from}");
            let text = format!("{GOOD}\n{bad}\n");
            let error = read(&text, false).unwrap_err().to_string();
            assert!(error.contains("choices.jsonl:2: ") && error.contains(reason), "{error}");
            let rest = read(&text, true).unwrap();
            assert_eq!((rest.questions.len(), rest.skipped.len()), (1, 1));
        }
        assert_says(read(b"\xff\n", false).unwrap_err(), ":1: not UTF-8");
        assert!(read("\n", false).unwrap_err().to_string().ends_with("no questions"));
        assert_says(read("x".repeat(MAX_LINE as usize + 1), true).unwrap_err(), "longer than");
    }

    #[test]
    fn the_fingerprint_changes_with_the_file() {
        let fingerprint = |text: &str| read(text, false).unwrap().fingerprint;
        assert_eq!(fingerprint(GOOD), fingerprint(GOOD));
        assert_ne!(fingerprint(GOOD), fingerprint(&GOOD.replace("runs", "hums")));
    }
}
