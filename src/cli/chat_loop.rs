//! `wgpt chat`: a conversation with a model, for people and for programs.

use std::io::{BufRead, IsTerminal};

use serde::Deserialize;
use serde_json::json;

use super::args::{ChatArgs, Global};
use super::find_model::{find_model, load_model};
use super::run_list::newest_chat;
use super::sample::{TextWriter, options, without_line_break};
use super::typed_lines::TypedLines;
use crate::data::Message;
use crate::eval::Conversation;
use crate::model::{Gpt, SampleOptions};
use crate::ops::OpsMode;
use crate::protocol::{Exit, Failure};
use crate::runs::Introduction;
use crate::text::excerpt;
use crate::worker::signals::Interrupts;

const COMMANDS: &str = "\
/system TEXT  set the system prompt; without TEXT remove it
/reset        forget the conversation; the system prompt stays
/help         this list
/exit         end the chat, like Ctrl-D (on Windows Ctrl-Z and Enter)
Ctrl-C stops an answer. To begin a message with /, type // instead.";

pub(super) fn run(args: ChatArgs, global: &Global) -> Result<(), Failure> {
    let options = options(&args.sampling)?;
    let path = args.model.map_or_else(|| newest_chat(global.quiet), Ok)?;
    let source = find_model(Some(&path), global.quiet)?;
    let mut conversation = source.conversation()?;
    conversation.thinks = !args.no_thinking;
    conversation.set_system(&args.system)?;
    let context = source.architecture.block_size;
    let (model, mode) = load_model(&source, global)?;
    let most = args.sampling.max_new_tokens as usize;
    let writer = TextWriter::new(args.json, global.quiet);
    let chat = Chat { model, mode, options, most, conversation, writer };
    if args.json {
        return chat.serve();
    }
    if !global.quiet {
        introduce(&Introduction::of(&path));
    }
    chat.talk(context, global.quiet)
}

/// Prints what the model knows, with a line for each sentence, and messages to try.
fn introduce(Introduction { text, examples }: &Introduction) {
    message!("{}", text.replace(". ", ".\n"));
    if !examples.is_empty() {
        message!("Try: {}", examples.join("\n     "));
    }
}

#[derive(Debug, PartialEq)]
enum TypedLine<'a> {
    Message(&'a str),
    System(&'a str),
    Reset,
    Help,
    Exit,
}

/// Reads a line; `None` if it is empty.
fn parse(line: &[u8]) -> Result<Option<TypedLine<'_>>, Failure> {
    let text = str::from_utf8(line)
        .map_err(|_| Failure::usage("the line is not UTF-8", "write messages in UTF-8"))?;
    let text = without_line_break(text);
    let Some(command) = text.strip_prefix('/').filter(|rest| !rest.starts_with('/')) else {
        let message = text.strip_prefix('/').unwrap_or(text);
        return Ok((!message.trim().is_empty()).then_some(TypedLine::Message(message)));
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    Ok(Some(match (name, rest.trim()) {
        ("system", text) => TypedLine::System(text),
        ("reset", "") => TypedLine::Reset,
        ("help", "") => TypedLine::Help,
        ("exit" | "quit", "") => TypedLine::Exit,
        _ => {
            let hint = "/help lists the commands; to begin a message with /, type // instead";
            return Err(Failure::usage(format!("unknown command `{text}`"), hint));
        }
    }))
}

#[derive(Deserialize)]
struct ConversationLine {
    messages: Vec<Message>,
}

struct End {
    tokens: usize,
    forgotten: usize,
    is_cut: bool,
}

impl End {
    /// Prints notes about the answer that its text does not show.
    fn tell(&self, context: usize, was_told: &mut bool) {
        if self.is_cut {
            message!("note: the answer was cut after {} tokens", self.tokens);
        }
        if self.forgotten > 0 && !std::mem::replace(was_told, true) {
            message!(
                "note: the conversation no longer fits the model's context of {context} tokens: its \
                 oldest messages are forgotten"
            );
        }
    }
}

struct Chat {
    model: Gpt,
    mode: OpsMode,
    options: SampleOptions,
    most: usize,
    conversation: Conversation,
    writer: TextWriter,
}

impl Chat {
    /// Answers each line of stdin, until it ends.
    fn talk(mut self, context: usize, quiet: bool) -> Result<(), Failure> {
        let is_terminal = std::io::stdin().is_terminal();
        let mut lines = TypedLines::new(is_terminal)?;
        if is_terminal && !quiet {
            message!("/help lists the commands");
        }
        let mut was_told = false;
        while let Some(line) = lines.next_line()? {
            match self.obey(&line, &lines.interrupts, context, &mut was_told) {
                Ok(true) => {}
                Ok(false) => break,
                // A message that is refused does not end the conversation.
                Err(error) if error.exit == Exit::Usage => super::print_failure(&error, false),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles a line; returns false if it ends the conversation.
    fn obey(
        &mut self,
        line: &[u8],
        interrupts: &Interrupts,
        context: usize,
        was_told: &mut bool,
    ) -> Result<bool, Failure> {
        match parse(line)? {
            None => {}
            Some(TypedLine::Exit) => return Ok(false),
            Some(TypedLine::Help) => message!("{COMMANDS}"),
            Some(TypedLine::Reset) => {
                self.conversation.clear();
                *was_told = false;
            }
            Some(TypedLine::System(text)) => self.conversation.set_system(text)?,
            Some(TypedLine::Message(text)) => {
                interrupts.begin();
                let end = self.answer(text, &|| interrupts.is_stopped())?;
                self.writer.write("\n")?;
                end.tell(context, was_told);
            }
        }
        Ok(true)
    }

    /// Answers each conversation on stdin, until it ends. A conversation that cannot be answered gets
    /// an `error`.
    fn serve(mut self) -> Result<(), Failure> {
        for line in std::io::stdin().lock().split(b'\n') {
            let line = line.map_err(Failure::file("stdin"))?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let done = match self.reply_in_json(&line) {
                Ok(End { tokens, forgotten, is_cut }) => json!({
                    "done": { "tokens": tokens, "forgotten": forgotten, "cut": is_cut }
                }),
                Err(Failure { text, hint, exit: Exit::Usage, .. }) => {
                    json!({ "error": { "text": text, "hint": hint } })
                }
                Err(error) => return Err(error),
            };
            self.writer.line(&done)?;
        }
        Ok(())
    }

    fn reply_in_json(&mut self, line: &[u8]) -> Result<End, Failure> {
        let ConversationLine { messages } = serde_json::from_slice(line).map_err(|error| {
            let hint = "write {\"messages\":[{\"role\":\"user\",\"content\":\"...\"}]} in one line";
            Failure::usage(format!("the line is not a conversation: {}", excerpt(error)), hint)
        })?;
        let text = self.conversation.load(&messages)?;
        self.answer(text, &|| false)
    }

    /// Writes the answer to a message as it grows, until it ends or `is_stopped` returns true.
    fn answer(&mut self, text: &str, is_stopped: &dyn Fn() -> bool) -> Result<End, Failure> {
        let prompt = self.conversation.ask(text, self.most)?;
        let mut answer = self.conversation.answer(&prompt, &self.model, self.options, self.mode);
        self.options.seed = self.options.seed.wrapping_add(1);
        self.writer.begin();
        while !is_stopped()
            && let Some(piece) = pollster::block_on(answer.next())
        {
            self.writer.piece(&piece)?;
        }
        self.writer.piece("")?;
        let is_cut = answer.is_cut();
        let ids = answer.ids;
        self.conversation.record(&ids);
        Ok(End { tokens: ids.len(), forgotten: prompt.forgotten, is_cut })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let read = |line: &'static str| parse(line.as_bytes()).unwrap();
        assert_eq!(read(" Hello, you! \r"), Some(TypedLine::Message(" Hello, you! ")));
        assert_eq!(read("//etc is a folder"), Some(TypedLine::Message("/etc is a folder")));
        assert_eq!(read("/system Be brief. "), Some(TypedLine::System("Be brief.")));
        assert_eq!(read("/system"), Some(TypedLine::System("")));
        assert_eq!(read("/reset"), Some(TypedLine::Reset));
        assert_eq!(read("/help\r"), Some(TypedLine::Help));
        assert_eq!(read("/exit"), Some(TypedLine::Exit));
        assert_eq!((read(""), read(" \t\r")), (None, None));
        for bad in [&b"/foo"[..], b"/reset now", b"/systems", b"/", b"\xff"] {
            assert!(parse(bad).is_err_and(|error| error.exit == Exit::Usage), "{bad:?}");
        }
    }

    #[test]
    fn unknown_roles_are_named() {
        let line = r#"{"messages":[{"role":"tool","content":"x"}]}"#;
        let error =
            serde_json::from_str::<ConversationLine>(line).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("tool") && error.contains("assistant"), "{error}");
    }
}
