//! What takes time: done on threads of its own, so that no frame waits for it.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::mpsc::{Receiver, Sender, channel};

use eframe::egui;

use crate::catalogue;
use crate::data::{Dataset, Phase, PrepareOptions, PrepareProgress, TokenizerKind, prepare};
use crate::gpu::{self, Backend, DeviceInfo, Kind, ReportedMemory};
use crate::gui::fit::Card;
use crate::gui::form::DataInfo;
use crate::gui::work::{Found, tokenizer_for};
use crate::progress::Level;
use crate::train::CHECKPOINTS_FOLDER;

/// Starts threads and hears from them.
pub(in crate::gui) struct Work {
    ctx: egui::Context,
    sender: Sender<Found>,
    receiver: Receiver<Found>,
}

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

    /// What the chosen device allows, and has free.
    pub fn card(&self, choice: &str) {
        let Ok(choice) = choice.parse() else { return };
        self.run(move |tell| {
            if let Ok(found) = gpu::select(choice) {
                tell(Found::Card(card(&found.info)));
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

    /// Turns texts into tokens, in a folder beside the runs in `runs`.
    /// Gives their name.
    pub fn prepare(&self, inputs: Vec<PathBuf>, runs: &Path) -> Option<String> {
        let folder = data_folder(runs);
        let name = inputs.first()?.file_name()?.to_string_lossy().into_owned();
        self.run(move |tell| tell(Found::Prepared(prepare_into(&inputs, &folder, tell))));
        Some(name)
    }

    /// The same with a text of its own.
    pub fn prepare_text(&self, text: String, runs: &Path) {
        let folder = data_folder(runs);
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
        self.run(move |tell| {
            let runs = catalogue::runs(&folder);
            tell(Found::Runs { folder: Some(folder), runs });
        });
    }

    /// Whether there is a run of this name already.
    pub fn is_taken(&self, run: &Path) -> bool {
        run.exists()
    }

    /// All that a run folder tells.
    pub fn show(&self, path: PathBuf) {
        self.run(move |tell| {
            if let Ok((mut progress, tail)) = catalogue::follow(&path) {
                // A run that was begun elsewhere recorded paths as they were from there.
                for checkpoint in &mut progress.checkpoints {
                    if let Some(name) = checkpoint.path.file_name() {
                        checkpoint.path = path.join(CHECKPOINTS_FOLDER).join(name);
                    }
                }
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

    /// Data that can be chosen without a dialog, as it is typed and as it is called.
    pub fn stored_data(&self) -> &[(String, String)] {
        &[]
    }

    /// Models that are kept beside runs, by their folders, and what they are.
    pub fn stored_models(&self) -> &[(PathBuf, String)] {
        &[]
    }

    /// Where a page keeps runs.
    pub fn storage(&self) -> &str {
        ""
    }

    /// What is in the way of training, and what to do about it.
    pub fn obstacles(&self) -> &[(Level, String, String)] {
        &[]
    }

    /// The name of the device, where there is no choice.
    pub fn only_device(&self) -> Option<&str> {
        None
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
            tell(Found::Chosen(picked.unwrap_or_default()));
        });
    }

    /// Asks for a folder with runs.
    pub fn choose_runs(&self) {
        self.run(|tell| {
            let dialog = rfd::FileDialog::new().set_title("Folder with runs");
            if let Some(folder) = dialog.pick_folder() {
                tell(Found::Folder(folder));
            }
        });
    }

    /// Asks where to, and writes a checkpoint there as a Hugging Face folder.
    pub fn export(&self, checkpoint: PathBuf) {
        self.run(move |tell| {
            let dialog = rfd::FileDialog::new().set_title("Empty folder for the model");
            if let Some(folder) = dialog.pick_folder() {
                let said = export(&checkpoint, folder);
                let said = said.map(|folder| format!("exported to {}", folder.display()));
                tell(Found::Said(said.map_err(|error| format!("nothing was exported: {error}"))));
            }
        });
    }
}

/// Beside the runs, as nanoGPT's `data` is beside its `out`.
fn data_folder(runs: &Path) -> PathBuf {
    runs.parent().unwrap_or(Path::new("")).join("data")
}

fn card(info: &DeviceInfo) -> Card {
    let memory = gpu::reported_memory(info);
    Card {
        budget: memory.as_ref().map(ReportedMemory::available),
        memory: memory.map(|memory| (memory.total, memory.free, memory.source.to_string())),
        largest_tensor: info.max_binding,
        pools: info.kind != Kind::Cpu,
        cube: info.id.backend == Backend::Cuda,
    }
}

fn prepare_into(inputs: &[PathBuf], folder: &Path, tell: &dyn Fn(Found)) -> Result<String, String> {
    let [first, ..] = inputs else { return Err("there is nothing to prepare".into()) };
    let name = first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let named = |number: u32| match number {
        1 => folder.join(&name),
        _ => folder.join(format!("{name}-{number}")),
    };
    let out = (1..).map(named).find(|path| !path.exists()).unwrap_or_else(|| folder.join(&name));
    let bytes: u64 = inputs.iter().filter_map(|path| path.metadata().ok()).map(|m| m.len()).sum();
    let known = inputs.iter().all(|path| path.is_file());
    let tokenizer = if known { tokenizer_for(bytes) } else { TokenizerKind::default() };
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
    Ok(out.display().to_string())
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
