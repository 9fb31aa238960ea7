//! Multiple choice by likelihood, as GPT-2 is commonly evaluated on HellaSwag: the answer is the ending
//! whose tokens have the lowest mean loss after the context.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Evaluation;
use crate::config::Config;
use crate::data::{DataError, Dataset, Question, Questions, Tokenizer};
use crate::model::{Gpt, MicroBatch, Pass, values};

/// Micro-batches have multiples of this many positions, so that few shapes of tensors occur.
const TIME_STEP: usize = 32;

/// A question in tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EncodedQuestion {
    /// The index of the question.
    index: usize,
    /// A sequence for each ending.
    candidates: Vec<Candidate>,
    /// True if the model's context is too short for a candidate, which lost its first tokens.
    pub is_cropped: bool,
}

/// A context and an ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Candidate {
    /// The tokens: at most one more than the model's positions, since the last is a target alone.
    tokens: Vec<u32>,
    /// The number of targets at the end that are the ending.
    scored: usize,
}

/// The losses of the endings of a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The index of the question.
    pub index: usize,
    /// The mean loss of each ending, in nats per token.
    pub losses: Vec<f64>,
    /// The tokens of each ending.
    pub tokens: Vec<usize>,
}

impl Answer {
    /// Returns the ending with the lowest mean loss.
    pub fn choice(&self) -> usize {
        least(self.losses.iter().copied())
    }

    /// Returns the ending with the lowest sum of losses, which favours short endings.
    pub fn likeliest(&self) -> usize {
        let sums = self.losses.iter().zip(&self.tokens);
        least(sums.map(|(loss, tokens)| loss * *tokens as f64))
    }
}

/// The questions that a run answers at each evaluation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Quiz {
    /// In an order in which any part of them is spread over the file.
    questions: Vec<EncodedQuestion>,
    /// The right ending of each, by its index.
    labels: Vec<usize>,
}

impl Quiz {
    /// Reads the questions that a configuration asks for; `None` if it asks for none.
    ///
    /// # Errors
    /// If they cannot be read or tokenized.
    pub fn open(config: &Config, dataset: &Dataset) -> Result<Option<Self>, DataError> {
        if config.hellaswag.is_empty() {
            return Ok(None);
        }
        let path = Path::new(&config.hellaswag);
        let Some(tokenizer) = &dataset.tokenizer else {
            let (path, name) = (path.to_owned(), dataset.name.clone());
            return Err(DataError::NoTokenizer { path, name });
        };
        let all = Questions::read(path, false)?.questions;
        let count = match config.hellaswag_questions as usize {
            0 => all.len(),
            wanted => wanted.min(all.len()),
        };
        let block_size = config.eval_block_size().get() as usize;
        let chosen = (0..count).map(|index| &all[index * all.len() / count]);
        let labels = chosen.clone().map(|question| question.label).collect();
        let encoded = chosen.enumerate().map(|(index, question)| {
            encode(index, question, tokenizer, block_size).map_err(|error| {
                let (path, reason) = (path.to_owned(), error.to_string());
                DataError::BadQuestion { path, line: question.line, reason }
            })
        });
        let mut questions = encoded.collect::<Result<Vec<_>, _>>()?;
        // Questions of one kind, which are about as long, follow each other in a file.
        questions.sort_by_key(|question| question.index.reverse_bits());
        Ok(Some(Self { questions, labels }))
    }

    /// Returns the number of questions.
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Returns the number of right answers of a model to a part of the questions. `stop` is called
    /// before each micro-batch with the number of questions that are answered. Returns `None` if it
    /// returned true.
    pub async fn right(
        &self,
        part: Range<usize>,
        model: &Gpt,
        evaluation: &Evaluation,
        stop: &mut impl FnMut(u64) -> bool,
    ) -> Option<u64> {
        let (mut answered, mut right) = (0, 0);
        if stop(answered) {
            return None;
        }
        let mut count = |answers: Vec<Answer>| {
            answered += answers.len() as u64;
            let is_right = |answer: &&Answer| answer.choice() == self.labels[answer.index];
            right += answers.iter().filter(is_right).count() as u64;
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

/// Encodes the question number `index` for a model of `block_size` positions. An ending is tokenized
/// with the space before it, apart from the context, as in the common evaluation of GPT-2. Of a
/// sequence that is too long, the end is kept.
///
/// # Errors
/// For a character that the vocabulary lacks.
pub fn encode(
    index: usize,
    question: &Question,
    tokenizer: &Tokenizer,
    block_size: usize,
) -> Result<EncodedQuestion, DataError> {
    let context = tokenizer.encode(&question.context)?;
    let mut is_cropped = false;
    let mut candidate = |ending: &String| -> Result<Candidate, DataError> {
        let ending = tokenizer.encode(&format!(" {ending}"))?;
        let mut tokens = [&context[..], &ending].concat();
        let too_many = tokens.len().saturating_sub(block_size + 1);
        is_cropped |= too_many > 0;
        tokens.drain(..too_many);
        // The first token of a sequence is predicted from nothing.
        let scored = ending.len().min(tokens.len() - 1);
        Ok(Candidate { tokens, scored })
    };
    let candidates = question.endings.iter().map(&mut candidate).collect::<Result<_, _>>()?;
    Ok(EncodedQuestion { index, candidates, is_cropped })
}

impl EncodedQuestion {
    /// Returns the index of the question.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the positions of its longest sequence.
    fn time(&self) -> usize {
        self.candidates.iter().map(|candidate| candidate.tokens.len() - 1).max().unwrap_or(0)
    }
}

/// Answers questions in micro-batches, the longest first, so that the first takes the most memory.
/// `answered` gets the answers of each micro-batch and may end the evaluation with an error.
///
/// # Errors
/// Those of `answered`.
pub async fn answer<E>(
    model: &Gpt,
    mut questions: Vec<EncodedQuestion>,
    evaluation: &Evaluation,
    answered: &mut impl FnMut(Vec<Answer>) -> Result<(), E>,
) -> Result<(), E> {
    questions.sort_by_key(|question| (std::cmp::Reverse(question.time()), question.index));
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
        let answer = |question: &EncodedQuestion| Answer {
            index: question.index,
            losses: losses.by_ref().take(question.candidates.len()).collect(),
            tokens: question.candidates.iter().map(|candidate| candidate.scored).collect(),
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
    let (mut tokens, mut targets, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    for candidate in questions.iter().flat_map(|question| &question.candidates) {
        let (inputs, predicted) =
            (&candidate.tokens[..candidate.tokens.len() - 1], &candidate.tokens[1..]);
        tokens.extend_from_slice(inputs);
        targets.extend_from_slice(predicted);
        let end = targets.len();
        spans.push(end - candidate.scored..end);
        // Any token will do: nothing that is scored sees what follows.
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

    fn question(context: &str, endings: [&str; 2]) -> Question {
        Question {
            line: 1,
            context: context.into(),
            endings: endings.map(String::from).into(),
            label: 0,
        }
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn an_ending_is_scored_with_the_space_before_it() {
        let encoded = encode(3, &question("ab", ["c", "de"]), &Tokenizer::Byte, 5).unwrap();
        let candidate = |text, scored| Candidate { tokens: bytes(text), scored };
        assert_eq!(encoded.candidates, [candidate("ab c", 2), candidate("ab de", 3)]);
        assert_eq!((encoded.index, encoded.time(), encoded.is_cropped), (3, 4, false));
        // Three positions hold four tokens.
        let short = encode(0, &question("ab", ["c", "defg"]), &Tokenizer::Byte, 3).unwrap();
        assert_eq!(short.candidates, [candidate("ab c", 2), candidate("defg", 3)]);
        assert!(short.is_cropped);
    }

    #[test]
    fn spans_cover_the_endings_and_no_padding() {
        let questions = [question("ab", ["c", "de"]), question("x", ["yz", "y"])]
            .iter()
            .enumerate()
            .map(|(index, question)| encode(index, question, &Tokenizer::Byte, 8).unwrap())
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
        let answer = Answer { index: 0, losses: vec![2.0, 1.5, 1.5], tokens: vec![2, 4, 4] };
        assert_eq!((answer.choice(), answer.likeliest()), (1, 0));
    }
}
