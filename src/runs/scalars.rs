//! Scalar logs of a run for other programs: TensorBoard's event files and a CSV table.
//!
//! A run that continues from a checkpoint makes some updates again. The logs drop what they have
//! after the checkpoint, so that each iteration is in them once.

mod csv;
mod tensorboard;

use std::io;
use std::path::Path;

use crate::disk::File;
use crate::protocol::Event;
pub use csv::SCALARS_FILE;

struct Scalars {
    iter: u64,
    /// The names of the event's fields, and their values.
    values: Vec<(&'static str, f64)>,
}

impl Scalars {
    fn of(event: &Event) -> Option<Self> {
        match event {
            Event::Step(step) => {
                let mut values = vec![("loss", step.loss), ("lr", step.lr)];
                values.extend(step.grad_norm.map(|norm| ("grad_norm", norm)));
                values.push(("tokens_per_s", step.tokens_per_s));
                values.extend(step.vram_bytes.map(|bytes| ("vram_bytes", bytes as f64)));
                let health = step.health.unwrap_or_default();
                let of_device = [
                    ("gpu_utilization", health.utilization),
                    ("gpu_celsius", health.celsius),
                    ("gpu_watts", health.watts),
                    ("gpu_mhz", health.clock_mhz),
                ];
                values
                    .extend(of_device.into_iter().filter_map(|(name, value)| Some((name, value?))));
                if let Some(scale) = step.loss_scale {
                    values.extend([("loss_scale", scale), ("skipped", step.skipped as f64)]);
                }
                Some(Self { iter: step.iter, values })
            }
            Event::Eval { iter, train_loss, val_loss, .. } => Some(Self {
                iter: *iter,
                values: vec![("train_loss", *train_loss), ("val_loss", *val_loss)],
            }),
            _ => None,
        }
    }
}

/// The point that a run continues from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Continued {
    pub iteration: u64,
    pub last_eval: Option<u64>,
}

impl Continued {
    /// Returns the iteration of the next evaluation.
    fn next_eval(self) -> u64 {
        self.iteration + u64::from(self.last_eval == Some(self.iteration))
    }
}

#[derive(Debug, Default)]
pub struct Logs {
    open: Vec<Log>,
}

#[derive(Debug)]
struct Log {
    /// Its name among the settings.
    name: &'static str,
    file: File,
    write: fn(&mut File, &Scalars) -> io::Result<()>,
}

impl Logs {
    /// Opens the `wanted` logs in a run folder, names separated by commas. Also returns a sentence for each that
    /// cannot be opened: the run does not depend on it.
    pub fn open(folder: &Path, wanted: &str, from: Continued) -> (Self, Vec<String>) {
        let mut open = Vec::new();
        let mut failed = Vec::new();
        let mut add = |name, file, write| match file {
            Ok(file) => open.push(Log { name, file, write }),
            Err(error) => failed.push(failure(name, &error)),
        };
        let is_wanted = |name| wanted.split(',').any(|wanted| wanted == name);
        if is_wanted("tensorboard") {
            add("tensorboard", tensorboard::create(folder, from), tensorboard::write);
        }
        if is_wanted("csv") {
            add("csv", csv::open(folder, from), csv::write);
        }
        (Self { open }, failed)
    }

    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.open.iter().map(|log| &log.file)
    }

    /// Appends the scalars of an event, if it has any. Closes logs that cannot be written, and returns a sentence
    /// for each.
    pub fn append(&mut self, event: &Event) -> Vec<String> {
        let Some(scalars) = Scalars::of(event) else { return Vec::new() };
        let mut failed = Vec::new();
        self.open.retain_mut(|log| match (log.write)(&mut log.file, &scalars) {
            Ok(()) => true,
            Err(error) => {
                failed.push(failure(log.name, &error));
                false
            }
        });
        failed
    }
}

fn failure(name: &str, error: &io::Error) -> String {
    format!("the log for {name} ends here: {error}; the run continues without it")
}

#[cfg(test)]
mod tests;
