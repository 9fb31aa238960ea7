//! What takes time: asked of the worker, which answers when it comes to it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use eframe::egui;
use web_sys::File;

use super::Tail;
use super::dialog::{self, Chooser};
use super::files::{import, prepare, read};
use super::line::Line;
use super::models::{named, shaped};
use crate::config::{Config, bytes};
use crate::gui::fit::Card;
use crate::gui::form;
use crate::gui::work::Found;
use crate::progress::{Level, Progress};
use crate::protocol::Event;
use crate::run_index::{self, RunSummary};
use crate::web::messages::{
    Ask, DATA, DEFAULT_BUDGET, DataInfo, MODELS, ModelInfo, ObstacleKind, Reply, Storage,
};

/// What all that a run has said is asked for.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Show,
    Overlay,
    Fork,
    Difference,
}

/// What the worker does that may fail, the last one.
enum Doing {
    Prepare(String),
    Export,
    Import,
    Sample(String),
}

/// Asks the worker, and hears from it.
pub(in crate::gui) struct Work {
    ctx: egui::Context,
    line: Line,
    /// How long news may wait to be drawn.
    pace: Rc<Cell<Duration>>,
    /// What files that are being read come to.
    found: Rc<RefCell<Vec<Found>>>,
    chooser: Option<Chooser>,
    doing: Option<Doing>,
    wanted: Vec<(PathBuf, Wanted)>,
    compared: Option<[PathBuf; 2]>,
    configs: HashMap<PathBuf, Config>,
    /// The data that the form names, until it is known what it is.
    asked_data: Option<String>,
    runs: Vec<RunSummary>,
    data: Option<Vec<DataInfo>>,
    models: Vec<ModelInfo>,
    device: Option<String>,
    obstacles: Vec<(Level, String, String)>,
    kinds: Vec<ObstacleKind>,
    stored_data: Vec<(String, String)>,
    stored_models: Vec<(PathBuf, String)>,
    storage: String,
}

/// How often news are drawn. Where pictures are computed in software, by what trains as well, one takes
/// a fifth of a second: drawing at the usual pace, training took five times as long.
const PACE: Duration = Duration::from_millis(50);
const SLOW_PACE: Duration = Duration::from_secs(2);

/// What can be chosen.
const TEXTS: &str = ".txt,.md,.text,text/plain,.zip";
const ZIPS: &str = ".zip,application/zip";

impl Work {
    pub fn new(ctx: egui::Context) -> Self {
        let pace = Rc::new(Cell::new(PACE));
        let line = Line::new(&ctx, pace.clone());
        line.ask(&Ask::List);
        Self {
            ctx,
            line,
            pace,
            found: Rc::default(),
            chooser: None,
            doing: None,
            wanted: Vec::new(),
            compared: None,
            configs: HashMap::new(),
            asked_data: None,
            runs: Vec::new(),
            data: None,
            models: Vec::new(),
            device: None,
            obstacles: Vec::new(),
            kinds: Vec::new(),
            stored_data: Vec::new(),
            stored_models: Vec::new(),
            storage: String::new(),
        }
    }

    /// The line to the worker.
    pub(super) fn line(&self) -> Line {
        self.line.clone()
    }

    /// What was found since the last call.
    pub fn found(&mut self) -> Vec<Found> {
        let mut found = self.found.take();
        for (reply, bytes) in self.line.answers() {
            self.take(reply, bytes, &mut found);
        }
        found
    }

    fn take(&mut self, reply: Reply, bytes: Option<Vec<u8>>, found: &mut Vec<Found>) {
        match reply {
            Reply::Ready { device, limits, software, storage } => {
                self.pace.set(if software { SLOW_PACE } else { PACE });
                // Another worker has taken the place of one that failed: what was in the way is not.
                let stays: Vec<bool> = self.kinds.iter().map(|kind| kind.is_passable()).collect();
                retain(&mut self.obstacles, &stays);
                retain(&mut self.kinds, &stays);
                self.device = Some(device.name);
                self.keep_storage(storage);
                found.push(Found::Card(Card {
                    memory: None,
                    budget: Some(DEFAULT_BUDGET),
                    largest_tensor: limits.largest_tensor,
                    pools: limits.pools,
                    cube: false,
                }));
            }
            Reply::Obstacle { kind, text, hint } => {
                if !self.kinds.contains(&kind) {
                    let level = if kind.is_passable() { Level::Warning } else { Level::Error };
                    self.kinds.push(kind);
                    self.obstacles.push((level, text, hint));
                }
            }
            Reply::Preparing { share } => {
                if let Some(Doing::Prepare(what)) = &self.doing {
                    found.push(Found::Preparing { what: what.clone(), share: share as f32 });
                }
            }
            Reply::Prepared { data } => {
                self.doing = None;
                let spec = data.spec.clone();
                let kept = self.data.get_or_insert_default();
                kept.retain(|known| known.spec != spec);
                kept.push(data);
                self.name_data();
                found.push(Found::Prepared(Ok(spec)));
                self.line.ask(&Ask::List);
            }
            Reply::Stored { runs, data, models, storage } => {
                self.keep_storage(storage);
                self.stored_models = models.iter().map(named).collect();
                (self.runs, self.data, self.models) = (runs.clone(), Some(data), models);
                self.name_data();
                found.push(Found::Runs { folder: None, runs });
                found.extend(self.asked_data.take().and_then(|spec| self.data_found(spec)));
            }
            Reply::Run { run, config, events } => self.run_found(run.into(), config, events, found),
            Reply::Exported { file, .. } => {
                self.doing = None;
                let saved = dialog::save(&file, &bytes.unwrap_or_default());
                found.push(Found::Said(match saved {
                    Ok(()) => Ok(format!("{file} is handed to the browser, to be saved")),
                    Err(error) => Err(format!("{file} was not saved: {}", dialog::words(&error))),
                }));
            }
            Reply::Imported { model } => {
                self.doing = None;
                let text = format!("{} is imported: Runs has what can be done with it", model.name);
                found.push(Found::Said(Ok(text)));
                self.line.ask(&Ask::List);
            }
            Reply::Sampled { text, done, .. } => {
                if let Some(Doing::Sample(prompt)) = &self.doing {
                    found.push(Found::Sampled { prompt: prompt.clone(), text, done });
                }
                if done {
                    self.doing = None;
                }
            }
            Reply::Failed { text, hint } => {
                let text = if hint.is_empty() { text } else { format!("{text}: {hint}") };
                found.push(match self.doing.take() {
                    Some(Doing::Prepare(_)) => Found::Prepared(Err(text)),
                    Some(Doing::Sample(prompt)) => {
                        self.found.borrow_mut().push(Found::Said(Err(text)));
                        Found::Sampled { prompt, text: String::new(), done: true }
                    }
                    Some(Doing::Export) => {
                        Found::Said(Err(format!("nothing was exported: {text}")))
                    }
                    Some(Doing::Import) => {
                        Found::Said(Err(format!("nothing was imported: {text}")))
                    }
                    None => Found::Said(Err(text)),
                });
            }
            Reply::Event { .. } | Reply::Ended { .. } | Reply::Pulse => {}
        }
    }

    fn run_found(
        &mut self,
        path: PathBuf,
        config: Option<Box<Config>>,
        events: Vec<Event>,
        found: &mut Vec<Found>,
    ) {
        let mut progress = Progress::default();
        events.iter().for_each(|event| progress.apply(event));
        let mut progress = Some(Box::new(progress));
        let wanted = std::mem::take(&mut self.wanted);
        for (run, wanted) in wanted {
            if run != path {
                self.wanted.push((run, wanted));
                continue;
            }
            let (path, config) = (path.clone(), config.clone());
            match wanted {
                Wanted::Show | Wanted::Overlay => {
                    let Some(progress) = progress.take() else { continue };
                    found.push(match wanted {
                        Wanted::Show => Found::Run { path, progress, tail: Tail },
                        _ => Found::Overlay { path, progress },
                    });
                }
                Wanted::Fork => {
                    found.extend(config.map(|config| Found::Fork { checkpoint: path, config }));
                }
                Wanted::Difference => {
                    self.configs.extend(config.map(|config| (path, *config)));
                }
            }
        }
        let compared =
            self.compared.as_ref().map(|runs| runs.each_ref().map(|run| self.configs.get(run)));
        if let Some([Some(a), Some(b)]) = compared {
            found.push(Found::Difference(run_index::difference(a, b)));
            self.compared = None;
        }
    }

    fn keep_storage(&mut self, storage: Storage) {
        let Storage { quota, used, persisted } = storage;
        self.storage = match (quota, persisted) {
            (0, _) => "Kept nowhere: runs are gone with this page".into(),
            (_, true) => format!("Kept by this browser: {} of {}", bytes(used), bytes(quota)),
            (_, false) => format!(
                "Kept by this browser: {} of {}, until it needs the room",
                bytes(used),
                bytes(quota)
            ),
        };
    }

    fn name_data(&mut self) {
        let own = self.data.iter().flatten().filter(|data| data.spec.starts_with(DATA));
        self.stored_data = own.map(|data| (data.spec.clone(), data.name.clone())).collect();
    }

    /// How long news may wait to be drawn.
    pub fn pace(&self) -> Duration {
        self.pace.get()
    }

    /// Which devices there are: the worker tells without being asked.
    pub fn devices(&self) {}

    /// The same.
    pub fn card(&self, _: &str) {}

    /// What data is.
    pub fn data(&mut self, spec: String) {
        match self.data_found(spec.clone()) {
            Some(found) => self.found.borrow_mut().push(found),
            None => self.asked_data = Some(spec),
        }
    }

    /// `None` until it is known what is stored.
    fn data_found(&self, spec: String) -> Option<Found> {
        let found = self.data.as_ref()?.iter().find(|data| data.spec == spec);
        let info = found.map(|data| form::DataInfo {
            vocab_size: data.vocab_size,
            train_tokens: data.train_tokens,
            val_tokens: data.val_tokens,
        });
        let missing = || format!("this browser keeps no data called {spec}: choose the text again");
        let info = info.ok_or_else(missing);
        Some(Found::Data { spec, info })
    }

    /// Turns texts into tokens, or keeps the model in a zip. Gives the name of texts.
    pub fn prepare(&mut self, files: Vec<File>, _: &Path) -> Option<String> {
        let first = files.first()?.name();
        let is_model = first.to_ascii_lowercase().ends_with(".zip");
        let stem = first.rsplit_once('.').map_or(first.as_str(), |(stem, _)| stem);
        let folder = if is_model { MODELS } else { DATA };
        let name = self.free_name(folder, stem);
        self.doing = Some(if is_model { Doing::Import } else { Doing::Prepare(first.clone()) });
        let (line, found, ctx) = (self.line.clone(), self.found.clone(), self.ctx.clone());
        wasm_bindgen_futures::spawn_local(async move {
            let asked = match is_model {
                true => import(&line, &files[0], name).await,
                false => read(&files).await.map(|text| line.ask(&prepare(name, text))),
            };
            if let Err(text) = asked {
                found.borrow_mut().push(match is_model {
                    true => Found::Said(Err(format!("nothing was imported: {text}"))),
                    false => Found::Prepared(Err(text)),
                });
            }
            ctx.request_repaint();
        });
        (!is_model).then_some(first)
    }

    /// The same with a text of its own.
    pub fn prepare_text(&mut self, text: String, _: &Path) {
        let name = self.free_name(DATA, "pasted");
        self.doing = Some(Doing::Prepare("the pasted text".into()));
        self.line.ask(&prepare(name, text));
    }

    /// A name below `folder` that nothing has yet.
    fn free_name(&self, folder: &str, wanted: &str) -> String {
        let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let wanted: String = wanted.chars().take(40).map(safe).collect();
        let wanted = wanted.trim_matches('.');
        let wanted = if wanted.is_empty() { "text" } else { wanted };
        let is_taken = |name: &String| {
            let path = format!("{folder}/{name}");
            self.data.iter().flatten().any(|data| data.spec == path)
                || self.models.iter().any(|model| model.path == path)
        };
        let numbered = |number: u32| match number {
            1 => wanted.to_string(),
            _ => format!("{wanted}-{number}"),
        };
        (1..).map(numbered).find(|name| !is_taken(name)).unwrap_or_else(|| wanted.to_string())
    }

    /// The runs that are kept.
    pub fn runs(&self, _: PathBuf) {
        self.line.ask(&Ask::List);
    }

    /// Whether there is a run of this name already.
    pub fn is_taken(&self, run: &Path) -> bool {
        self.runs.iter().any(|known| known.path == run)
    }

    /// All that a run has said. A model has said nothing.
    pub fn show(&mut self, path: PathBuf) {
        if !path.starts_with(MODELS) {
            return self.want(path, Wanted::Show);
        }
        let found = Found::Run { path, progress: Box::default(), tail: Tail };
        self.found.borrow_mut().push(found);
    }

    /// The same, to draw it beside another run.
    pub fn overlay(&mut self, path: PathBuf) {
        self.want(path, Wanted::Overlay);
    }

    /// In what two runs differ.
    pub fn difference(&mut self, runs: [PathBuf; 2]) {
        self.configs.clear();
        self.compared = Some(runs.clone());
        runs.into_iter().for_each(|run| self.want(run, Wanted::Difference));
    }

    /// The configuration of a run, or the shapes of a model.
    pub fn fork(&mut self, checkpoint: PathBuf) {
        let model = self.models.iter().find(|model| Path::new(&model.path) == checkpoint);
        let Some(model) = model else { return self.want(folder(&checkpoint), Wanted::Fork) };
        if let Some(config) = shaped(&model.architecture) {
            let found = Found::Fork { checkpoint, config: Box::new(config) };
            self.found.borrow_mut().push(found);
        }
    }

    fn want(&mut self, run: PathBuf, wanted: Wanted) {
        self.line.ask(&Ask::Show { run: run.display().to_string() });
        self.wanted.push((run, wanted));
    }

    /// Data that can be chosen without a dialog, as it is typed and as it is called.
    pub fn stored_data(&self) -> &[(String, String)] {
        &self.stored_data
    }

    /// Models that are kept beside runs, by their folders, and what they are.
    pub fn stored_models(&self) -> &[(PathBuf, String)] {
        &self.stored_models
    }

    /// Where runs are kept, and how much room there is.
    pub fn storage(&self) -> &str {
        &self.storage
    }

    /// What is in the way of training, and what to do about it.
    pub fn obstacles(&self) -> &[(Level, String, String)] {
        &self.obstacles
    }

    /// The name of the device.
    pub fn only_device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Asks for texts, or a model in a zip.
    pub fn choose_data(&mut self, is_model: bool) {
        let (found, ctx) = (self.found.clone(), self.ctx.clone());
        let accept = if is_model { ZIPS } else { TEXTS };
        let opened = Chooser::open(accept, move |files| {
            found.borrow_mut().push(Found::Chosen(files));
            ctx.request_repaint();
        });
        match opened {
            Ok(chooser) => self.chooser = Some(chooser),
            Err(error) => {
                let text = format!("files could not be asked for: {}", dialog::words(&error));
                self.found.borrow_mut().push(Found::Said(Err(text)));
            }
        }
    }

    /// Asks for a model in a zip.
    pub fn choose_runs(&mut self) {
        self.choose_data(true);
    }

    /// Downloads a model, or the best checkpoint of a run, as a zip.
    pub fn export(&mut self, checkpoint: PathBuf) {
        self.doing = Some(Doing::Export);
        self.line.ask(&Ask::Export { path: folder(&checkpoint).display().to_string() });
    }

    /// Removes a run or a model.
    pub fn remove(&mut self, path: PathBuf) {
        self.line.ask(&Ask::Remove { path: path.display().to_string() });
    }

    /// Lets a model write while nothing trains.
    pub fn sample(&mut self, model: Option<&Path>, prompt: String, config: Option<&Config>) {
        let Some(model) = model else { return };
        let tokens = config.map_or(TOKENS, |config| config.sample_tokens.max(1));
        self.line.ask(&Ask::Sample {
            path: model.display().to_string(),
            prompt: prompt.clone(),
            tokens,
            temperature: 0.8,
            top_k: 200,
            seed: js_sys::Date::now() as u64,
        });
        self.doing = Some(Doing::Sample(prompt));
    }
}

/// Tokens that a model writes of which no configuration is known.
const TOKENS: u32 = 200;

/// `runs/NAME` of what lies in it.
fn folder(path: &Path) -> PathBuf {
    path.components().take(2).collect()
}

fn retain<T>(list: &mut Vec<T>, stays: &[bool]) {
    let mut stays = stays.iter();
    list.retain(|_| *stays.next().unwrap_or(&true));
}
