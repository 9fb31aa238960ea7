//! Objects of JSON files and rows of tables: a document in one of their fields, or a conversation.

use std::io::{BufRead, Read};

use serde_json::{Map, Value};

use super::input::Input;
use super::records::{Records, object};
use super::sniff::Layout;
use super::{BadLines, DataError, DocumentPart, Sink, Stop};
use crate::data::chat::refusal;
use crate::data::error::FIX_LINE;
use crate::data::{ChatTemplate, Message, Role};

const OTHER_FIELD: &str = "choose the field with the text with --text-field, or leave such lines out with \
                           --skip-bad-lines";

/// Objects that are read to find out what a file has.
const PEEKED: u64 = 100;

/// The content of the objects in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A text in the field that was asked for.
    Texts,
    Conversations(Dialect),
    /// None of these.
    Other,
}

/// The forms in which conversations are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"messages": [{"role": .., "content": ..}]}`.
    Messages,
    /// `{"conversations": [{"from": "human", "value": ..}]}`.
    ShareGpt,
    /// `{"instruction": .., "input": .., "output": ..}`.
    Alpaca,
    /// `{"prompt": .., "completion": ..}`.
    Prompts,
}

impl Dialect {
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::ShareGpt => "conversations of ShareGPT",
            Self::Alpaca => "instructions of Alpaca",
            Self::Prompts => "prompts and completions",
        }
    }

    fn of(object: &Map<String, Value>) -> Option<Self> {
        let has = |name: &str| object.contains_key(name);
        if has("messages") {
            Some(Self::Messages)
        } else if has("conversations") {
            Some(Self::ShareGpt)
        } else if has("instruction") && has("output") {
            Some(Self::Alpaca)
        } else if has("prompt") && has("completion") {
            Some(Self::Prompts)
        } else {
            None
        }
    }
}

/// Returns what the rows of a table with these columns are: documents (`Some(None)`), or conversations whose parts
/// are texts.
pub(super) fn shape_of_columns(columns: &[String], field: &str) -> Option<Option<Dialect>> {
    if columns.iter().any(|name| name == field) {
        return Some(None);
    }
    let row = columns.iter().map(|name| (name.clone(), Value::Null)).collect();
    Dialect::of(&row)
        .filter(|dialect| [Dialect::Alpaca, Dialect::Prompts].contains(dialect))
        .map(Some)
}

/// Returns what the first object of a file is; `None` if it has none. With `is_lines` the file is known to have
/// objects, and the first lines may be bad ones. Else it may be a program, or its settings: then the first object
/// must be a text or a conversation, or be followed by another.
pub(super) fn shape(
    input: &mut Input<'_>,
    layout: Layout,
    field: &str,
    is_lines: bool,
) -> Result<Option<Shape>, DataError> {
    let mut records = Records::new(input, layout);
    let mut has_other = false;
    while records.number < PEEKED && records.next()? {
        let text = str::from_utf8(&records.bytes).unwrap_or_default();
        let object = match object(text) {
            Ok(Some(object)) => object,
            Err(_) if !is_lines => return Ok(None),
            _ => continue,
        };
        if has_other {
            return Ok(Some(Shape::Other));
        }
        let text = object.get(field);
        let is_text = is_lines || text.is_some_and(|text| text.is_string() || text.is_null());
        match Dialect::of(&object) {
            _ if text.is_some() && is_text => return Ok(Some(Shape::Texts)),
            Some(dialect) if is_lines || conversation(&object).is_ok() => {
                return Ok(Some(Shape::Conversations(dialect)));
            }
            _ if is_lines => return Ok(Some(Shape::Other)),
            _ => has_other = true,
        }
    }
    Ok(None)
}

/// Reads the documents in `field`, or else conversations that `template` accepts, into `sink`. Leaves out blank
/// lines and empty documents, and counts those that are null.
pub(super) fn read(
    input: &mut Input<'_>,
    layout: Layout,
    field: Option<&str>,
    template: Option<&ChatTemplate>,
    bad: &mut BadLines,
    sink: &mut Sink<'_>,
) -> Result<(), Stop> {
    let hint = if field.is_some() { OTHER_FIELD } else { FIX_LINE };
    let mut records = Records::new(input, layout);
    while records.next()? {
        let content = records.object().and_then(|object| {
            content(object, field)
                .and_then(|content| accepted(content, template))
                .map_err(|reason| records.refuse(&reason, hint))
        });
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                bad.skip(error)?;
                continue;
            }
        };
        let bytes_read = records.input.bytes_read();
        match content {
            Content::Null => bad.nulls += 1,
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
    Null,
    Conversation(Vec<Message>),
}

fn accepted(content: Content, template: Option<&ChatTemplate>) -> Result<Content, String> {
    if let (Content::Conversation(messages), Some(template)) = (&content, template) {
        template.spans(messages).map_err(|reason| refusal(&reason))?;
    }
    Ok(content)
}

/// Returns the content of an object, nothing for a blank line. The error is a clause about the problem.
fn content(object: Option<Map<String, Value>>, field: Option<&str>) -> Result<Content, String> {
    let Some(mut object) = object else {
        return Ok(Content::Document(String::new()));
    };
    let Some(field) = field else { return conversation(&object).map(Content::Conversation) };
    match object.remove(field) {
        Some(Value::String(document)) => Ok(Content::Document(document)),
        Some(Value::Null) => Ok(Content::Null),
        Some(_) => Err(format!("field {field:?} is not a string")),
        None => Err(no_field(field, &object)),
    }
}

/// Returns the clause about an object without the field `name`.
fn no_field(name: &str, object: &Map<String, Value>) -> String {
    let names: Vec<_> = object.keys().map(String::as_str).collect();
    let names = if names.is_empty() { "no fields".to_owned() } else { names.join(", ") };
    format!("no field {name:?}; it has {names}")
}

/// Returns the messages of a conversation in any [`Dialect`]. Those after the last one of the assistant are left
/// out: nothing is learnt from them. The error is a clause about the problem.
fn conversation(object: &Map<String, Value>) -> Result<Vec<Message>, String> {
    let dialect = Dialect::of(object).ok_or_else(|| no_field("messages", object))?;
    let mut messages = match dialect {
        Dialect::Messages => list(object, "messages")?,
        Dialect::ShareGpt => list(object, "conversations")?,
        Dialect::Alpaca => alpaca(object)?,
        Dialect::Prompts => {
            let prompt = side(object, "prompt", Role::User)?;
            [prompt, side(object, "completion", Role::Assistant)?].concat()
        }
    };
    let last = messages.iter().rposition(|message| message.role == Role::Assistant);
    let last = last.ok_or("no assistant message for a model to learn from")?;
    messages.truncate(last + 1);
    Ok(messages)
}

fn list(object: &Map<String, Value>, name: &str) -> Result<Vec<Message>, String> {
    let Some(Value::Array(messages)) = object.get(name) else {
        return Err(format!("`{name}` is not a list"));
    };
    let parsed = messages.iter().zip(1..).map(|(value, number): (_, u32)| {
        message(value).map_err(|reason| format!("message {number}: {reason}"))
    });
    parsed.collect()
}

/// Returns one side of a pair: a text, or the messages of TRL's conversational form.
fn side(object: &Map<String, Value>, name: &str, role: Role) -> Result<Vec<Message>, String> {
    match object.get(name) {
        Some(Value::Array(_)) => list(object, name),
        _ => Ok(vec![Message::new(role, text(object, name)?)]),
    }
}

/// Returns an instruction, with its input below it, and the answer.
fn alpaca(object: &Map<String, Value>) -> Result<Vec<Message>, String> {
    let optional = |name: &str| match object.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(_) => text(object, name),
    };
    let instruction = text(object, "instruction")?;
    let question = match optional("input")? {
        "" => instruction.to_owned(),
        input => format!("{instruction}\n\n{input}"),
    };
    let system = optional("system")?;
    let system = (!system.is_empty()).then(|| Message::new(Role::System, system));
    let pair = [
        Message::new(Role::User, &question),
        Message::new(Role::Assistant, text(object, "output")?),
    ];
    Ok(system.into_iter().chain(pair).collect())
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match fields.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("`{name}` is not a string")),
        None => Err(format!("it has no `{name}`")),
    }
}

/// Names of roles in other programs' files.
const ROLES: [(&str, Role); 5] = [
    ("human", Role::User),
    ("gpt", Role::Assistant),
    ("chatgpt", Role::Assistant),
    ("model", Role::Assistant),
    ("bot", Role::Assistant),
];

fn message(value: &Value) -> Result<Message, String> {
    let Value::Object(fields) = value else { return Err("it is not an object".to_owned()) };
    // Taken for an ordinary message, a model would learn what its author has left out.
    if fields.get("weight").is_some_and(|weight| weight.as_f64() != Some(1.0)) {
        return Err("a `weight` other than 1 is not supported".to_owned());
    }
    let is_share_gpt = fields.contains_key("from") && !fields.contains_key("role");
    let [role, content] = if is_share_gpt { ["from", "value"] } else { ["role", "content"] };
    let role = text(fields, role)?;
    let known = ROLES.iter().find(|(name, _)| *name == role);
    let role = known.map_or_else(|| role.parse(), |(_, role)| Ok(*role))?;
    match fields.get(content) {
        Some(Value::Array(parts)) => Ok(Message::new(role, &parts_of(parts)?)),
        _ => Ok(Message::new(role, text(fields, content)?)),
    }
}

/// Joins the parts of a message, which may be pictures elsewhere.
fn parts_of(parts: &[Value]) -> Result<String, String> {
    let part = |(part, number): (&Value, u32)| match (&part["type"], &part["text"]) {
        (Value::String(kind), Value::String(text)) if kind == "text" => Ok(text.clone()),
        (kind, _) => Err(format!("part {number} is {kind}; only \"text\" is supported")),
    };
    parts.iter().zip(1..).map(part).collect()
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
            (b"\n{\"body\":\"a\"}", "a.jsonl:2: no field \"text\"; it has body"),
            (b"[1]", "a.jsonl:1: not a JSON object"),
            (b"{\"text\":\"a\"}\n{\"text\":\"\xff\"}", "a.jsonl: not UTF-8 at byte 22"),
        ] {
            assert_says(read(content, "text").unwrap_err(), expected);
        }
    }

    #[test]
    fn bad_lines_are_skipped_by_choice() {
        let content =
            b"{\"text\":\"a\"}\n{\"text\":\n\xff\n{\"text\":\"b\"}\n{\"text\":1}\n{\"text\":null}";
        let folder = folder(&[("a.jsonl", content)]);
        let sources = sources_of(folder.path().join("a.jsonl"), true);
        // Each pass counts them again.
        for _ in 0..2 {
            let (texts, _, bad) = contents(&sources).unwrap();
            assert_eq!((texts, bad.count), (vec!["a".to_owned(), "b".to_owned()], 3));
            assert_eq!(bad.nulls, 1);
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

    /// Each of the forms in which the same conversation is published.
    #[test]
    fn conversations_of_every_dialect_are_read() {
        let pair = [Message::new(Role::User, "a"), Message::new(Role::Assistant, "b")];
        for text in [
            CHAT,
            r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},
                {"role":"assistant","content":"b"}]}"#,
            r#"{"instruction":"a","input":"","output":"b"}"#,
            r#"{"prompt":"a","completion":"b"}"#,
            r#"{"prompt":[{"role":"user","content":"a"}],
                "completion":[{"role":"assistant","content":"b"}]}"#,
        ] {
            assert_eq!(messages(text).unwrap(), pair, "{text}");
        }
        let alpaca = r#"{"instruction":"a","input":"x","output":"b","system":"s"}"#;
        let expected = [
            Message::new(Role::System, "s"),
            Message::new(Role::User, "a\n\nx"),
            Message::new(Role::Assistant, "b"),
        ];
        assert_eq!(messages(alpaca).unwrap(), expected);
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
            ("messages", "text", "no field \"messages\"; it has text"),
            ("assistant", "tool", "message 2: unknown role \"tool\", expected system, user or"),
            ("assistant", "user", "no assistant message"),
            ("\"b\"", "null", "message 2: `content` is not a string"),
            ("\"b\"", "\"b\",\"weight\":0", "message 2: a `weight` other than 1"),
            ("\"role\":\"user\",", "", "message 1: it has no `role`"),
            ("{\"role\":\"user\",\"content\":\"a\"}", "3", "message 1: it is not an object"),
            ("\"b\"", "[{\"type\":\"image_url\"}]", "message 2: part 1 is \"image_url\"; only"),
        ] {
            let bad = CHAT.replace(from, to);
            assert_ne!(bad, CHAT, "{from}");
            assert_says(messages(&bad).unwrap_err(), expected);
        }
        assert_eq!(messages(r#"{"messages":{}}"#).unwrap_err(), "`messages` is not a list");
        assert!(messages(r#"{"messages":[]}"#).unwrap_err().contains("no assistant message"));
    }
}
