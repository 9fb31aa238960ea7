//! Multiple choice by likelihood, the common way to evaluate GPT-2 on HellaSwag: the model's answer is
//! the ending whose tokens have the lowest mean loss after the context.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Evaluation;
use crate::config::Config;
use crate::data::{DataError, Dataset, Question, Questions, Tokenizer};
use crate::model::{Gpt, MicroBatch, Pass, values};

/// The positions of a micro-batch are a multiple of this, so that few tensor shapes occur.
const TIME_STEP: usize = 32;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EncodedQuestion {
    pub line: u64,
    label: usize,
    /// One sequence for each ending.
    candidates: Vec<Candidate>,
    /// True if a candidate was longer than the model's context and lost its first tokens.
    pub is_cropped: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Candidate {
    /// At most one token more than the model has positions: the last one is only a target.
    tokens: Vec<u32>,
    /// The number of tokens at the end that belong to the ending.
    scored: usize,
}

/// The answer to a question, which is also a line of a file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuizAnswer {
    pub line: u64,
    label: usize,
    /// The ending with the lowest mean loss.
    choice: usize,
    /// The mean loss of each ending, in nats per token.
    pub losses: Vec<f64>,
    tokens: Vec<usize>,
}

impl QuizAnswer {
    /// Returns the answer to a question from the mean losses of its endings.
    pub fn new(question: &EncodedQuestion, losses: Vec<f64>) -> Self {
        let &EncodedQuestion { line, label, .. } = question;
        let tokens = question.candidates.iter().map(|candidate| candidate.scored).collect();
        Self { line, label, choice: least(losses.iter().copied()), losses, tokens }
    }

    pub fn is_right(&self) -> bool {
        self.choice == self.label
    }

    /// Returns true if the right ending has the lowest sum of losses, which favours short endings.
    pub fn is_right_by_sum(&self) -> bool {
        let sums = self.losses.iter().zip(&self.tokens);
        least(sums.map(|(loss, tokens)| loss * *tokens as f64)) == self.label
    }
}

/// The questions that a run answers at each evaluation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Quiz {
    /// In an order in which every part is spread over the file.
    questions: Vec<EncodedQuestion>,
}

impl Quiz {
    /// Reads the questions that a configuration asks for; `None` if it asks for none.
    pub fn open(config: &Config, dataset: &Dataset) -> Result<Option<Self>, DataError> {
        if config.hellaswag.is_empty() {
            return Ok(None);
        }
        let path = Path::new(&config.hellaswag);
        let Some(tokenizer) = &dataset.tokenizer else {
            return Err(DataError::no_tokenizer(path, &dataset.name));
        };
        let all = Questions::read(path, false)?.questions;
        let count = match config.hellaswag_questions as usize {
            0 => all.len(),
            wanted => wanted.min(all.len()),
        };
        let block_size = config.eval_block_size().get() as usize;
        // The questions of one kind follow each other in the file and are about equally long.
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|index| index.reverse_bits());
        let chosen = order.into_iter().map(|index| &all[index * all.len() / count]);
        let encoded = chosen.map(|question| encode(path, question, tokenizer, block_size));
        Ok(Some(Self { questions: encoded.collect::<Result<_, _>>()? }))
    }

    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Counts a model's right answers to a part of the questions. Calls `stop` before each
    /// micro-batch with the number of questions answered so far. Returns `None` if `stop` returned
    /// true.
    pub async fn right(
        &self,
        part: Range<usize>,
        model: &Gpt,
        evaluation: &Evaluation,
        stop: &mut impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        let mut answered = 0;
        let mut right = 0;
        if stop(answered) {
            return None;
        }
        let mut count = |answers: Vec<QuizAnswer>| {
            answered += answers.len() as u64;
            right += answers.iter().filter(|answer| answer.is_right()).count() as u64;
            if stop(answered) { Err(()) } else { Ok(()) }
        };
        let questions = self.questions[part].to_vec();
        answer(model, questions, evaluation, &mut count).await.ok()?;
        Some(right)
    }
}

/// Returns the index of the least value, the first of equal ones.
fn least(values: impl Iterator<Item = f64>) -> usize {
    values.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(index, _)| index)
}

/// Encodes a question of the file at `path` for a model of `block_size` positions. As in the common
/// evaluation of GPT-2, an ending is tokenized separately from the context, with the space before it.
/// Models that begin texts with a token get it before the context, as in llama.cpp. A sequence that is too long
/// keeps its end.
pub fn encode(
    path: &Path,
    question: &Question,
    tokenizer: &Tokenizer,
    block_size: usize,
) -> Result<EncodedQuestion, DataError> {
    let bad = |error: DataError| error.of_question(path, question.line);
    let context = tokenizer.with_begin(tokenizer.encode(&question.context).map_err(bad)?);
    let mut is_cropped = false;
    let mut candidate = |ending: &String| -> Result<Candidate, DataError> {
        let ending = tokenizer.encode(&format!(" {ending}")).map_err(bad)?;
        let mut tokens = [&context[..], &ending].concat();
        let too_many = tokens.len().saturating_sub(block_size + 1);
        is_cropped |= too_many > 0;
        tokens.drain(..too_many);
        // No position predicts the first token of a sequence.
        let scored = ending.len().min(tokens.len() - 1);
        Ok(Candidate { tokens, scored })
    };
    let candidates = question.endings.iter().map(&mut candidate).collect::<Result<_, _>>()?;
    Ok(EncodedQuestion { line: question.line, label: question.label, candidates, is_cropped })
}

impl EncodedQuestion {
    pub fn has(&self, endings: usize) -> bool {
        self.candidates.len() == endings
    }

    /// Returns the number of positions of its longest sequence.
    fn time(&self) -> usize {
        self.candidates.iter().map(|candidate| candidate.tokens.len() - 1).max().unwrap_or(0)
    }
}

/// Answers questions in micro-batches. The longest questions come first, so that the first micro-batch
/// takes the most memory. `answered` gets the answers of each micro-batch, and can end the evaluation
/// with an error.
pub async fn answer<E>(
    model: &Gpt,
    mut questions: Vec<EncodedQuestion>,
    evaluation: &Evaluation,
    answered: &mut impl FnMut(Vec<QuizAnswer>) -> Result<(), E>,
) -> Result<(), E> {
    questions.sort_by_key(|question| (std::cmp::Reverse(question.time()), question.line));
    let mut rest = &questions[..];
    while let Some(longest) = rest.first() {
        let time = longest.time().next_multiple_of(TIME_STEP).min(evaluation.block_size);
        let room = evaluation.sequences * evaluation.block_size / time;
        let (now, later) = rest.split_at(count_within(rest, room));
        rest = later;
        let (batch, spans) = batch(now, time);
        let pass = Pass { mode: evaluation.mode, dropout: None };
        let losses = model.span_losses(&batch, &spans, evaluation.chunk, pass);
        let mut losses =
            values(losses).await.iter::<f32>().map(f64::from).collect::<Vec<_>>().into_iter();
        let answer = |question: &EncodedQuestion| {
            QuizAnswer::new(question, losses.by_ref().take(question.candidates.len()).collect())
        };
        answered(now.iter().map(answer).collect())?;
    }
    Ok(())
}

/// Returns how many of the first questions have at most `room` sequences, at least one.
fn count_within(questions: &[EncodedQuestion], room: usize) -> usize {
    let mut sequences = 0;
    let fits = |question: &&EncodedQuestion| {
        sequences += question.candidates.len();
        sequences <= room
    };
    questions.iter().take_while(fits).count().max(1)
}

/// Returns the sequences of questions, padded to `time` positions, and the spans of their endings.
fn batch(questions: &[EncodedQuestion], time: usize) -> (MicroBatch, Vec<Range<usize>>) {
    let mut tokens = Vec::new();
    let mut targets = Vec::new();
    let mut spans = Vec::new();
    for candidate in questions.iter().flat_map(|question| &question.candidates) {
        let ids = &candidate.tokens;
        tokens.extend_from_slice(&ids[..ids.len() - 1]);
        targets.extend_from_slice(&ids[1..]);
        let end = targets.len();
        spans.push(end - candidate.scored..end);
        // The padding can be any token: attention is causal, and no scored position follows it.
        let padded = spans.len() * time;
        tokens.resize(padded, 0);
        targets.resize(padded, 0);
    }
    let sequences = spans.len();
    (MicroBatch { tokens: tokens.into(), targets: targets.into(), sequences }, spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::testing::padded_bytes;

    fn question(context: &str, endings: [&str; 2]) -> Question {
        Question {
            line: 1,
            context: context.into(),
            endings: endings.map(String::from).into(),
            label: 0,
        }
    }

    fn path() -> &'static Path {
        Path::new("questions.jsonl")
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn an_ending_is_scored_with_the_space_before_it() {
        let encoded = encode(path(), &question("ab", ["c", "de"]), &Tokenizer::BYTE, 5).unwrap();
        let candidate = |text, scored| Candidate { tokens: bytes(text), scored };
        assert_eq!(encoded.candidates, [candidate("ab c", 2), candidate("ab de", 3)]);
        assert_eq!((encoded.line, encoded.time(), encoded.is_cropped), (1, 4, false));
        // Three positions hold four tokens.
        let short = encode(path(), &question("ab", ["c", "defg"]), &Tokenizer::BYTE, 3).unwrap();
        assert_eq!(short.candidates, [candidate("ab c", 2), candidate("defg", 3)]);
        assert!(short.is_cropped);
    }

    /// As lm-evaluation-harness and llama.cpp do for models whose tokenizer begins texts with a token.
    #[test]
    fn the_context_begins_with_the_token_that_begins_texts() {
        let mut base = serde_json::to_value(padded_bytes()).unwrap();
        base["names"] =
            serde_json::json!({ "tokens": { "bos_token": "<|endoftext|>" }, "adds_begin": true });
        let tokenizer: Tokenizer = serde_json::from_value(base).unwrap();
        let encoded = encode(path(), &question("ab", ["c", "de"]), &tokenizer, 8).unwrap();
        let candidate =
            |text, scored| Candidate { tokens: [vec![256], bytes(text)].concat(), scored };
        assert_eq!(encoded.candidates, [candidate("ab c", 2), candidate("ab de", 3)]);
    }

    #[test]
    fn spans_cover_the_endings_and_no_padding() {
        let questions = [question("ab", ["c", "de"]), question("x", ["yz", "y"])]
            .iter()
            .map(|question| encode(path(), question, &Tokenizer::BYTE, 8).unwrap())
            .collect::<Vec<_>>();
        let (batch, spans) = batch(&questions, 6);
        assert_eq!((batch.sequences, batch.tokens.len(), batch.targets.len()), (4, 24, 24));
        let scored: Vec<&[u32]> = spans.iter().map(|span| &batch.targets[span.clone()]).collect();
        assert_eq!(scored, [" c", " de", " yz", " y"].map(bytes));
        // Each target follows its input.
        assert_eq!(batch.tokens[6..10], bytes("ab d"));
        assert_eq!(count_within(&questions, 3), 1);
        assert_eq!(count_within(&questions, 4), 2);
        assert_eq!(count_within(&questions, 0), 1);
    }

    #[test]
    fn the_choice_is_by_mean_loss() {
        let question = question("a", ["b", "cde"]);
        let encoded = encode(path(), &question, &Tokenizer::BYTE, 8).unwrap();
        let answer = QuizAnswer::new(&encoded, vec![1.5, 1.25]);
        // The sums are 3 and 5.
        assert_eq!((answer.choice, answer.is_right(), answer.is_right_by_sum()), (1, false, true));
        assert_eq!(QuizAnswer::new(&encoded, vec![1.5, 1.5]).choice, 0, "the first of equal ones");
    }
}
