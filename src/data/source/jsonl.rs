//! JSON lines: an object per line, with the document in one of its fields.

use std::io::{BufRead, Read};
use std::ops::ControlFlow;

use serde_json::{Map, Value};

use super::file::Input;
use super::{DataError, Part, Sink};

/// Largest line in bytes. A longer document belongs in a text file.
const MAX_LINE: u64 = 256 << 20;

/// Reads the documents of a JSON lines file into `sink`. Skips blank lines and empty documents.
pub(super) fn read(
    input: &mut Input<'_>,
    field: &str,
    sink: &mut Sink<'_>,
) -> Result<ControlFlow<()>, DataError> {
    let mut bytes = Vec::new();
    let mut offset = 0_u64;
    for line in 1_u64.. {
        bytes.clear();
        let length = (&mut input.reader)
            .take(MAX_LINE + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(input.read_error())? as u64;
        if length == 0 {
            break;
        }
        if length > MAX_LINE {
            return Err(DataError::LineTooLong {
                path: input.path.to_owned(),
                line,
                limit: MAX_LINE,
            });
        }
        let text = str::from_utf8(&bytes).map_err(|error| DataError::InvalidUtf8 {
            path: input.path.to_owned(),
            offset: offset.saturating_add(error.valid_up_to() as u64),
        })?;
        offset = offset.saturating_add(length);
        let document = document(text, line, field).map_err(|reason| DataError::JsonLine {
            path: input.path.to_owned(),
            line,
            reason,
        })?;
        if document.is_empty() {
            continue;
        }
        let bytes_read = input.bytes_read();
        for part in [Part::Text(&document), Part::EndOfDocument] {
            if sink(part, bytes_read)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the text field of a line. The error is a clause about the problem.
fn document(text: &str, line: u64, field: &str) -> Result<String, String> {
    let text = match text.strip_prefix('\u{feff}') {
        Some(rest) if line == 1 => rest,
        _ => text,
    };
    if text.trim().is_empty() {
        return Ok(String::new());
    }
    let mut object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| format!("not a JSON object ({error})"))?;
    match object.remove(field) {
        Some(Value::String(document)) => Ok(document),
        Some(_) => Err(format!("field {field:?} is not a string")),
        None => {
            let names: Vec<_> = object.keys().map(String::as_str).collect();
            Err(format!(
                "no field {field:?}; the line has {}",
                if names.is_empty() { "no fields".to_owned() } else { names.join(", ") }
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::documents;

    fn read(content: &[u8], field: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        documents(&[path], field).map_err(|error| error.to_string())
    }

    #[test]
    fn each_line_is_a_document() {
        let content = "\u{feff}{\"text\":\"one\\n\\u00e9\",\"id\":1}\r\n\n{\"id\":2,\"text\":\"\"}\n{\"text\":\"two\"}";
        assert_eq!(read(content.as_bytes(), "text").unwrap(), ["one\n\u{e9}", "two"]);
        assert_eq!(read(b"{\"body\":\"<|endoftext|>\"}", "body").unwrap(), ["<|endoftext|>"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (content, expected) in [
            (&b"{\"text\":\"a\"}\n{\"text\":"[..], "a.jsonl:2: not a JSON object"),
            (b"{\"text\":3}", "a.jsonl:1: field \"text\" is not a string"),
            (b"\n{\"body\":\"a\"}", "a.jsonl:2: no field \"text\"; the line has body"),
            (b"[1]", "a.jsonl:1: not a JSON object"),
            (b"{\"text\":\"\\ud800\"}", "a.jsonl:1: not a JSON object"),
            (b"{\"text\":\"a\"}\n{\"text\":\"\xff\"}", "a.jsonl: not UTF-8 at byte 22"),
        ] {
            let message = read(content, "text").unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
