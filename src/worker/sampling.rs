//! Generates and scores text with a model, and reports it as it grows.

use std::time::Duration;

use web_time::Instant;

use crate::data::Tokenizer;
use crate::eval::{Conversation, ScoredStream, score_text};
use crate::gpu::OpenDevice;
use crate::model::{Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::protocol::{Failure, Reply, SampleInput, SampleRequest};
use crate::runs::ModelSource;

/// The time between two replies.
const INTERVAL: Duration = Duration::from_millis(100);

/// Generates or scores the text of a request on the device that `open` returns. It ends early once
/// `is_stopped` returns true.
pub(super) async fn sample(
    request: &SampleRequest,
    open: impl AsyncFnOnce() -> Result<OpenDevice, Failure>,
    is_stopped: &dyn Fn() -> bool,
    reply: &dyn Fn(Reply),
) -> Result<(), Failure> {
    let source = ModelSource::open(&request.path)?;
    let &SampleRequest { tokens, temperature, top_k, seed, .. } = request;
    let options = SampleOptions { temperature, top_k: top_k as usize, seed };
    let mut text = String::new();
    match &request.input {
        SampleInput::Prompt(prompt) => {
            let (tokenizer, ids) = encode(&source, prompt)?;
            let (model, mode) = load(&source, &open().await?)?;
            let mut sampler = Sampler::new(&model, &ids, options, mode)
                .drawing_from(tokenizer.vocab_size() as usize);
            let mut replied = Instant::now();
            let mut stream = ScoredStream::new(tokenizer);
            let mut scored = Vec::new();
            for count in 0.. {
                let done = count == tokens || is_stopped();
                if done || replied.elapsed() >= INTERVAL {
                    replied = Instant::now();
                    let prompt = prompt.clone();
                    let text = text.clone();
                    let tokens = std::mem::take(&mut scored);
                    reply(Reply::Sampled { prompt, text, done, tokens });
                }
                if done {
                    break;
                }
                let token = stream.draw(&mut sampler, request.probabilities).await;
                text += &token.text;
                if request.probabilities {
                    scored.push(token);
                }
            }
        }
        SampleInput::Text(text) => {
            let (tokenizer, ids) = encode(&source, text)?;
            let (model, mode) = load(&source, &open().await?)?;
            let mut take = |tokens| {
                reply(Reply::Scored { tokens, done: false });
                is_stopped()
            };
            let window = source.window();
            score_text(&model, tokenizer, &ids, window, mode, &mut take).await;
            reply(Reply::Scored { tokens: Vec::new(), done: true });
        }
        SampleInput::Conversation(messages) => {
            let tokenizer = source.tokenizer.as_ref();
            let architecture = &source.architecture;
            let mut conversation = Conversation::new(&source.name, tokenizer, architecture)?;
            let last = conversation.load(messages)?;
            let prompt = conversation.ask(last, tokens as usize)?;
            let (model, mode) = load(&source, &open().await?)?;
            let mut answer = conversation.answer(&prompt, &model, options, mode);
            let mut replied = Instant::now();
            while !is_stopped()
                && let Some(piece) = answer.next().await
            {
                text += &piece;
                if replied.elapsed() >= INTERVAL {
                    replied = Instant::now();
                    reply(Reply::Answered { text: text.clone(), forgotten: 0, done: false });
                }
            }
            reply(Reply::Answered { text, forgotten: prompt.forgotten, done: true });
        }
    }
    Ok(())
}

fn load(source: &ModelSource, device: &OpenDevice) -> Result<(Gpt, OpsMode), Failure> {
    Ok((source.model(&device.device)?, OpsMode::AUTO.on(device.info.kind)))
}

/// Returns the tokenizer of a model, and the tokens of a prompt.
fn encode<'a>(source: &'a ModelSource, prompt: &str) -> Result<(&'a Tokenizer, Vec<u32>), Failure> {
    let tokenizer = source.tokenizer.as_ref().ok_or_else(|| source.no_tokenizer())?;
    tokenizer.check_text_rows(source.architecture.vocab_size)?;
    let ids = tokenizer.encode_prompt(prompt)?;
    if ids.is_empty() {
        return Err(Failure::new("the text is empty", "type at least one character"));
    }
    Ok((tokenizer, ids))
}
