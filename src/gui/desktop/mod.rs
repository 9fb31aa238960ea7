//! The window of a program: threads, processes, the disk, dialogs of the system.

mod open;
mod outside;
mod trainer;
mod work;

pub use open::{GuiError, open};
pub(super) use outside::{
    IS_PAGE, Input, RUNS, TEXTS_HINT, drop_hint, dropped, given, named, open_folder, recognize,
};
pub(super) use trainer::{Tail, Trainer, is_training};
pub(super) use work::Work;
