//! The window of a page: a worker that trains and keeps, the browser's dialogs, the page's address.

mod dialog;
mod files;
mod line;
mod mirror;
mod models;
mod outside;
mod page;
mod trainer;
mod work;

pub(super) use mirror::{Mirror, address};
pub(super) use outside::{
    IS_PAGE, Input, RUNS, TEXTS_HINT, drop_hint, dropped, given, named, open_folder, recognize,
};
pub(super) use trainer::{Tail, Trainer, is_training};
pub(super) use work::Work;
