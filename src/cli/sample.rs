//! `wgpt sample`: text as it is generated, for people and for programs.

use std::io::{IsTerminal, Read, StdoutLock, Write};

use serde_json::json;

use super::activity::Activity;
use super::args::{Global, SampleArgs, SamplingArgs};
use super::find_model::{find_model, find_tokenizer, open_device};
use super::typed_lines::TypedLines;
use crate::data::{TextStream, Tokenizer};
use crate::model::{Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::protocol::Failure;

/// The line after each text.
const END: &str = "\n---------------\n";

/// Runs `wgpt sample`.
pub(super) fn run(args: SampleArgs, global: &Global) -> Result<(), Failure> {
    let options = options(&args.sampling)?;
    let source = find_model(args.model.as_deref(), global.quiet)?;
    let tokenizer = find_tokenizer(&source, args.data.as_deref())?;
    let start = start(args.start.as_deref(), args.interactive)?;
    let start = start.or_else(|| (!args.interactive).then(|| tokenizer.default_prompt()));
    let start = start.map(|text| Prompt::new(text, &tokenizer)).transpose()?;
    let device = open_device(global)?;
    let mut activity = Activity::new(global.quiet);
    activity.show("loading the model".into());
    let model = source.model(&device.device)?;
    let mut generator = Generator {
        model: &model,
        tokenizer: &tokenizer,
        mode: global.ops()?.on(device.info.kind),
        options,
        tokens: args.sampling.max_new_tokens,
        json: args.json,
        out: std::io::stdout().lock(),
        activity,
    };
    if args.interactive {
        return converse(&mut generator, start);
    }
    let prompt = start.expect("there is a default");
    for _ in 0..args.num_samples {
        generator.generate(&prompt, &|| false)?;
        generator.write_text(END)?;
    }
    Ok(())
}

/// Returns the options of the draws. The temperature must be 0 or positive.
pub(super) fn options(args: &SamplingArgs) -> Result<SampleOptions, Failure> {
    let &SamplingArgs { temperature, top_k, seed, .. } = args;
    if !temperature.is_finite() || temperature < 0.0 {
        return Err(Failure::usage(
            format!("invalid temperature {temperature}"),
            "--temperature takes 0 or a positive number, like 0.8",
        ));
    }
    Ok(SampleOptions { temperature, top_k, seed })
}

/// Returns the prompt of `--start`: a text, or the content of a file or of stdin.
fn start(start: Option<&str>, interactive: bool) -> Result<Option<String>, Failure> {
    let not_utf_8 = |what: &str| {
        Failure::usage(format!("the prompt in {what} is not UTF-8"), "give a prompt in UTF-8")
    };
    match start {
        Some("-") if interactive => Err(Failure::usage(
            "--start - and --interactive both read stdin",
            "leave out one of them",
        )),
        Some("-") => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map_err(Failure::file("stdin"))?;
            let text = String::from_utf8(bytes).map_err(|_| not_utf_8("stdin"))?;
            Ok(Some(without_line_break(&text).to_string()))
        }
        Some(text) => match text.strip_prefix("FILE:") {
            Some(path) => {
                let bytes = std::fs::read(path).map_err(Failure::file(path))?;
                String::from_utf8(bytes).map(Some).map_err(|_| not_utf_8(path))
            }
            None => Ok(Some(text.to_string())),
        },
        None => Ok(None),
    }
}

/// Drops one line break at the end: `echo` adds it.
pub(super) fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// Generates a text for each line of stdin, until it ends. An empty line repeats the last one, with
/// other draws.
fn converse(generator: &mut Generator<'_>, start: Option<Prompt>) -> Result<(), Failure> {
    let mut lines = TypedLines::new(std::io::stdin().is_terminal() && !generator.json)?;
    let default = || Prompt::new(generator.tokenizer.default_prompt(), generator.tokenizer);
    let (mut last, mut is_next) = match start {
        Some(start) => (start, true),
        None => (default()?, false),
    };
    loop {
        if !std::mem::take(&mut is_next) {
            generator.activity.clear();
            let Some(line) = lines.next_line()? else { return Ok(()) };
            match prompt_of(&line, generator.tokenizer) {
                Ok(prompt) => last = prompt.unwrap_or(last),
                Err(error) => {
                    super::print_error(&error);
                    continue;
                }
            }
        }
        lines.interrupts.begin();
        generator.generate(&last, &|| lines.interrupts.is_stopped())?;
        generator.write_text("\n\n")?;
    }
}

/// Reads a line as a prompt; `None` if it is empty.
fn prompt_of(line: &[u8], tokenizer: &Tokenizer) -> Result<Option<Prompt>, Failure> {
    let text = std::str::from_utf8(line)
        .map_err(|_| Failure::usage("the line is not UTF-8", "give a prompt in UTF-8"))?;
    match without_line_break(text) {
        "" => Ok(None),
        text => Prompt::new(text.to_string(), tokenizer).map(Some),
    }
}

/// A prompt and its tokens, at least one.
struct Prompt {
    text: String,
    ids: Vec<u32>,
}

impl Prompt {
    fn new(text: String, tokenizer: &Tokenizer) -> Result<Self, Failure> {
        let ids = tokenizer.encode_prompt(&text).map_err(|error| {
            Failure::usage(
                format!("the prompt cannot be tokenized: {error}"),
                "give another prompt",
            )
        })?;
        if ids.is_empty() {
            return Err(Failure::usage("empty prompt", "give --start at least one character"));
        }
        Ok(Self { text, ids })
    }
}

/// Generates texts, and writes them as they grow.
struct Generator<'a> {
    model: &'a Gpt,
    tokenizer: &'a Tokenizer,
    mode: OpsMode,
    /// The options of the next text.
    options: SampleOptions,
    /// Tokens of a text.
    tokens: u32,
    /// True to write JSON lines.
    json: bool,
    out: StdoutLock<'static>,
    activity: Activity,
}

impl Generator<'_> {
    /// Continues `prompt`, until the text has all its tokens or `is_stopped` returns true.
    fn generate(&mut self, prompt: &Prompt, is_stopped: &dyn Fn() -> bool) -> Result<(), Failure> {
        let mut sampler = Sampler::new(self.model, &prompt.ids, self.options, self.mode);
        self.options.seed = self.options.seed.wrapping_add(1);
        let mut pieces = TextStream::default();
        let mut prompt = Some(&prompt.text);
        let mut count = 0;
        // The first token takes the longest: the kernels are compiled.
        self.activity.show("generating".into());
        while count < self.tokens && !is_stopped() {
            let token = pollster::block_on(sampler.next_token());
            let piece = pieces.push(self.tokenizer, token);
            count += 1;
            self.activity.clear();
            if let Some(prompt) = prompt.take() {
                self.write_text(prompt)?;
            }
            if self.json && !piece.is_empty() {
                self.write(&format!("{}\n", json!({ "text": piece })))?;
            }
            self.write_text(&piece)?;
        }
        self.activity.clear();
        if let Some(prompt) = prompt {
            self.write_text(prompt)?;
        }
        if self.json {
            self.write(&format!("{}\n", json!({ "done": { "tokens": count } })))?;
        }
        Ok(())
    }

    /// Writes text for people.
    fn write_text(&mut self, text: &str) -> Result<(), Failure> {
        if self.json { Ok(()) } else { self.write(text) }
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(super::output_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_is_dropped() {
        for (text, want) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", "")] {
            assert_eq!(without_line_break(text), want);
        }
    }

    #[test]
    fn an_empty_line_is_no_prompt() {
        let read = |line: &[u8]| prompt_of(line, &Tokenizer::Byte);
        assert!(read(b"\r").unwrap().is_none());
        assert_eq!(read("é".as_bytes()).unwrap().unwrap().ids, [0xc3, 0xa9]);
        assert!(read(b"\xff").is_err());
    }
}
