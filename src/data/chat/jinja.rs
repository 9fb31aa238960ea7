//! Chat templates of model folders, in Jinja, rendered as in transformers.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::resume_unwind;
use std::thread;

use chrono::Local;
use fancy_regex::Regex;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::{Message, WrittenTemplate};

const NAME: &str = "chat_template";

/// The most instructions of one rendering, so that an endless template is an error. Qwen3's needs about a
/// hundred for a message. An instruction also pays for 64 bytes, so a rendering takes 256 MB at most.
const FUEL: u64 = 4_000_000;

/// The longest template in bytes; those of large models have 20,000.
const LONGEST: usize = 256 << 10;

/// The stack for compiling a template in bytes: minijinja recurses once for each `-` of `----1`, with up to 400 bytes.
const STACK: usize = 256 << 20;

/// The text after the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Nothing,
    /// The beginning of an answer (`add_generation_prompt`).
    Answer,
    /// The beginning of an answer with an empty thought (`enable_thinking = false`), for models that
    /// think before they answer.
    AnswerWithoutThought,
}

#[derive(Clone, Debug)]
pub struct Jinja {
    pub written: WrittenTemplate,
    environment: Environment<'static>,
}

impl Jinja {
    /// Compiles a template. The error is a clause that says what is wrong.
    pub fn parse(written: WrittenTemplate) -> Result<Self, String> {
        if written.text.len() > LONGEST {
            return Err(format!("it has more than {LONGEST} bytes"));
        }
        let compile = || -> Result<_, String> {
            let mut environment = Environment::new();
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
            environment.set_syntax(syntax.map_err(|error| clause(&error))?);
            environment.set_fuel(Some(FUEL));
            environment.set_unknown_method_callback(method);
            environment.add_function("raise_exception", |message: String| {
                Err::<Value, _>(Error::new(ErrorKind::InvalidOperation, message))
            });
            environment.add_function("strftime_now", strftime_now);
            environment.add_filter("tojson", to_json);
            let plain = without_generation(&written.text);
            environment.add_template_owned(NAME, plain).map_err(|error| clause(&error))?;
            Ok(environment)
        };
        // A browser has no threads.
        let environment = if cfg!(target_arch = "wasm32") {
            compile()
        } else {
            thread::scope(|scope| {
                let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, compile);
                let thread = thread.map_err(|error| format!("it cannot be compiled: {error}"))?;
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            })
        }?;
        Ok(Self { written, environment })
    }

    /// Renders a conversation. The error is a clause that says what is wrong; it may be the template's own
    /// message.
    pub fn render(&self, messages: &[Message], ending: Ending) -> Result<String, String> {
        let message = |Message { role, content }: &Message| {
            Value::from_pairs([("role", role.to_string()), ("content", content.clone())])
        };
        let names = self.written.names.iter();
        let mut context: BTreeMap<&str, Value> =
            names.map(|(name, token)| (name.as_str(), token.as_str().into())).collect();
        context.insert("messages", messages.iter().map(message).collect());
        context.insert("add_generation_prompt", (ending != Ending::Nothing).into());
        if ending == Ending::AnswerWithoutThought {
            context.insert("enable_thinking", false.into());
        }
        // transformers gives them to each template.
        context.insert("tools", ().into());
        context.insert("documents", ().into());
        let template = self.environment.get_template(NAME);
        template
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|error| clause(&error))
    }
}

fn clause(error: &Error) -> String {
    let reason = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {reason}"),
        None => reason,
    }
}

/// Replaces the tags `generation` and `endgeneration`, which mark the assistant's text for transformers
/// and do not change it.
fn without_generation(text: &str) -> String {
    let mut text = text.to_owned();
    for (tag, other) in [("generation", "if true"), ("endgeneration", "endif")] {
        if let Ok(pattern) = Regex::new(&format!(r"(\{{%[-+]?\s*){tag}(\s*[-+]?%\}})")) {
            text = pattern.replace_all(&text, format!("${{1}}{other}${{2}}")).into_owned();
        }
    }
    text
}

/// Calls a method of Python. minijinja counts no fuel for `str.format`, so its widths have four digits at most.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let is_wide = |text: &str| text.split(|c: char| !c.is_ascii_digit()).any(|n| n.len() > 4);
    if name == "format" && value.as_str().is_some_and(is_wide) {
        let reason = "a format of more than 9999 characters";
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    unknown_method_callback(state, value, name, args)
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    match write!(text, "{}", Local::now().format(format)) {
        Ok(()) => Ok(text),
        Err(_) => {
            let reason = format!("{format:?} is not a format of a date");
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        }
    }
}

/// Writes a value as Python's `json.dumps` does: with spaces after commas and colons, and other
/// characters than ASCII unchanged.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let mut json = Vec::new();
    let written = match options.get::<Option<usize>>("indent")? {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)),
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, pretty))
        }
    };
    let failed = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8(json).map_err(|error| failed(error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        is_first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        is_first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::assert_says;
    use super::super::Role;
    use super::*;

    fn render(text: &str) -> Result<String, String> {
        let names = BTreeMap::from([("eos_token".to_owned(), "</s>".to_owned())]);
        let messages = [Message::new(Role::User, " a\u{e9}<"), Message::new(Role::Assistant, "b")];
        let written = WrittenTemplate { text: text.to_owned(), names };
        Jinja::parse(written)?.render(&messages, Ending::Nothing)
    }

    /// The expected texts are those of transformers 5.24.
    #[test]
    fn templates_are_rendered_as_in_python() {
        for (text, expected) in [
            ("{% if true %}\n  {% if true %}\n x\n  {% endif %}\n{% endif %}\n", " x\n"),
            ("{{ messages[0].content.strip() + eos_token }}{{ bos_token }}", "a\u{e9}<</s>"),
            ("{{ messages[::-1][0]['role'].upper() }}", "ASSISTANT"),
            (
                "{{ messages | tojson }}",
                "[{\"role\": \"user\", \"content\": \" a\u{e9}<\"}, {\"role\": \"assistant\", \"content\": \"b\"}]",
            ),
            (
                "{{ messages[1] | tojson(indent=2) }}",
                "{\n  \"role\": \"assistant\",\n  \"content\": \"b\"\n}",
            ),
            (
                "{%- for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ loop.index0 }}{% endfor %}",
                "0",
            ),
            ("{% generation %}x{%- endgeneration -%} y", "xy"),
            (
                "{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "3",
            ),
            ("{% if tools is none and tools is defined and x is not defined %}y{% endif %}", "y"),
            ("{{ '{:>3}'.format(1) }}", "  1"),
            ("{{ strftime_now('%%Y') }}", "%Y"),
        ] {
            assert_eq!(render(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_a_template_refuses_is_said_with_its_line() {
        for (text, expected) in [
            ("\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"),
            ("{% if %}", "line 1: "),
            ("{{ messages[0].content.no_such() }}", "no_such"),
            ("{{ x.y }}", "undefined"),
            ("{{ '{:>100000000000}'.format(1) }}", "a format of more"),
            ("{{ strftime_now('%!') }}", "\"%!\" is not a format of a date"),
        ] {
            assert_says(render(text).unwrap_err(), expected);
        }
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        assert_says(render(endless).unwrap_err(), "fuel");
        // 512 MB.
        let large = "{% set ns = namespace(s='x') %}{% for a in range(29) %}\
                     {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}";
        assert_says(render(large).unwrap_err(), "fuel");
        assert_says(render(&" ".repeat(LONGEST + 1)).unwrap_err(), "more than 262144 bytes");
    }

    /// minijinja bounds the depth of blocks and parentheses only.
    #[test]
    fn deep_templates_are_compiled() {
        let repeated = |begin: &str, part: &str, end: &str| {
            let parts = (LONGEST - begin.len() - end.len()) / part.len();
            [begin, &part.repeat(parts), end].concat()
        };
        for text in [
            repeated("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
            repeated("{{ ", "1+", "1 }}"),
            repeated("{{ ", "-", "1 }}"),
            repeated("{{ ", "not ", "1 }}"),
            repeated("{{ 1", "|abs", " }}"),
            repeated("{{ ", "1 if 1 else ", "1 }}"),
        ] {
            render(&text).unwrap();
        }
    }
}
