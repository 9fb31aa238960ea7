//! Uses of a model: its loss on data, its answers to HellaSwag's questions, conversations, and the
//! probabilities of tokens.
//!
//! The training loop evaluates with this too, so `eval` is below `train` and knows no runs and ranks.

mod conversation;
mod loss;
mod quiz;
mod scored;
#[cfg(not(target_arch = "wasm32"))]
mod standalone;

pub(crate) use conversation::{ChatError, Conversation};
pub(crate) use loss::{Evaluation, LossSum, sum_losses};
pub(crate) use quiz::Quiz;
pub(crate) use scored::{ScoredStream, score_text};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use standalone::{DataLosses, Exam, ExamError, Score};
