//! JSON lines: an object per line, with the document in one of its fields, or with a conversation.

use std::io::{BufRead, Read};

use serde_json::{Map, Value};

use super::input::Input;
use super::{BadLines, DataError, DocumentPart, Sink, Stop};
use crate::data::chat::refusal;
use crate::data::error::FIX_LINE;
use crate::data::{ChatTemplate, Message, Role};

/// The field of conversations.
const MESSAGES: &str = "messages";

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

/// Reads the documents in `field`, or else conversations that `template` accepts, into `sink`. Leaves out blank
/// lines and empty documents.
pub(super) fn read(
    input: &mut Input<'_>,
    field: Option<&str>,
    template: Option<&ChatTemplate>,
    bad: &mut BadLines,
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    let mut bytes = Vec::new();
    let mut offset = 0;
    let hint = if field.is_some() { FIX_TEXT_LINE } else { FIX_LINE };
    for number in 1.. {
        let length = read_line(input, number, MAX_LINE, &mut bytes)?;
        if length == 0 {
            break;
        }
        let content = match str::from_utf8(&bytes) {
            Err(error) => Err(DataError::not_utf8(input.path, offset + error.valid_up_to() as u64)),
            Ok(text) => content(text, number, field)
                .and_then(|content| accepted(content, template))
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

/// Reads a line into `bytes` and returns its length, 0 at the end of the file. A line longer than `limit` is an
/// error even if bad lines are skipped, because the next line is not found.
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

fn accepted(content: Content, template: Option<&ChatTemplate>) -> Result<Content, String> {
    if let (Content::Conversation(messages), Some(template)) = (&content, template) {
        template.spans(messages).map_err(|reason| refusal(&reason))?;
    }
    Ok(content)
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
fn no_field(name: &str, object: &Map<String, Value>) -> String {
    let names: Vec<_> = object.keys().map(String::as_str).collect();
    let names = if names.is_empty() { "no fields".to_owned() } else { names.join(", ") };
    format!("no field {name:?}; the line has {names}")
}

/// Returns the messages of a conversation, in the common form
/// `{"messages":[{"role":"user","content":"Hello!"},{"role":"assistant","content":"Hi."}]}`. Those after the
/// last one of the assistant are left out: nothing is learnt from them. The error is a clause about the
/// problem.
fn conversation(object: &Map<String, Value>) -> Result<Vec<Message>, String> {
    let messages = match object.get(MESSAGES) {
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err("`messages` is not a list".to_owned()),
        None => return Err(no_field(MESSAGES, object)),
    };
    let parsed = messages.iter().zip(1..).map(|(value, number): (_, u32)| {
        message(value).map_err(|reason| format!("message {number}: {reason}"))
    });
    let mut messages = parsed.collect::<Result<Vec<_>, _>>()?;
    let last = messages.iter().rposition(|message| message.role == Role::Assistant);
    let last = last.ok_or("no assistant message for a model to learn from")?;
    messages.truncate(last + 1);
    Ok(messages)
}

fn message(value: &Value) -> Result<Message, String> {
    let Value::Object(fields) = value else { return Err("it is not an object".to_owned()) };
    let text = |name: &str| match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("`{name}` is not a string")),
        None => Err(format!("it has no `{name}`")),
    };
    // As an ordinary message, it would teach the model what its author has left out.
    if fields.get("weight").is_some_and(|weight| weight.as_f64() != Some(1.0)) {
        return Err("a `weight` other than 1 is not supported".to_owned());
    }
    Ok(Message::new(text("role")?.parse()?, text("content")?.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{assert_says, folder};
    use super::super::tests::{contents, documents, sources_of};
    use super::*;

    const CHAT: &str =
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;

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
        let both = CHAT.replace("{\"messages\"", "{\"text\":\"x\",\"messages\"");
        for (content, expected) in [
            (format!("\u{feff}\n{CHAT}\n"), true),
            (format!("oh\n{CHAT}"), true),
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

    fn messages(text: &str) -> Result<Vec<Message>, String> {
        conversation(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_conversation_ends_with_the_assistant() {
        let text = r#"{"id":1,"messages":[
            {"role":"system","content":""},{"role":"user","content":"a","name":"A"},
            {"role":"assistant","content":"b","weight":1},{"role":"user","content":"c"}]}"#;
        let expected = [(Role::System, ""), (Role::User, "a"), (Role::Assistant, "b")];
        let expected = expected.map(|(role, content)| Message::new(role, content));
        assert_eq!(messages(text).unwrap(), expected);
    }

    #[test]
    fn each_problem_of_a_conversation_is_named() {
        assert!(messages(CHAT).is_ok());
        for (from, to, expected) in [
            ("messages", "text", "no field \"messages\"; the line has text"),
            ("assistant", "tool", "message 2: unknown role \"tool\", expected system, user or"),
            ("assistant", "user", "no assistant message"),
            ("\"b\"", "null", "message 2: `content` is not a string"),
            ("\"b\"", "\"b\",\"weight\":0", "message 2: a `weight` other than 1"),
            ("\"role\":\"user\",", "", "message 1: it has no `role`"),
            ("{\"role\":\"user\",\"content\":\"a\"}", "3", "message 1: it is not an object"),
        ] {
            let bad = CHAT.replace(from, to);
            assert_ne!(bad, CHAT, "{from}");
            assert_says(messages(&bad).unwrap_err(), expected);
        }
        assert_eq!(messages(r#"{"messages":{}}"#).unwrap_err(), "`messages` is not a list");
        assert!(messages(r#"{"messages":[]}"#).unwrap_err().contains("no assistant message"));
    }
}
