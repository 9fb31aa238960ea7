//! Reads nanoGPT's `.py` configs without running them: a config is a list of `name = literal`.

use super::ConfigError;
use super::expression;
use super::keys::{self, KnownKey};
use super::literal::Value;

/// A line `name = literal` of a config.
#[derive(Debug, PartialEq)]
pub(super) struct Assignment<'a> {
    pub name: &'a str,
    pub value: Value,
    /// Line number, from 1.
    pub line: usize,
}

/// Yields the assignments of a file, in order. Skips blank lines and comments; every other line is
/// an assignment or an error that quotes it.
pub(super) fn assignments<'a>(
    file: &'a str,
    text: &'a str,
) -> impl Iterator<Item = Result<Assignment<'a>, ConfigError>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().enumerate().filter_map(move |(index, source)| {
        let line = index + 1;
        match assignment(source) {
            Ok(None) => None,
            Ok(Some((name, value))) => Some(Ok(Assignment { name, value, line })),
            Err(problem) => Some(Err(ConfigError::Syntax {
                file: file.into(),
                line,
                quote: quote(source),
                problem,
                hint: "a .py config is read but never run: write the value itself, or delete the line",
            })),
        }
    })
}

/// Parses one line; `None` for blank lines, comments and imports. The error is a clause about the
/// problem. Values of ignored keys need not be literals: nanoGPT's finetuning config imports `time`
/// to name its run.
fn assignment(line: &str) -> Result<Option<(&str, Value)>, String> {
    let content = line.trim_start();
    if content.is_empty() || content.starts_with('#') {
        return Ok(None);
    }
    let imported = content.strip_prefix("import ").map(str::trim);
    if imported.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')) {
        return Ok(None);
    }
    if content.len() < line.len() {
        return Err("the line is indented".into());
    }
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let value = rest.trim_start().strip_prefix('=').filter(|value| !value.starts_with('='));
    match value {
        Some(value) if name.starts_with(|c: char| !c.is_ascii_digit()) => {
            let value = match keys::lookup(name) {
                Some(KnownKey::Ignored(_)) => Value::Text(value.trim().into()),
                _ => expression::parse(value)?,
            };
            Ok(Some((name, value)))
        }
        _ => Err("this is not `name = literal`".into()),
    }
}

/// Quotes a line for an error: without control characters, and cut at 120 characters.
pub(super) fn quote(line: &str) -> String {
    const MAX_CHARS: usize = 120;
    let mut shown: String =
        line.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_CHARS).collect();
    if line.trim().chars().nth(MAX_CHARS).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<(&str, Value, usize)>, ConfigError> {
        assignments("train.py", text).map(|a| a.map(|a| (a.name, a.value, a.line))).collect()
    }

    #[test]
    fn assignments_are_read_in_order() {
        let text = "\u{feff}# a config\r\n\r\nbatch_size = 12 # per step\r\nbias=False\n  # indented\nx = 'a'";
        let expected = vec![
            ("batch_size", Value::Int(12), 3),
            ("bias", Value::Bool(false), 4),
            ("x", Value::Text("a".into()), 6),
        ];
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn errors_quote_lines_that_are_not_assignments() {
        for statement in [
            "import time, sys",
            "from model import GPT",
            "if True:",
            "  batch_size = 1",
            "print('x')",
            "batch_size == 1",
            "batch_size += 1",
            "batch_size: int = 1",
            "batch_size = x = 1",
            "batch_size",
            "1x = 1",
            "= 1",
            "out_dir = 'ft-' + str(time.time())",
            "\"\"\"doc\"\"\"",
            "données = 1",
        ] {
            let error = read(&format!("n_layer = 2\n\n{statement}\n")).expect_err(statement);
            let ConfigError::Syntax { file, line, quote, .. } = &error else { panic!("{error:?}") };
            assert_eq!((file.as_str(), *line, quote.as_str()), ("train.py", 3, statement.trim()));
        }
    }

    #[test]
    fn ignored_keys_may_call_functions() {
        let text = "import time\nwandb_run_name = 'ft-' + str(time.time())\nbatch_size = 1\n";
        let run = Value::Text("'ft-' + str(time.time())".into());
        let expected = vec![("wandb_run_name", run, 2), ("batch_size", Value::Int(1), 3)];
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn quotes_are_short_and_printable() {
        assert_eq!(quote("  a\u{1b}[31m\tb "), "a [31m b");
        assert_eq!(quote(&"x".repeat(1000)).len(), 123);
    }

    proptest! {
        #[test]
        fn arbitrary_files_never_panic(text in "(\\PC|\n|\r|\t|=|'|#){0,200}") {
            let _ = read(&text);
        }
    }
}
