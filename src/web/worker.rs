//! The worker: one device, one run at a time, and what is stored.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, wasm_bindgen};
use web_sys::{DedicatedWorkerGlobalScope, MessageEvent};
use web_time::Instant;

use super::library;
use super::messages::{Ask, ObstacleKind, Reply, Storage};
use super::storage::Source;
use super::turn::Turn;
use crate::config::{Budget, Config, GradCheckpoint, bytes};
use crate::gpu::{self, DeviceError, Kind, OpenDevice, Watchdog};
use crate::model::{SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::plan::{Limits, Plan};
use crate::protocol::{Cause, Command, Event};
use crate::train::{Commands, ModelSource, Next, Request, Session, Setup, TrainError};

/// The longest time that a run keeps messages waiting while it does not wait itself.
const BREATH: Duration = Duration::from_millis(30);

/// How often the device and the page hear that somebody is there, in milliseconds.
const PULSE: i32 = 1000;

/// Bytes of a weight in a checkpoint: itself and two moments.
const SAVED_BYTES: u64 = 12;

/// Begins to listen, and says what there is.
#[wasm_bindgen]
pub fn worker() {
    let scope: DedicatedWorkerGlobalScope = js_sys::global().unchecked_into();
    let worker = Rc::new(Worker {
        scope,
        inbox: RefCell::default(),
        commands: RefCell::default(),
        waker: RefCell::default(),
        training: Training::default(),
        device: RefCell::default(),
        storage: Source::default(),
        room: Cell::default(),
    });
    worker.watch_panics();
    let listener = worker.clone();
    let listen = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        if let Some((ask, bytes)) = super::read::<Ask>(&event.data()) {
            listener.hear(ask, bytes);
        }
    });
    worker.scope.set_onmessage(Some(listen.as_ref().unchecked_ref()));
    // It lasts as long as the worker.
    listen.forget();
    wasm_bindgen_futures::spawn_local(async move { worker.serve().await });
}

pub(super) struct Worker {
    scope: DedicatedWorkerGlobalScope,
    /// What takes its time, in turn.
    inbox: RefCell<VecDeque<Ask>>,
    /// What the run that is going on was told.
    commands: RefCell<VecDeque<Command>>,
    waker: RefCell<Option<Waker>>,
    training: Training,
    device: RefCell<Option<OpenDevice>>,
    storage: Source,
    room: Cell<Storage>,
}

/// The run that is going on, and whether its device has failed: what a panic needs to know.
#[derive(Clone, Default)]
struct Training(Arc<Mutex<(Option<String>, Watchdog)>>);

impl Training {
    fn run(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn failure(&self) -> Option<DeviceError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.failure().cloned()
    }

    fn set_run(&self, run: Option<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = run;
    }

    fn watch(&self, watchdog: Watchdog) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = watchdog;
    }
}

impl Worker {
    /// Says something to the page.
    pub fn say(&self, reply: &Reply) {
        self.say_with(reply, None);
    }

    fn say_with(&self, reply: &Reply, bytes: Option<&[u8]>) {
        let (message, transfer) = super::written(reply, bytes);
        // A page that is gone hears nothing.
        let _ = self.scope.post_message_with_transfer(&message, &transfer);
    }

    fn fail(&self, text: impl ToString, hint: &str) {
        self.say(&Reply::Failed { text: text.to_string(), hint: hint.to_string() });
    }

    fn obstacle(&self, kind: ObstacleKind, text: &str, hint: &str) {
        let (text, hint) = (text.to_string(), hint.to_string());
        self.say(&Reply::Obstacle { kind, text, hint });
    }

    /// After a panic nothing here can be relied on: the page takes another worker.
    fn watch_panics(self: &Rc<Self>) {
        let training = self.training.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let told = training.failure();
            let place = panic.location().map_or(String::new(), |place| format!(" ({place})"));
            let text = match &told {
                Some(error) => error.to_string(),
                None => {
                    let text = panic.payload_as_str().unwrap_or("a fault of the program");
                    format!("{text}{place}")
                }
            };
            let reply = match training.run() {
                Some(run) => {
                    let cause = told.as_ref().map_or(Cause::DeviceLost, cause);
                    let hint = "the browser's console may say more".into();
                    let event = Event::Error { text, hint, cause: Some(cause) };
                    Reply::Event { run, event: Box::new(event) }
                }
                None => Reply::Failed { text, hint: "reload the page".into() },
            };
            let scope: DedicatedWorkerGlobalScope = js_sys::global().unchecked_into();
            let (message, _) = super::written(&reply, None);
            let _ = scope.post_message(&message);
        }));
    }

    /// Not before the storage is open: the page asks as soon as it hears anything.
    fn start_pulse(self: &Rc<Self>) {
        let worker = self.clone();
        let beat = Closure::<dyn FnMut()>::new(move || worker.beat());
        let started = self.scope.set_interval_with_callback_and_timeout_and_arguments_0(
            beat.as_ref().unchecked_ref(),
            PULSE,
        );
        if started.is_ok() {
            beat.forget();
        }
    }

    fn beat(&self) {
        self.say(&Reply::Pulse);
        let device = self.device.borrow();
        let Some(device) = device.as_ref() else { return };
        device.watchdog.check();
        if let (Some(error), Some(run)) = (device.watchdog.failure(), self.training.run()) {
            let (text, hint) = (error.to_string(), error.hint().to_string());
            let event = Box::new(Event::Error { text, hint, cause: Some(cause(error)) });
            self.say(&Reply::Event { run, event });
        }
    }

    /// What can be answered at once is; the rest waits for its turn.
    fn hear(self: &Rc<Self>, ask: Ask, bytes: Option<Vec<u8>>) {
        match ask {
            Ask::Tell { command } => self.commands.borrow_mut().push_back(command),
            Ask::Start { .. } | Ask::Sample { .. } if self.training.run().is_some() => {
                self.fail("a run is going on", "stop it, or wait until it is done");
            }
            Ask::Start { .. } | Ask::Sample { .. } => self.inbox.borrow_mut().push_back(ask),
            Ask::Remove { path } if self.training.run().as_ref() == Some(&path) => {
                self.fail(format!("{path} is going on"), "stop it first");
            }
            ask => {
                let asked = library::answer(ask, bytes.unwrap_or_default(), &mut |reply, bytes| {
                    self.say_with(&reply, bytes);
                });
                if let Err(error) = asked {
                    self.fail(error.text, &error.hint);
                }
                let worker = self.clone();
                wasm_bindgen_futures::spawn_local(async move { worker.look_at_storage().await });
            }
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// After each change: more slots, and what is stored now.
    async fn look_at_storage(&self) {
        self.storage.make_room().await;
        self.room.set(self.storage.room().await);
        self.say(&library::stored(self.room.get()));
    }

    /// Waits until something is told.
    async fn told(&self) {
        let mut first = true;
        poll_fn(|context| {
            if !std::mem::take(&mut first) {
                return Poll::Ready(());
            }
            self.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    async fn serve(self: &Rc<Self>) {
        if let Err(problem) = self.storage.open().await {
            self.obstacle(
                ObstacleKind::NoStorage,
                &format!("nothing that is trained here is kept: {problem}"),
                "close other tabs of this page, or leave private browsing; export before you leave",
            );
        }
        self.room.set(self.storage.room().await);
        self.start_pulse();
        match open().await {
            Ok(device) => self.ready(device),
            Err((kind, text, hint)) => self.obstacle(kind, &text, hint),
        }
        loop {
            let Some(ask) = self.next() else {
                self.told().await;
                continue;
            };
            match ask {
                Ask::Start { run, config, resume, less } => {
                    self.train(run, config, resume, less).await;
                }
                Ask::Sample { path, prompt, tokens, temperature, top_k, seed } => {
                    let options = SampleOptions { temperature, top_k, seed };
                    if let Err(error) = self.sample(&path, &prompt, tokens, options).await {
                        self.fail(&error, error.hint());
                    }
                }
                _ => {}
            }
        }
    }

    fn next(&self) -> Option<Ask> {
        self.inbox.borrow_mut().pop_front()
    }

    fn ready(&self, device: OpenDevice) {
        let software = device.info.kind == Kind::Software;
        let limits = Limits {
            budget: None,
            largest_tensor: device.info.max_binding,
            pools: true,
            cube: false,
            memory: None,
        };
        let line = device.info.line();
        self.training.watch(device.watchdog.clone());
        self.device.replace(Some(device));
        self.say(&Reply::Ready { device: line, limits, software, storage: self.room.get() });
        if software {
            self.obstacle(
                ObstacleKind::SoftwareAdapter,
                "the browser computes on the processor: training works, slowly",
                "use a machine with a graphics card; on Linux, Chrome needs --enable-features=Vulkan",
            );
        }
    }

    /// One run from start to end.
    async fn train(
        self: &Rc<Self>,
        run: String,
        config: Option<Box<Config>>,
        resume: bool,
        less: Option<Plan>,
    ) {
        self.training.set_run(Some(run.clone()));
        self.commands.borrow_mut().clear();
        let result = self.session(&run, config, resume, less).await;
        if let Err(error) = result {
            let cause = match &error {
                TrainError::Device(error) => Some(cause(error)),
                _ => None,
            };
            let (text, hint) = (error.to_string(), error.hint().to_string());
            let event = Box::new(Event::Error { text, hint, cause });
            self.say(&Reply::Event { run: run.clone(), event });
        }
        self.training.set_run(None);
        let device = self.device.borrow().clone();
        if let Some(device) = device {
            gpu::release_unused(&device.device);
        }
        self.say(&Reply::Ended { run });
        self.look_at_storage().await;
    }

    async fn session(
        self: &Rc<Self>,
        run: &str,
        config: Option<Box<Config>>,
        resume: bool,
        less: Option<Plan>,
    ) -> Result<(), TrainError> {
        let path = Path::new(run);
        let kept = || crate::catalogue::config(path).map(Box::new);
        let Some(config) = config.or_else(kept) else {
            return Err(TrainError::NoCheckpoint { path: path.to_path_buf() });
        };
        let config = fitted(*config, run, less);
        let device = self.open_device().await?;
        self.storage.make_room().await;
        let request = Request {
            config: config.clone(),
            run: path.into(),
            resume,
            mode: OpsMode::AUTO,
            elapsed: Duration::ZERO,
        };
        let setup = Setup::new(request, &device.info)?;
        self.check_quota(&config, &setup).await;
        let worker = self.clone();
        let named = run.to_string();
        let mut emit = |event: &Event| {
            let event = Box::new(event.clone());
            worker.say(&Reply::Event { run: named.clone(), event });
        };
        let mut session = Session::open(setup, device, &mut emit)?;
        let mut orders = Orders { worker: self, breathed: Instant::now(), turn: Turn::new() };
        session.run(&mut orders).await.map(|_| ())
    }

    async fn open_device(&self) -> Result<OpenDevice, TrainError> {
        if let Some(device) = self.device.borrow().clone() {
            return Ok(device);
        }
        let device = open().await.map_err(|(_, text, _)| DeviceError::Stopped { reason: text })?;
        self.ready(device.clone());
        Ok(device)
    }

    /// Two checkpoints must have room: a new one is written before an old one goes.
    async fn check_quota(&self, config: &Config, setup: &Setup) {
        let room = self.storage.room().await;
        self.room.set(room);
        let checkpoints = u64::from(config.keep_checkpoints.get()) + 1;
        let need = SAVED_BYTES * setup.parameters() * checkpoints;
        let have = room.quota.saturating_sub(room.used);
        if room.quota > 0 && have < need {
            let text = format!(
                "this run's checkpoints take {}, the browser has room for {}",
                bytes(need),
                bytes(have)
            );
            let hint = "remove runs that are no longer needed, or free room on the disk";
            self.obstacle(ObstacleKind::Quota, &text, hint);
        }
    }

    async fn sample(
        &self,
        path: &str,
        prompt: &str,
        tokens: u32,
        options: SampleOptions,
    ) -> Result<(), TrainError> {
        let source = ModelSource::open(Path::new(path))?;
        let none = || TrainError::Checkpoint {
            path: source.path.clone(),
            reason: "nothing says which tokens the model uses".into(),
        };
        let tokenizer = source.tokenizer.clone().ok_or_else(none)?;
        let ids = tokenizer.encode_prompt(prompt)?;
        if ids.is_empty() {
            self.fail("an empty prompt: there is nothing to continue", "type a character");
            return Ok(());
        }
        let device = self.open_device().await?;
        let model = source.model(&device.device)?;
        let mut sampler = Sampler::new(&model, &ids, options, OpsMode::AUTO);
        let (mut written, mut told) = (Vec::new(), Instant::now());
        for number in 1..=tokens {
            written.push(sampler.next_token().await);
            let done = number == tokens;
            if done || told.elapsed() >= Duration::from_millis(100) {
                told = Instant::now();
                let text = tokenizer.decode(&written);
                self.say(&Reply::Sampled { path: path.into(), text, done });
            }
        }
        Ok(())
    }
}

/// What the run that is going on is told, and the turns that it leaves to others.
struct Orders<'a> {
    worker: &'a Worker,
    breathed: Instant,
    turn: Turn,
}

impl Commands for Orders<'_> {
    fn next(&mut self) -> Next {
        match self.worker.commands.borrow_mut().pop_front() {
            Some(command) => Next::Command(command),
            None => Next::None,
        }
    }

    async fn breathe(&mut self) {
        if self.breathed.elapsed() >= BREATH {
            self.turn.pass().await;
            self.worker.storage.make_room().await;
            self.breathed = Instant::now();
        }
    }

    async fn idle(&mut self) {
        self.worker.told().await;
    }
}

/// The configuration as it runs here.
fn fitted(config: Config, run: &str, less: Option<Plan>) -> Config {
    let mut config = Config { out_dir: run.to_string(), ..config };
    if !matches!(config.vram_budget, Budget::Bytes(_) | Budget::Unlimited) {
        config.vram_budget = Budget::Bytes(super::messages::DEFAULT_BUDGET);
    }
    if let Some(plan) = less {
        config.micro_batch = plan.micro_batch as u32;
        if plan.micro_batch == 1 {
            config.loss_chunk = plan.loss_chunk as u32;
        }
        if plan.grad_checkpoint {
            config.grad_checkpoint = GradCheckpoint::True;
        }
    }
    config
}

fn cause(error: &DeviceError) -> Cause {
    match error {
        DeviceError::OutOfMemory { .. } => Cause::OutOfMemory,
        _ => Cause::DeviceLost,
    }
}

/// The device that the browser gives, or what is in the way, with what to do.
async fn open() -> Result<OpenDevice, (ObstacleKind, String, &'static str)> {
    if !super::is_secure() {
        return Err((
            ObstacleKind::InsecureOrigin,
            "browsers give no graphics device to a page that came by plain HTTP".into(),
            "open the page by HTTPS, or from this machine as http://localhost",
        ));
    }
    if !super::has_webgpu() {
        return Err((
            ObstacleKind::NoWebGpu,
            "this browser has no WebGPU".into(),
            "use Chrome, Edge, Firefox or Safari of 2026 or later, or wgpt on the desktop",
        ));
    }
    let Some(found) = gpu::select_in_browser().await else {
        return Err((
            ObstacleKind::NoAdapter,
            "the browser has WebGPU, but gives no graphics adapter".into(),
            "update the graphics driver; on Linux start Chrome with --enable-unsafe-webgpu \
             --enable-features=Vulkan; chrome://gpu says why",
        ));
    };
    found.open_async().await.map_err(|error| match error {
        DeviceError::TooSmall { .. } => (
            ObstacleKind::LimitsTooSmall,
            error.to_string(),
            "use another browser or machine, or wgpt on the desktop",
        ),
        error => {
            let hint = "update the graphics driver; chrome://gpu says more";
            (ObstacleKind::NoAdapter, error.to_string(), hint)
        }
    })
}
