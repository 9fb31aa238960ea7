//! `wgpt sample`: prints text while it is generated, for people and for programs.

use std::borrow::Cow;
use std::io::{IsTerminal, Read, StdoutLock, Write};
use std::mem::take;
use std::path::Path;

use serde::Serialize;
use serde_json::json;

use super::activity::Activity;
use super::args::{Global, SampleArgs, SamplingArgs};
use super::find_model::{find_model, find_tokenizer, load_model};
use super::typed_lines::TypedLines;
use crate::data::Tokenizer;
use crate::eval::ScoredStream;
use crate::model::{Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::protocol::{Failure, ScoredToken};
use crate::text::escape_terminal;

pub(super) fn run(args: SampleArgs, global: &Global) -> Result<(), Failure> {
    let options = options(&args.sampling)?;
    let resumes = args.init_from.as_deref() == Some(Path::new("resume"));
    let named = args.init_from.filter(|_| !resumes);
    let source = find_model(args.model.or(named).or(args.out_dir).as_deref(), global.quiet)?;
    let tokenizer = find_tokenizer(&source, args.data.as_deref())?;
    let start = args.start.as_deref().map(|start| text_of(start, args.interactive)).transpose()?;
    let has_start = start.is_some();
    let prompt =
        EncodedPrompt::new(start.unwrap_or_else(|| tokenizer.default_prompt()), &tokenizer)?;
    let (model, mode) = load_model(&source, global)?;
    let writer = TextWriter::new(args.json, global.quiet);
    let tokens = args.sampling.max_new_tokens;
    let mut generator = Generator { model, mode, tokenizer, options, tokens, writer };
    if args.interactive {
        return converse(&mut generator, prompt, has_start);
    }
    if args.sampling.seed.is_none() && options.temperature > 0.0 && !global.quiet {
        message!("seed: {}", options.seed);
    }
    for index in 0..args.num_samples {
        if index > 0 {
            generator.write_text("---------------\n")?;
        }
        generator.generate(&prompt, &|| false)?;
        generator.write_text("\n")?;
    }
    Ok(())
}

/// Returns the options of the draws, with a new seed if there is none. The temperature must be 0 or positive.
pub(super) fn options(args: &SamplingArgs) -> Result<SampleOptions, Failure> {
    let &SamplingArgs { temperature, top_k, seed, .. } = args;
    if !temperature.is_finite() || temperature < 0.0 {
        let hint = "--temperature takes 0 or a positive number, like 0.8";
        return Err(Failure::usage(format!("invalid temperature {temperature}"), hint));
    }
    let seed = seed.unwrap_or_else(|| rand::random::<u32>().into());
    Ok(SampleOptions { temperature, top_k, seed })
}

/// Returns the text of a flag: the text itself, or the content of a file or of stdin.
pub(super) fn text_of(start: &str, interactive: bool) -> Result<String, Failure> {
    let (name, bytes) = match (start, start.strip_prefix("FILE:")) {
        ("-", _) if interactive => {
            let text = "--start - and --interactive both read stdin";
            return Err(Failure::usage(text, "leave out one of them"));
        }
        ("-", _) => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map_err(Failure::file("stdin"))?;
            ("stdin", bytes)
        }
        (_, Some(path)) => (path, std::fs::read(path).map_err(Failure::file(path))?),
        (text, None) => return Ok(text.to_string()),
    };
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("the text in {name} is not UTF-8"), "save it as UTF-8")
    })?;
    Ok(if start == "-" { without_line_break(&text).to_string() } else { text })
}

/// Drops one line break at the end: `echo` adds it.
pub(super) fn without_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

/// Generates text for each line of stdin, until it ends, and first for `prompt` if `is_next`. An empty line
/// repeats the last prompt, with other draws.
fn converse(
    generator: &mut Generator,
    mut prompt: EncodedPrompt,
    mut is_next: bool,
) -> Result<(), Failure> {
    let mut lines = TypedLines::new(std::io::stdin().is_terminal() && !generator.writer.json)?;
    loop {
        if !take(&mut is_next) {
            let Some(line) = lines.next_line()? else { return Ok(()) };
            match prompt_of(&line, &generator.tokenizer) {
                Ok(typed) => prompt = typed.unwrap_or(prompt),
                Err(error) => {
                    if generator.writer.json {
                        let Failure { text, hint, .. } = &error;
                        generator
                            .writer
                            .line(&json!({ "error": { "text": text, "hint": hint } }))?;
                    } else {
                        super::print_failure(&error, false);
                    }
                    continue;
                }
            }
        }
        lines.interrupts.begin();
        generator.generate(&prompt, &|| lines.interrupts.is_stopped())?;
        generator.write_text("\n\n")?;
    }
}

/// Reads a line as a prompt; `None` if it is empty.
fn prompt_of(line: &[u8], tokenizer: &Tokenizer) -> Result<Option<EncodedPrompt>, Failure> {
    let text = std::str::from_utf8(line)
        .map_err(|_| Failure::usage("the line is not UTF-8", "give a prompt in UTF-8"))?;
    match without_line_break(text) {
        "" => Ok(None),
        text => EncodedPrompt::new(text.to_string(), tokenizer).map(Some),
    }
}

/// A prompt and its tokens, at least one.
struct EncodedPrompt {
    text: String,
    ids: Vec<u32>,
}

impl EncodedPrompt {
    fn new(text: String, tokenizer: &Tokenizer) -> Result<Self, Failure> {
        let ids = tokenizer.encode_prompt(&text).map_err(|error| {
            let text = format!("the prompt cannot be tokenized: {error}");
            Failure::usage(text, "give another prompt")
        })?;
        if ids.is_empty() {
            return Err(Failure::usage("empty prompt", "give --start at least one character"));
        }
        Ok(Self { text, ids })
    }
}

/// Generates text, and writes it as it grows.
struct Generator {
    model: Gpt,
    mode: OpsMode,
    tokenizer: Tokenizer,
    options: SampleOptions,
    tokens: u32,
    writer: TextWriter,
}

impl Generator {
    /// Continues `prompt` until the text is complete or `is_stopped` returns true.
    fn generate(
        &mut self,
        prompt: &EncodedPrompt,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), Failure> {
        let Self { model, mode, tokenizer, options, tokens, writer } = self;
        let mut sampler = Sampler::new(model, &prompt.ids, *options, *mode)
            .drawing_from(tokenizer.vocab_size() as usize);
        options.seed = options.seed.wrapping_add(1);
        writer.begin();
        let mut stream = ScoredStream::new(tokenizer);
        // For people, the prompt comes with the first token.
        let mut text = if writer.json { String::new() } else { prompt.text.clone() };
        let mut scored = Vec::new();
        let mut count = 0;
        while count < *tokens && !is_stopped() {
            let token = pollster::block_on(stream.draw(&mut sampler, writer.json));
            count += 1;
            text += &token.text;
            if writer.json {
                scored.push(token);
            }
            // The other tokens of a character are in the line of its last one.
            if !text.is_empty() {
                writer.scored_piece(take(&mut text), take(&mut scored))?;
            }
        }
        if !(text.is_empty() && scored.is_empty()) {
            writer.scored_piece(text, scored)?;
        }
        if writer.json { writer.line(&json!({ "done": { "tokens": count } })) } else { Ok(()) }
    }

    /// Writes text for people.
    fn write_text(&mut self, text: &str) -> Result<(), Failure> {
        if self.writer.json { Ok(()) } else { self.writer.write(text) }
    }
}

/// Writes text to stdout as it grows, for people or as JSON lines. A terminal shows control characters; a pipe
/// gets them unchanged.
pub(super) struct TextWriter {
    pub json: bool,
    is_terminal: bool,
    /// A carriage return at the end of the last piece. The next piece may complete the line break.
    held: String,
    out: StdoutLock<'static>,
    activity: Activity,
}

impl TextWriter {
    pub fn new(json: bool, quiet: bool) -> Self {
        let out = std::io::stdout().lock();
        let is_terminal = out.is_terminal();
        let held = String::new();
        Self { json, is_terminal, held, out, activity: Activity::new(quiet) }
    }

    /// Begins a text. Its first token takes the longest, because it compiles the kernels.
    pub fn begin(&mut self) {
        self.activity.show("generating".into());
    }

    /// Writes the next piece.
    pub fn piece(&mut self, piece: &str) -> Result<(), Failure> {
        self.activity.clear();
        match piece {
            "" => Ok(()),
            piece if self.json => self.line(&json!({ "text": piece })),
            piece => self.write(piece),
        }
    }

    /// Writes the next piece, in JSON with its tokens and their probabilities.
    fn scored_piece(&mut self, text: String, tokens: Vec<ScoredToken>) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Piece {
            text: String,
            tokens: Vec<ScoredToken>,
        }
        self.activity.clear();
        if self.json { self.line(&Piece { text, tokens }) } else { self.write(&text) }
    }

    /// Writes a line of JSON. A value from `json!` would have f32 with the digits of an f64.
    pub fn line(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut self.out, value);
        written.map_err(|error| super::output_error(error.into()))?;
        self.write("\n")
    }

    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        let text = if self.is_terminal && !self.json {
            visible(&mut self.held, text).into()
        } else {
            Cow::Borrowed(text)
        };
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(super::output_error)
    }
}

/// Returns a piece of text for a terminal. A carriage return at its end is held until the next piece.
fn visible(held: &mut String, piece: &str) -> String {
    let text = take(held) + piece;
    let shown = text.strip_suffix('\r');
    held.extend(shown.map(|_| '\r'));
    escape_terminal(shown.unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_text_and_line_breaks_only() {
        let mut held = String::new();
        let pieces = ["a\u{1b}[2J\r", "\nb\tc", "\r", "d\u{7}", "\n"];
        let shown: String = pieces.iter().map(|piece| visible(&mut held, piece)).collect();
        assert_eq!(shown, "a\\u001b[2J\r\nb\tc\\rd\\u0007\n");
    }

    #[test]
    fn one_line_break_at_the_end_is_dropped() {
        for (text, want) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", "")] {
            assert_eq!(without_line_break(text), want);
        }
    }

    #[test]
    fn an_empty_line_is_no_prompt() {
        let read = |line: &[u8]| prompt_of(line, &Tokenizer::BYTE);
        assert!(read(b"\r").unwrap().is_none());
        assert_eq!(read("é".as_bytes()).unwrap().unwrap().ids, [0xc3, 0xa9]);
        assert!(read(b"\xff").is_err());
    }
}
