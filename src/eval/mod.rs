//! Uses of a model: its loss on data, its answers to HellaSwag's questions, conversations, the
//! probabilities of a text's tokens.
//!
//! The training loop evaluates with this too, so `eval` stands before `train` and knows nothing of
//! runs and ranks.

mod conversation;
#[cfg(not(target_arch = "wasm32"))]
mod exam;
mod loss;
mod quiz;
mod scored;

pub(crate) use conversation::{ChatError, Conversation};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use exam::{Exam, ExamError, Score};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use loss::DataLosses;
pub(crate) use loss::{Evaluation, LossSum, sum_losses};
pub(crate) use quiz::Quiz;
pub(crate) use scored::{ScoredStream, score_text};
