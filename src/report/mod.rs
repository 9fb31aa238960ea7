//! Pages about one run or several, and model cards.
//!
//! A page is a template of `assets/pages/` that is filled with settings and figures. It needs no other
//! file, names no folder of the machine, and shows no line of a log.

mod chart;
mod comparison;
mod model_card;
mod page;
mod record;
mod run_page;
mod sweep;

pub(crate) use comparison::Comparison;
pub(crate) use model_card::{CARD, write_model_card};
pub(crate) use page::{REPORT_FILE, write};
pub(crate) use record::RunRecord;
pub(crate) use run_page::run_page;
pub(crate) use sweep::{SWEEP_FILE, Sweep};
