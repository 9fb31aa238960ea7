//! Reads nanoGPT's `.py` configs without running them: a config is a list of `name = literal`.

use super::expression;
use super::keys::ignored;
use toml::Value;

/// Parses one line; `None` for blank lines, comments and imports. The error is a clause about the
/// problem. Values of ignored keys need not be literals: nanoGPT's finetuning config imports `time`
/// to name its run.
pub(super) fn assignment(line: &str) -> Result<Option<(&str, Value)>, String> {
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
            let value = if ignored(name).is_some() {
                Value::String(value.trim().into())
            } else {
                expression::parse(value)?
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
    use crate::config::Layer;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Vec<(&str, Value)>, String> {
        text.lines().filter_map(|line| assignment(line).transpose()).collect()
    }

    #[test]
    fn assignments_are_read_in_order() {
        let text =
            "# a config\r\n\r\nbatch_size = 12 # per step\r\nbias=False\n  # indented\nx = 'a'";
        let expected = vec![
            ("batch_size", Value::Integer(12)),
            ("bias", Value::Boolean(false)),
            ("x", Value::String("a".into())),
        ];
        assert_eq!(read(text), Ok(expected));
        // Ignored keys may call functions.
        let text = "import time\nwandb_run_name = 'ft-' + str(time.time())\nbatch_size = 1\n";
        let run = Value::String("'ft-' + str(time.time())".into());
        let expected = vec![("wandb_run_name", run), ("batch_size", Value::Integer(1))];
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
            let text = format!("n_layer = 2\n\n{statement}\n");
            let error = Layer::python("train.py", &text).expect_err(statement).to_string();
            let ends = error.ends_with(&format!("\n    {}", statement.trim()));
            assert!(error.starts_with("train.py:3: ") && ends, "{error}");
        }
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
