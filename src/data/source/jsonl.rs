//! JSON lines: an object per line, with the document in one of its fields, or with a conversation.

use std::io::{BufRead, Read};

use serde_json::{Map, Value};

use super::chat_lines::{MESSAGES, conversation};
use super::file::Input;
use super::{BadLines, DataError, DocumentPart, Sink, Stop};
use crate::data::Message;
use crate::data::error::FIX_LINE;

const FIX_TEXT_LINE: &str = "fix or remove the line, choose another field with --text-field, or leave \
                             such lines out with --skip-bad-lines";

/// Largest line in bytes. A longer document belongs in a text file.
const MAX_LINE: u64 = 256 << 20;

/// Lines that are read to find out whether a file has conversations.
const PEEKED: u64 = 100;

/// Returns true if the first line of the file that is an object has messages and no text.
pub(super) fn has_conversations(input: &mut Input<'_>, field: &str) -> Result<bool, DataError> {
    let mut bytes = Vec::new();
    for number in 1..=PEEKED {
        if read_line(input, number, MAX_LINE, &mut bytes)? == 0 {
            break;
        }
        let text = str::from_utf8(&bytes).unwrap_or_default();
        if let Ok(Some(object)) = object(text, number) {
            return Ok(object.contains_key(MESSAGES) && !object.contains_key(field));
        }
    }
    Ok(false)
}

/// Reads the documents in `field`, or else conversations, into `sink`. Leaves out blank lines and empty
/// documents.
pub(super) fn read(
    input: &mut Input<'_>,
    field: Option<&str>,
    bad: &mut BadLines,
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    let (mut bytes, mut offset) = (Vec::new(), 0);
    let hint = if field.is_some() { FIX_TEXT_LINE } else { FIX_LINE };
    for number in 1.. {
        let length = read_line(input, number, MAX_LINE, &mut bytes)?;
        if length == 0 {
            break;
        }
        let content = match str::from_utf8(&bytes) {
            Err(error) => Err(DataError::not_utf8(input.path, offset + error.valid_up_to() as u64)),
            Ok(text) => content(text, number, field)
                .map_err(|reason| DataError::line(input.path, number, &reason, hint)),
        };
        offset += length;
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                bad.skip(error)?;
                continue;
            }
        };
        let bytes_read = input.bytes_read();
        match content {
            Content::Document(text) if text.is_empty() => {}
            Content::Document(text) => {
                sink(DocumentPart::Text(&text), bytes_read)?;
                sink(DocumentPart::EndOfDocument, bytes_read)?;
            }
            Content::Conversation(messages) => {
                sink(DocumentPart::Conversation(&messages), bytes_read)?;
            }
        }
    }
    Ok(())
}

/// Reads a line into `bytes` and returns its length, 0 at the end of the file. A file with a longer line than
/// `limit` is not one of lines, so there is no next line to continue with.
pub fn read_line(
    input: &mut Input<'_>,
    line: u64,
    limit: u64,
    bytes: &mut Vec<u8>,
) -> Result<u64, DataError> {
    bytes.clear();
    let length = (&mut input.reader).take(limit + 1).read_until(b'\n', bytes);
    let length = length.map_err(|error| input.failed(error))? as u64;
    if length > limit {
        let reason = format!("the line is longer than {limit} bytes");
        let hint = "a .jsonl file has one document per line";
        return Err(DataError::line(input.path, line, &reason, hint));
    }
    Ok(length)
}

enum Content {
    Document(String),
    Conversation(Vec<Message>),
}

/// Parses a line. The error is a clause about the problem.
fn content(text: &str, number: u64, field: Option<&str>) -> Result<Content, String> {
    let Some(mut object) = object(text, number)? else {
        return Ok(Content::Document(String::new()));
    };
    let Some(field) = field else { return conversation(&object).map(Content::Conversation) };
    match object.remove(field) {
        Some(Value::String(document)) => Ok(Content::Document(document)),
        Some(_) => Err(format!("field {field:?} is not a string")),
        None => Err(no_field(field, &object)),
    }
}

/// Returns the object of a line; `None` for a blank line. The error is a clause about the problem.
fn object(text: &str, number: u64) -> Result<Option<Map<String, Value>>, String> {
    let mark = if number == 1 { "\u{feff}" } else { "" };
    let text = text.strip_prefix(mark).unwrap_or(text);
    if text.trim().is_empty() {
        return Ok(None);
    }
    let object = serde_json::from_str(text);
    object.map(Some).map_err(|error| format!("not a JSON object ({error})"))
}

/// Returns the clause about an object without the field `name`.
pub(super) fn no_field(name: &str, object: &Map<String, Value>) -> String {
    let names: Vec<_> = object.keys().map(String::as_str).collect();
    let names = if names.is_empty() { "no fields".to_owned() } else { names.join(", ") };
    format!("no field {name:?}; the line has {names}")
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{assert_says, folder};
    use super::super::tests::{contents, documents, sources_of};

    fn read(content: &[u8], field: &str) -> Result<Vec<String>, String> {
        let folder = folder(&[("a.jsonl", content)]);
        documents(folder.path().join("a.jsonl"), field).map_err(|error| error.to_string())
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
            assert_says(read(content, "text").unwrap_err(), expected);
        }
    }

    #[test]
    fn bad_lines_are_skipped_by_choice() {
        let content = b"{\"text\":\"a\"}\n{\"text\":\n\xff\n{\"text\":\"b\"}\n{\"text\":1}";
        let folder = folder(&[("a.jsonl", content)]);
        let sources = sources_of(folder.path().join("a.jsonl"), true);
        // Each pass counts them again.
        for _ in 0..2 {
            let (texts, _, bad) = contents(&sources).unwrap();
            assert_eq!((texts, bad.count), (vec!["a".to_owned(), "b".to_owned()], 3));
            assert_says(bad.first.unwrap(), "a.jsonl:2: not a JSON object");
        }
    }

    #[test]
    fn conversations_are_recognised_by_their_first_object() {
        let chat =
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let both = chat.replace("{\"messages\"", "{\"text\":\"x\",\"messages\"");
        for (content, expected) in [
            (format!("\u{feff}\n{chat}\n"), true),
            (format!("oh\n{chat}"), true),
            (both, false),
            ("{\"text\":\"a\"}".to_owned(), false),
            (String::new(), false),
        ] {
            let folder = folder(&[("a.jsonl", &content)]);
            let sources = sources_of(folder.path().join("a.jsonl"), true);
            assert_eq!(sources.has_conversations, expected, "{content}");
            let messages = contents(&sources).unwrap().1;
            assert_eq!(messages, if expected { 2 } else { 0 }, "{content}");
        }
    }
}
