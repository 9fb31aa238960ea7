//! A line of a JSON lines file that is a conversation, in the common `messages` form:
//! `{"messages":[{"role":"user","content":"Hello!"},{"role":"assistant","content":"Hi."}]}`.

use serde_json::{Map, Value};

use crate::data::{Message, Role};

pub(super) const MESSAGES: &str = "messages";

/// Returns the messages of a line's object. Those after the last one of the assistant are left out:
/// nothing is learnt from them. The error is a clause about the problem.
pub(super) fn conversation(object: &Map<String, Value>) -> Result<Vec<Message>, String> {
    let messages = match object.get(MESSAGES) {
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err("`messages` is not a list".to_owned()),
        None => return Err(super::jsonl::no_field(MESSAGES, object)),
    };
    let parsed = messages.iter().zip(1..).map(|(value, number): (_, u32)| {
        message(value).map_err(|reason| format!("message {number}: {reason}"))
    });
    let mut messages = parsed.collect::<Result<Vec<_>, _>>()?;
    let last = messages.iter().rposition(|message| message.role == Role::Assistant);
    let last = last.ok_or("no message of the assistant, from which a model could learn")?;
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
    // Taken for an ordinary message, a model would learn what its author has left out.
    if fields.get("weight").is_some_and(|weight| weight.as_f64() != Some(1.0)) {
        return Err("a `weight` other than 1 is not supported".to_owned());
    }
    Ok(Message::new(text("role")?.parse()?, text("content")?.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::assert_says;

    fn read(text: &str) -> Result<Vec<Message>, String> {
        conversation(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_conversation_ends_with_the_assistant() {
        let text = r#"{"id":1,"messages":[
            {"role":"system","content":""},{"role":"user","content":"a","name":"A"},
            {"role":"assistant","content":"b","weight":1},{"role":"user","content":"c"}]}"#;
        let expected = [(Role::System, ""), (Role::User, "a"), (Role::Assistant, "b")];
        let expected = expected.map(|(role, content)| Message::new(role, content));
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn each_problem_is_named() {
        let good =
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        assert!(read(good).is_ok());
        for (from, to, expected) in [
            ("messages", "text", "no field \"messages\"; the line has text"),
            ("assistant", "tool", "message 2: unknown role \"tool\", expected system, user or"),
            ("assistant", "user", "no message of the assistant"),
            ("\"b\"", "null", "message 2: `content` is not a string"),
            ("\"b\"", "\"b\",\"weight\":0", "message 2: a `weight` other than 1"),
            ("\"role\":\"user\",", "", "message 1: it has no `role`"),
            ("{\"role\":\"user\",\"content\":\"a\"}", "3", "message 1: it is not an object"),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            assert_says(read(&bad).unwrap_err(), expected);
        }
        assert_eq!(read(r#"{"messages":{}}"#).unwrap_err(), "`messages` is not a list");
        assert!(read(r#"{"messages":[]}"#).unwrap_err().contains("no message"));
    }
}
