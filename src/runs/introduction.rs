//! Suggests what to say to a model that was trained on conversations.

use std::path::Path;

use super::checkpoint::Checkpoint;
use super::data_path::find_data;
use super::model_source::recorded;
use crate::config::BUILTIN_CHATS;
use crate::data::{CHAT_SUBJECT, Dataset, Tokenizer, chat_examples};
use crate::protocol::Introduction;

const EXAMPLES: usize = 3;

/// The conversations of the validation split that are searched for examples.
const SEARCHED: usize = 50;

/// The longest example in characters, to fit in a line.
const MAX_LENGTH: usize = 72;

impl Introduction {
    /// Introduces the model at `path`, a run, a checkpoint or a model folder that was trained on
    /// conversations. Reads no weights. The examples are from its training data, if that is unchanged.
    pub fn of(path: &Path) -> Self {
        recorded(path).as_ref().and_then(Self::of_checkpoint).unwrap_or_else(|| Self {
            text:
                "This model was trained on conversations. Its files do not say what they are about."
                    .into(),
            examples: Vec::new(),
        })
    }

    fn of_checkpoint(checkpoint: &Checkpoint) -> Option<Self> {
        // RUN/checkpoints/ITERATION
        let run = checkpoint.path.ancestors().nth(2)?;
        let spec = find_data(&checkpoint.state.config, run).ok()?;
        let dataset = Dataset::open(&spec, 1).ok()?;
        if dataset.fingerprint != checkpoint.state.data {
            return None;
        }
        if spec == BUILTIN_CHATS {
            let text = format!("This model was trained on built-in conversations. {CHAT_SUBJECT}");
            return Some(Self { text, examples: chat_examples().into() });
        }
        let text = format!("This model was trained on the conversations in {}.", dataset.name);
        Some(Self { text, examples: first_questions(&dataset) })
    }
}

/// Returns the first short messages of the validation split, which the model was not trained on.
fn first_questions(dataset: &Dataset) -> Vec<String> {
    let mut found = Vec::new();
    let template = dataset.tokenizer.as_ref().and_then(Tokenizer::chat);
    let Some(template) = template.filter(|_| dataset.val.has_conversations()) else { return found };
    for conversation in 0..SEARCHED {
        let Ok(Some(prompt)) = dataset.val.first_prompt(conversation) else { break };
        let question = template.question(&prompt).trim().to_string();
        let fits = (1..=MAX_LENGTH).contains(&question.chars().count());
        if fits && !question.contains('\n') && !found.contains(&question) {
            found.push(question);
        }
        if found.len() == EXAMPLES {
            break;
        }
    }
    found
}
