//! The page as a client of its worker. If its device fails, the worker is replaced, and the run continues
//! from its last checkpoint, as the [`Supervisor`] decides.

use std::cell::RefCell;
use std::io;
use std::mem::take;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};
use web_time::Instant;

use crate::browser;
use crate::protocol::{
    Command, Event, Exit, Failure, FromWorker, MESSAGES_VERSION, Obstacle, Reply, Request,
    RequestKind, RunEnd, StartRun, ToWorker, Topic,
};
use crate::runs::Tail;
use crate::worker::supervisor::{ProcessEnd, Supervisor, Transport};
use crate::worker::{Ended, Trainer, trainer};

/// The attribute of `<body>` that names the worker's script.
const WORKER_ATTRIBUTE: &str = "data-worker";

/// Seconds without a message after which a worker that trains is replaced: its heartbeat comes
/// every second.
const MAX_SILENCE: u32 = 60;

/// The shortest wait that timers of browsers have.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// Sends requests to the service and takes its replies.
#[derive(Clone)]
pub(crate) struct Client {
    link: WorkerLink,
    state: Rc<RefCell<PageState>>,
}

struct PageState {
    replies: Vec<Reply>,
    /// The run, and when it was started.
    run: Option<(Supervisor<WorkerLink>, Instant)>,
    /// Seconds without a message while the page was awake.
    silence: u32,
    /// The time of the last count, in milliseconds.
    counted: f64,
    wake: Rc<dyn Fn()>,
}

/// The present worker of the page.
#[derive(Clone, Default)]
struct WorkerLink(Rc<RefCell<LinkState>>);

#[derive(Default)]
struct LinkState {
    worker: Option<Worker>,
    /// True once it takes messages.
    is_ready: bool,
    /// Messages for a worker that is not ready.
    pending: Vec<ToWorker>,
    /// Events of the run that were not taken yet.
    events: Vec<Event>,
}

impl WorkerLink {
    /// Sends a message, as soon as the worker takes messages.
    fn post(&self, message: ToWorker) {
        let mut state = self.0.borrow_mut();
        match &state.worker {
            Some(worker) if state.is_ready => {
                let (message, transfer) = browser::pack(message);
                // A worker that is gone is replaced when the browser reports it.
                let _ = worker.post_message_with_transfer(&message, &transfer);
            }
            _ => state.pending.push(message),
        }
    }

    fn set_ready(&self) {
        self.0.borrow_mut().is_ready = true;
        let pending = take(&mut self.0.borrow_mut().pending);
        pending.into_iter().for_each(|message| self.post(message));
    }
}

/// The page replaces a worker as soon as it fails: it answers requests, too.
impl Transport for WorkerLink {
    fn start(&mut self, start: &StartRun) -> io::Result<()> {
        self.post(ToWorker::Train(Box::new(start.clone())));
        Ok(())
    }

    fn send(&mut self, command: &Command) {
        self.post(ToWorker::Command(command.clone()));
    }

    fn record(&mut self, run: &Path, event: &Event) {
        let run = run.to_path_buf();
        let event = Box::new(event.clone());
        self.post(ToWorker::Record { run, event });
    }

    fn emit(&mut self, event: Event) {
        self.0.borrow_mut().events.push(event);
    }
}

struct WorkerRun(Client);

impl trainer::Connection for WorkerRun {
    fn send(&mut self, command: &Command) -> io::Result<()> {
        self.0.supervise(|run, now| run.send(command, now));
        Ok(())
    }

    fn receive(&mut self) -> (Vec<Event>, Option<Ended>) {
        let events = take(&mut self.0.link.0.borrow_mut().events);
        (events, self.0.state.borrow().run.is_none().then_some(Ended::Silent))
    }
}

impl Client {
    /// Starts a worker. `wake` is called when [`replies`](Self::replies) or events of the run arrive.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let state = PageState {
            replies: Vec::new(),
            run: None,
            silence: 0,
            counted: 0.0,
            wake: Rc::new(wake),
        };
        let client = Self { link: WorkerLink::default(), state: Rc::new(RefCell::new(state)) };
        client.start_worker();
        client
    }

    pub fn send(&mut self, request: Request) {
        self.link.post(ToWorker::Request(request));
    }

    /// Starts a run in the worker. It ends with the page in any case. A worker that fails is replaced.
    pub fn start(&mut self, start: StartRun, _stop_on_close: bool) -> io::Result<Trainer> {
        request_persistence();
        self.link.0.borrow_mut().events.clear();
        let run = start.run.clone();
        let supervisor = Supervisor::start(self.link.clone(), start, false)?;
        self.state.borrow_mut().run = Some((supervisor, Instant::now()));
        Ok(Trainer::new(run, true, WorkerRun(self.clone())))
    }

    /// Returns `None`: no other process has access to the storage of a page.
    pub fn follow(&self, _: &Path, _: Tail) -> Option<Trainer> {
        None
    }

    /// Returns the replies since the last call. Replaces a worker that trains and hangs.
    pub fn replies(&mut self) -> Vec<Reply> {
        if self.state.borrow_mut().hangs() {
            let text = format!("the trainer has not answered for {MAX_SILENCE} seconds");
            self.supervise(|run, _| note_failure(run, text, "close other pages that use the GPU"));
            self.replace_worker();
        }
        let replies = take(&mut self.state.borrow_mut().replies);
        replies.into_iter().map(save_zip).collect()
    }

    /// Reports to the supervisor of the run, if one trains.
    fn supervise(&self, tell: impl FnOnce(&mut Supervisor<WorkerLink>, Duration)) {
        let mut state = self.state.borrow_mut();
        let PageState { run, replies, .. } = &mut *state;
        let Some((supervisor, began)) = run else { return };
        tell(supervisor, began.elapsed());
        if let Some(code) = supervisor.exit_code {
            *run = None;
            let device_failed = [Exit::DeviceFailed as u8, Exit::NoDevice as u8].contains(&code);
            if device_failed && let Some(Event::Error(error)) = self.link.0.borrow().events.last() {
                let obstacle = Obstacle::new(Topic::Device, &error.text, &error.hint);
                replies.push(Reply::Obstacle(obstacle));
            }
        }
        (state.wake)();
    }

    fn receive(&self, message: FromWorker) {
        self.state.borrow_mut().silence = 0;
        match message {
            FromWorker::Heartbeat => {}
            FromWorker::Ready { version: MESSAGES_VERSION } => self.link.set_ready(),
            FromWorker::Ready { .. } => {
                self.fail(
                    "the worker and the page are different versions".into(),
                    "reload the page",
                );
            }
            FromWorker::Reply(reply) => {
                let mut state = self.state.borrow_mut();
                state.replies.push(reply);
                (state.wake)();
            }
            FromWorker::Event(_) | FromWorker::Selected { .. } => {
                self.supervise(|run, _| run.receive(message));
            }
            FromWorker::Ended(end) => {
                let has_device_failed =
                    matches!(&end, RunEnd::Failed(failure) if failure.cause.is_some());
                self.supervise(|run, _| run.receive(FromWorker::Ended(end)));
                if has_device_failed {
                    self.replace_worker();
                } else {
                    self.supervise(|run, now| run.worker_ended(ProcessEnd::Code(0), now));
                }
            }
        }
    }

    fn receive_error(&self, text: String) {
        let hint = "the browser's console may show more";
        if self.state.borrow().run.is_some() {
            // A panic has reported more already.
            self.supervise(|run, _| note_failure(run, text, hint));
        } else {
            self.fail(text, hint);
        }
        // A worker that never became ready would not do so again.
        if self.link.0.borrow().is_ready {
            self.replace_worker();
        }
    }

    fn start_worker(&self) {
        if let Some(former) = self.link.0.borrow_mut().worker.take() {
            former.set_onmessage(None);
            former.set_onerror(None);
            former.terminate();
        }
        if let Err(error) = self.try_start_worker() {
            let text = format!("the worker did not start: {}", browser::error_text(&error));
            self.fail(text, "reload the page");
        }
    }

    fn try_start_worker(&self) -> Result<(), JsValue> {
        let body = browser::document()?.body().ok_or("the page has no body")?;
        let script = body.get_attribute(WORKER_ATTRIBUTE).ok_or("the page names no worker")?;
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        let worker = Worker::new_with_options(&script, &options)?;
        let client = self.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            if let Some(message) = browser::unpack::<FromWorker>(&event.data()) {
                client.receive(message);
            }
        });
        let client = self.clone();
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            client.receive_error(format!("the worker failed: {}", event.message()));
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        // One of them may be the caller of this function. Workers are replaced so seldom that the closures
        // may outlast them.
        on_message.forget();
        on_error.forget();
        let mut link = self.link.0.borrow_mut();
        link.worker = Some(worker);
        link.is_ready = false;
        Ok(())
    }

    /// Starts another worker, which continues the run after the supervisor's delay.
    fn replace_worker(&self) {
        self.start_worker();
        self.supervise(|run, now| run.worker_ended(ProcessEnd::Killed, now));
        let client = self.clone();
        wasm_bindgen_futures::spawn_local(async move {
            // Another failure in the meantime sets a later time. And browsers round their clock, so a timer
            // may seem to end early.
            loop {
                let mut delay = None;
                client.supervise(|run, now| {
                    // The channel takes every message.
                    drop(run.tick(now));
                    delay = run.restart_at.map(|at| at.saturating_sub(now));
                });
                let Some(delay) = delay else { return };
                browser::sleep(delay.max(SHORTEST_DELAY)).await;
            }
        });
    }

    fn fail(&self, text: String, hint: &str) {
        let mut state = self.state.borrow_mut();
        state.replies.push(Reply::failed(RequestKind::Other, Failure::new(text, hint)));
        (state.wake)();
    }
}

impl PageState {
    /// Counts a second of silence. Returns true if a worker that trains hangs.
    fn hangs(&mut self) -> bool {
        let now = js_sys::Date::now();
        if self.run.is_none() || now - self.counted < 1000.0 {
            return false;
        }
        self.counted = now;
        self.silence = self.silence + 1;
        if self.silence < MAX_SILENCE {
            return false;
        }
        self.silence = 0;
        true
    }
}

/// Notes why the worker has failed, unless it has reported it.
fn note_failure(run: &mut Supervisor<WorkerLink>, text: String, hint: &str) {
    if !run.has_failed() {
        let failure = Failure { exit: Exit::DeviceFailed, ..Failure::new(text, hint) };
        run.receive(FromWorker::Ended(RunEnd::Failed(failure)));
    }
}

/// Requests that the browser keep the storage until the user clears it. Some browsers decide
/// without asking.
fn request_persistence() {
    if let Some(window) = web_sys::window() {
        let storage = window.navigator().storage();
        if !storage.is_undefined() {
            // Without it the browser may clear the storage when the disk is full; the window warns
            // of that.
            let _ = storage.persist();
        }
    }
}

fn save_zip(reply: Reply) -> Reply {
    let Reply::Exported { to, next, zip } = reply else { return reply };
    match browser::download(&to.display().to_string(), &zip) {
        Ok(()) => Reply::Exported { to, next, zip: Vec::new() },
        Err(error) => {
            let text = format!("{}: {}", to.display(), browser::error_text(&error));
            Reply::failed(RequestKind::Export, Failure::new(text, ""))
        }
    }
}
