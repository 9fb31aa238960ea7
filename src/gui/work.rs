//! What takes time: done on threads of its own, so that no frame waits for it.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::mpsc::{Receiver, Sender, channel};

use eframe::egui;

use super::form::DataInfo;
use crate::catalogue::{self, RunSummary, Tail};
use crate::config::Config;
use crate::data::{Dataset, Phase, PrepareOptions, PrepareProgress, TokenizerKind, prepare};
use crate::gpu::{self, CardMemory, DeviceChoice, DeviceInfo};
use crate::progress::Progress;

/// What a thread has found out.
pub(super) enum Found {
    /// The devices there are.
    Devices(Vec<DeviceInfo>),
    /// The device that a choice means, and its memory.
    Card { info: DeviceInfo, memory: Option<CardMemory> },
    /// What the data at this place is.
    Data { spec: String, info: Result<DataInfo, String> },
    /// How far the preparation of these texts is, from 0 to 1.
    Preparing { what: String, share: f32 },
    /// The folder that texts were prepared into.
    Prepared(Result<PathBuf, String>),
    /// The runs on the disk.
    Runs(Vec<RunSummary>),
    /// All that a run folder tells, to show it.
    Run { path: PathBuf, progress: Box<Progress>, tail: Tail },
    /// The same, to draw it beside another.
    Overlay { path: PathBuf, progress: Box<Progress> },
    /// Settings in which two runs differ.
    Difference(Vec<(&'static str, String, String)>),
    /// The configuration of a run, to begin another from its checkpoint.
    Fork { checkpoint: PathBuf, config: Box<Config> },
    /// What was picked in a dialog of the system.
    Chosen(Chosen),
    /// A model was written into a folder.
    Exported(Result<PathBuf, String>),
}

/// What was picked in a dialog of the system.
pub(super) enum Chosen {
    /// Texts, or a folder with data.
    Data(Vec<PathBuf>),
    /// A folder with runs.
    Runs(PathBuf),
}

/// Starts threads and hears from them.
pub(super) struct Work {
    ctx: egui::Context,
    sender: Sender<Found>,
    receiver: Receiver<Found>,
}

/// Below this size a text is small enough that characters teach more than words.
const CHARACTERS: u64 = 5 << 20;

impl Work {
    pub fn new(ctx: egui::Context) -> Self {
        let (sender, receiver) = channel();
        Self { ctx, sender, receiver }
    }

    /// What is woken when there is news.
    pub fn ctx(&self) -> &egui::Context {
        &self.ctx
    }

    /// What was found since the last call.
    pub fn found(&self) -> Vec<Found> {
        self.receiver.try_iter().collect()
    }

    fn run(&self, job: impl FnOnce(&dyn Fn(Found)) + Send + 'static) {
        let (sender, ctx) = (self.sender.clone(), self.ctx.clone());
        std::thread::spawn(move || {
            job(&|found| {
                // The window may be gone by now.
                let _ = sender.send(found);
                ctx.request_repaint();
            });
        });
    }

    /// Which devices there are.
    pub fn devices(&self) {
        self.run(|tell| tell(Found::Devices(gpu::devices())));
    }

    /// What the chosen device has free.
    pub fn card(&self, choice: DeviceChoice) {
        self.run(move |tell| {
            if let Ok(found) = gpu::find(choice) {
                let memory = gpu::card_memory(&found.info);
                tell(Found::Card { info: found.info, memory });
            }
        });
    }

    /// What a data folder holds.
    pub fn data(&self, spec: String) {
        self.run(move |tell| {
            let info = Dataset::open(&spec, 1).map(|data| DataInfo {
                vocab_size: data.vocab_size,
                train_tokens: data.train.len(),
                val_tokens: data.val.len(),
            });
            tell(Found::Data { spec, info: info.map_err(|error| error.to_string()) });
        });
    }

    /// Turns texts into tokens, in a folder below `folder`.
    pub fn prepare(&self, inputs: Vec<PathBuf>, folder: PathBuf) {
        self.run(move |tell| tell(Found::Prepared(prepare_into(&inputs, &folder, tell))));
    }

    /// The same with a text of its own.
    pub fn prepare_text(&self, text: String, folder: PathBuf) {
        self.run(move |tell| {
            let prepared =
                tempfile::tempdir().map_err(|error| error.to_string()).and_then(|here| {
                    let input = here.path().join("pasted.txt");
                    std::fs::write(&input, text).map_err(|error| error.to_string())?;
                    prepare_into(&[input], &folder, tell)
                });
            tell(Found::Prepared(prepared));
        });
    }

    /// The runs below a folder.
    pub fn runs(&self, folder: PathBuf) {
        self.run(move |tell| tell(Found::Runs(catalogue::runs(&folder))));
    }

    /// All that a run folder tells.
    pub fn show(&self, path: PathBuf) {
        self.run(move |tell| {
            if let Ok((progress, tail)) = catalogue::follow(&path) {
                tell(Found::Run { path, progress: Box::new(progress), tail });
            }
        });
    }

    /// The same, to draw it beside another run.
    pub fn overlay(&self, path: PathBuf) {
        self.run(move |tell| {
            if let Ok(progress) = catalogue::progress(&path) {
                tell(Found::Overlay { path, progress: Box::new(progress) });
            }
        });
    }

    /// In what two runs differ.
    pub fn difference(&self, runs: [PathBuf; 2]) {
        self.run(move |tell| {
            if let [Some(a), Some(b)] = runs.map(|run| catalogue::config(&run)) {
                tell(Found::Difference(catalogue::difference(&a, &b)));
            }
        });
    }

    /// The configuration of a run, or of the run that a checkpoint belongs to.
    pub fn fork(&self, checkpoint: PathBuf) {
        self.run(move |tell| {
            let config = checkpoint.ancestors().take(3).find_map(catalogue::config);
            if let Some(config) = config.map(Box::new) {
                tell(Found::Fork { checkpoint, config });
            }
        });
    }

    /// Asks for texts or a data folder.
    pub fn choose_data(&self, folder: bool) {
        self.run(move |tell| {
            let dialog = rfd::FileDialog::new().set_title("Data to train on");
            let picked = match folder {
                true => dialog.pick_folder().map(|folder| vec![folder]),
                false => dialog
                    .add_filter("Texts", &["txt", "jsonl", "parquet", "gz", "zst", "bin"])
                    .add_filter("All files", &["*"])
                    .pick_files(),
            };
            tell(Found::Chosen(Chosen::Data(picked.unwrap_or_default())));
        });
    }

    /// Asks for a folder with runs.
    pub fn choose_runs(&self) {
        self.run(|tell| {
            let dialog = rfd::FileDialog::new().set_title("Folder with runs");
            if let Some(folder) = dialog.pick_folder() {
                tell(Found::Chosen(Chosen::Runs(folder)));
            }
        });
    }

    /// Asks where to, and writes a checkpoint there as a Hugging Face folder.
    pub fn export(&self, checkpoint: PathBuf) {
        self.run(move |tell| {
            let dialog = rfd::FileDialog::new().set_title("Empty folder for the model");
            if let Some(folder) = dialog.pick_folder() {
                tell(Found::Exported(export(&checkpoint, folder)));
            }
        });
    }
}

fn prepare_into(
    inputs: &[PathBuf],
    folder: &Path,
    tell: &dyn Fn(Found),
) -> Result<PathBuf, String> {
    let [first, ..] = inputs else { return Err("there is nothing to prepare".into()) };
    let name = first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let named = |number: u32| match number {
        1 => folder.join(&name),
        _ => folder.join(format!("{name}-{number}")),
    };
    let out = (1..).map(named).find(|path| !path.exists()).unwrap_or_else(|| folder.join(&name));
    let bytes: u64 = inputs.iter().filter_map(|path| path.metadata().ok()).map(|m| m.len()).sum();
    let small = bytes < CHARACTERS && inputs.iter().all(|path| path.is_file());
    let tokenizer = if small { TokenizerKind::Char } else { TokenizerKind::default() };
    let options = PrepareOptions { tokenizer, ..PrepareOptions::default() };
    let mut progress = |at: PrepareProgress| {
        let share = at.bytes_read as f32 / at.bytes_total.max(1) as f32;
        let share = match at.phase {
            Phase::Survey => share / 2.0,
            Phase::Tokenize => 0.5 + share / 2.0,
            Phase::Done => 1.0,
        };
        tell(Found::Preparing { what: name.clone(), share });
    };
    prepare(inputs, &out, &options, &mut progress).map_err(|error| error.to_string())?;
    Ok(out)
}

/// The command line's `export`, in a process of its own: it takes the memory of a whole model.
fn export(checkpoint: &Path, folder: PathBuf) -> Result<PathBuf, String> {
    let name = checkpoint.file_name().unwrap_or_default();
    let empty = folder.read_dir().is_ok_and(|mut entries| entries.next().is_none());
    let out = if empty { folder } else { folder.join(format!("model-{}", name.display())) };
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Process::new(program).arg("export").arg(checkpoint).arg("-o").arg(&out).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(out),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}
