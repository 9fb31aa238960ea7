//! Reads nanoGPT's `.py` configs. They are never run: a config is a list of `name = literal`.

use super::ConfigError;
use super::expression;
use super::keys::{self, Known};
use super::value::Value;

/// One line `name = literal` of a config.
#[derive(Debug, PartialEq)]
pub(crate) struct Assignment<'a> {
    pub name: &'a str,
    pub value: Value,
    /// Counted from 1.
    pub line: usize,
}

/// The assignments of a file, in order. Blank lines and comments are left out; every other line is
/// an assignment or an error that quotes it.
pub(crate) fn assignments<'a>(
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
                hint: "a .py config is read, never run: write the value itself, or delete the line",
            })),
        }
    })
}

/// Reads one line: `None` if nothing stands on it that a config needs, a clause about the problem if
/// it is no `name = literal`. Values of keys that are dropped need not be literals: nanoGPT's
/// finetuning config imports `time` to name its run.
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
                Some(Known::Ignored(_)) => Value::Text(value.trim().into()),
                _ => expression::parse(value)?,
            };
            Ok(Some((name, value)))
        }
        _ => Err("this is not `name = literal`".into()),
    }
}

/// A line as an error shows it: printable and not endless.
pub(crate) fn quote(line: &str) -> String {
    const LONGEST: usize = 120;
    let mut shown: String =
        line.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST).collect();
    if line.trim().chars().nth(LONGEST).is_some() {
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
    fn a_config_is_a_list_of_literals() {
        let text = "\u{feff}# a config\r\n\r\nbatch_size = 12 # per step\r\nbias=False\n  # indented\nx = 'a'";
        let expected = vec![
            ("batch_size", Value::Int(12), 3),
            ("bias", Value::Bool(false), 4),
            ("x", Value::Text("a".into()), 6),
        ];
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn other_statements_are_errors_that_quote_their_line() {
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
    fn finetuning_configs_import_time_to_name_their_run() {
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
