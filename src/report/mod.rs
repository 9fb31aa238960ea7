//! Pages to give away: about one run, about several, model cards and pictures of benchmarks.
//!
//! A page is a template of `assets/pages/` that is filled with settings and figures. It needs no other
//! file, names no folder of the machine, and shows no line of a log.

mod benchmark_row;
mod chart;
mod comparison;
mod model_card;
mod page;
mod record;
mod run_page;
#[cfg(not(target_arch = "wasm32"))]
mod sweep;

pub(crate) use benchmark_row::{benchmark_picture, benchmark_summary};
pub(crate) use comparison::Comparison;
pub(crate) use model_card::{CARD, write_model_card};
pub(crate) use page::{REPORT_FILE, write, write_picture};
pub(crate) use record::RunRecord;
pub(crate) use run_page::run_page;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use sweep::{SWEEP_FILE, Sweep};
