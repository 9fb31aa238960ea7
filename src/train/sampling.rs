//! The samples of a run.

use super::journal::Journal;
use super::training::Training;
use crate::config::Config;
use crate::data::{DataError, Dataset, Ending, Message, Role, Tokenizer};
use crate::eval::ScoredStream;
use crate::model::{SampleOptions, Sampler};
use crate::protocol::{Event, Sample, Task};

/// The default of `sample_prompt`.
const DEFAULT_PROMPT: &str = "\n";

/// Generates a sample from `sample_prompt`, always with the same seed, so that samples differ only as
/// the weights do.
pub(super) async fn sample_for_comparison(
    training: &Training,
    journal: &mut Journal<'_>,
    wants_stop: impl FnMut() -> bool,
) {
    let config = &training.inputs.config;
    if config.sample_tokens > 0 {
        let Config { sample_prompt, seed, .. } = config;
        sample(training, journal, sample_prompt, *seed, false, wants_stop).await;
    }
}

/// Generates a sample on rank 0, with the probabilities of its tokens if requested, until the run is to stop.
pub(super) async fn sample(
    training: &Training,
    journal: &mut Journal<'_>,
    prompt: &str,
    seed: u64,
    probabilities: bool,
    mut wants_stop: impl FnMut() -> bool,
) {
    let Training { inputs, ranks, learner, position, .. } = training;
    let Some(tokenizer) = inputs.dataset.tokenizer.as_ref().filter(|_| ranks.group.is_first())
    else {
        return;
    };
    let (prompt, ids) = match sample_start(&inputs.dataset, prompt, tokenizer) {
        Ok((_, ids)) if ids.iter().any(|id| *id >= inputs.dataset.vocab_size) => {
            return journal.warn("no sample: the model lacks a token of the prompt");
        }
        Ok((prompt, ids)) if !ids.is_empty() => (prompt, ids),
        Ok(_) => return journal.warn("no sample: the prompt is empty"),
        Err(error) => return journal.warn(format!("no sample: {error}; {}", error.hint())),
    };
    let options = SampleOptions { temperature: 0.8, top_k: 200, seed };
    let mut sampler = Sampler::new(&learner.model, &ids, options, inputs.mode)
        .drawing_from(tokenizer.vocab_size() as usize);
    let count = inputs.config.sample_tokens;
    let mut reporter = journal.report(Task::Sample, count.into());
    let mut tokens = Vec::new();
    let mut scored = Vec::new();
    let mut stream = ScoredStream::new(tokenizer);
    for done in 0..count {
        reporter.report(done.into());
        if wants_stop() {
            return;
        }
        let odds = if probabilities {
            Some(sampler.next_with_odds(tokenizer.vocab_size() as usize).await)
        } else {
            None
        };
        let token = match &odds {
            Some(odds) => odds.id,
            None => sampler.next_token().await,
        };
        learner.device.watchdog.restart();
        // An answer ends with its message.
        if tokenizer.chat().is_some_and(|template| template.is_special(token)) {
            break;
        }
        tokens.push(token);
        scored.extend(odds.map(|odds| stream.push(odds)));
    }
    let text = tokenizer.decode(&tokens);
    journal.emit(Event::Sample(Sample { iter: position.iteration, prompt, text, tokens: scored }));
}

/// Returns the text and the tokens that a sample continues. In a run on conversations that is a
/// message of the user, by default the first one of the validation split.
fn sample_start(
    dataset: &Dataset,
    prompt: &str,
    tokenizer: &Tokenizer,
) -> Result<(String, Vec<u32>), DataError> {
    let is_default = prompt == DEFAULT_PROMPT;
    let Some(template) = tokenizer.chat().filter(|_| dataset.val.has_conversations()) else {
        // The default is not in every vocabulary.
        let prompt = if is_default { tokenizer.default_prompt() } else { prompt.to_owned() };
        let ids = tokenizer.encode_prompt(&prompt)?;
        return Ok((prompt, ids));
    };
    if !is_default {
        let message = Message::new(Role::User, prompt);
        return Ok((format!("{prompt}\n"), template.prompt(&[message], Ending::Answer)?));
    }
    let ids = dataset.val.first_prompt(0)?.unwrap_or_default();
    Ok((format!("{}\n", template.question(&ids)), ids))
}
