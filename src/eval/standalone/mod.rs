//! Evaluations of a finished model, for `wgpt eval`.

mod data_losses;
mod exam;

pub(crate) use data_losses::DataLosses;
pub(crate) use exam::{Exam, ExamError, Score};
