//! The page's connection to its worker. A worker whose device fails is replaced, and the run that
//! it trained continues from its last checkpoint, as the [`Supervisor`] decides.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};
use web_time::Instant;

use crate::protocol::{
    Command, Event, Exit, FromWorker, Job, MESSAGES_VERSION, Obstacle, Reply, RunEnd, StartRun,
    ToWorker, Topic,
};
use crate::web;
use crate::worker::supervisor::{Supervisor, Transport};

/// The attribute of `<body>` that names the worker's script.
const WORKER_ATTRIBUTE: &str = "data-worker";

/// Seconds without a message after which a worker that trains is replaced: its heartbeat comes
/// every second.
const MAX_SILENCE: u32 = 60;

/// The shortest wait that timers of browsers have.
const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// A connection to the worker, as long as the page lives.
#[derive(Clone)]
pub(super) struct Connection {
    link: Link,
    state: Rc<RefCell<PageState>>,
}

struct PageState {
    replies: VecDeque<Reply>,
    events: VecDeque<Event>,
    run: Option<Supervisor<Link>>,
    /// When it was started.
    began: Instant,
    /// Seconds without a message, as far as the page was awake to count them.
    silence: u32,
    /// When they were counted last, in milliseconds.
    counted: f64,
    wake: Rc<dyn Fn()>,
}

/// The worker of the page, whichever it is at present.
#[derive(Clone, Default)]
struct Link(Rc<RefCell<LinkState>>);

#[derive(Default)]
struct LinkState {
    worker: Option<RunningWorker>,
    /// Messages for a worker that takes none yet.
    pending: Vec<ToWorker>,
}

/// A worker, and the functions that the browser calls for its messages and errors.
struct RunningWorker {
    worker: Worker,
    /// True once it takes messages.
    is_ready: bool,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

impl Link {
    /// Sends a message, as soon as the worker takes messages.
    fn post(&self, message: ToWorker) {
        let mut state = self.0.borrow_mut();
        match &state.worker {
            Some(running) if running.is_ready => {
                let (message, transfer) = web::pack(message);
                // A worker that is gone is replaced when the browser reports it.
                let _ = running.worker.post_message_with_transfer(&message, &transfer);
            }
            _ => state.pending.push(message),
        }
    }

    /// Notes that the worker takes messages.
    fn set_ready(&self) {
        let mut state = self.0.borrow_mut();
        if let Some(running) = &mut state.worker {
            running.is_ready = true;
        }
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        pending.into_iter().for_each(|message| self.post(message));
    }

    fn is_ready(&self) -> bool {
        self.0.borrow().worker.as_ref().is_some_and(|running| running.is_ready)
    }
}

/// The page replaces a worker as soon as it fails: it answers requests, too.
impl Transport for Link {
    fn start(&mut self, start: &StartRun) -> io::Result<()> {
        self.post(ToWorker::Train(Box::new(start.clone())));
        Ok(())
    }

    fn send(&mut self, command: &Command) {
        self.post(ToWorker::Command(command.clone()));
    }

    fn record(&mut self, run: &Path, event: &Event) {
        let (run, event) = (run.to_path_buf(), Box::new(event.clone()));
        self.post(ToWorker::Record { run, event });
    }
}

impl Connection {
    /// Starts a worker. `wake` is called when replies or events arrive.
    pub fn new(wake: impl Fn() + 'static) -> Self {
        let state = PageState {
            replies: VecDeque::new(),
            events: VecDeque::new(),
            run: None,
            began: Instant::now(),
            silence: 0,
            counted: 0.0,
            wake: Rc::new(wake),
        };
        let connection = Self { link: Link::default(), state: Rc::new(RefCell::new(state)) };
        connection.start_worker();
        connection
    }

    pub fn send(&self, message: ToWorker) {
        self.link.post(message);
    }

    /// Has the worker train a run.
    ///
    /// # Errors
    /// Never: a worker that fails is replaced.
    pub fn start(&self, start: StartRun) -> io::Result<()> {
        request_persistence();
        let mut state = self.state.borrow_mut();
        state.events.clear();
        state.began = Instant::now();
        state.run = Some(Supervisor::start(self.link.clone(), start, false)?);
        Ok(())
    }

    /// Passes a command to the run that trains.
    pub fn send_command(&self, command: &Command) {
        self.supervise(|run, now, emit| run.send(command, now, emit));
    }

    /// Returns the replies since the last call. Replaces a worker that trains and hangs.
    pub fn replies(&self) -> VecDeque<Reply> {
        if self.state.borrow_mut().hangs() {
            let text = format!("the trainer has not answered for {MAX_SILENCE} seconds");
            self.supervise(|run, _, _| {
                run.note_failure(text, "close other pages that use the GPU");
            });
            self.replace_worker();
        }
        std::mem::take(&mut self.state.borrow_mut().replies)
    }

    /// Returns the events of the run since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.state.borrow_mut().events.drain(..).collect()
    }

    /// Returns true if no run trains and all events were returned.
    pub fn has_ended(&self) -> bool {
        let state = self.state.borrow();
        state.run.is_none() && state.events.is_empty()
    }

    /// Tells the supervisor of the run, if one trains, what has happened.
    fn supervise(
        &self,
        tell: impl FnOnce(&mut Supervisor<Link>, Duration, &mut dyn FnMut(&Event)),
    ) {
        let mut state = self.state.borrow_mut();
        let PageState { run, events, replies, began, .. } = &mut *state;
        let Some(supervisor) = run else { return };
        tell(supervisor, began.elapsed(), &mut |event| events.push_back(event.clone()));
        if let Some(code) = supervisor.exit_code() {
            *run = None;
            if let (
                Some(Exit::DeviceFailed | Exit::NoDevice),
                Some(Event::Error { text, hint, .. }),
            ) = (Exit::of(code), events.back())
            {
                let (text, hint) = (text.clone(), hint.clone());
                let obstacle = Obstacle { topic: Topic::Device, can_train: false, text, hint };
                replies.push_back(Reply::Obstacle(obstacle));
            }
        }
        (state.wake)();
    }

    /// Takes a message of the worker.
    fn receive(&self, message: FromWorker) {
        self.state.borrow_mut().silence = 0;
        match message {
            FromWorker::Heartbeat => {}
            FromWorker::Ready { version: MESSAGES_VERSION } => self.link.set_ready(),
            FromWorker::Ready { .. } => {
                self.fail(
                    "the worker is of another version than the page".into(),
                    "reload the page",
                );
            }
            FromWorker::Reply(reply) => {
                let mut state = self.state.borrow_mut();
                state.replies.push_back(reply);
                (state.wake)();
            }
            FromWorker::Event(_) => {
                self.supervise(|run, _, emit| run.receive(message, emit));
            }
            FromWorker::Ended(end) => {
                let has_device_failed =
                    matches!(&end, RunEnd::Failed(failure) if failure.cause.is_some());
                self.supervise(|run, _, emit| run.receive(FromWorker::Ended(end), emit));
                if has_device_failed {
                    self.replace_worker();
                } else {
                    self.supervise(|run, now, emit| run.worker_ended(Some(0), now, emit));
                }
            }
        }
    }

    /// Takes an error that ended the worker.
    fn receive_error(&self, text: String) {
        let hint = "the browser's console may show more";
        if self.state.borrow().run.is_some() {
            // A panic has reported more already.
            self.supervise(|run, _, _| run.note_failure(text, hint));
        } else {
            self.fail(text, hint);
        }
        // A worker that never became ready would not do so again.
        if self.link.is_ready() {
            self.replace_worker();
        }
    }

    /// Starts a worker in place of the former one.
    fn start_worker(&self) {
        let former = self.link.0.borrow_mut().worker.take();
        if let Some(former) = &former {
            // Its last messages are for functions that are about to be dropped.
            former.worker.set_onmessage(None);
            former.worker.set_onerror(None);
            former.worker.terminate();
        }
        if let Err(error) = self.try_start_worker() {
            let text = format!("the worker did not start: {}", web::error_text(&error));
            self.fail(text, "reload the page");
        }
        if let Some(former) = former {
            // One of its functions may be the caller of this one: they are dropped after it
            // returns.
            wasm_bindgen_futures::spawn_local(async move { drop(former) });
        }
    }

    fn try_start_worker(&self) -> Result<(), JsValue> {
        let body = web::document()?.body().ok_or("the page has no body")?;
        let script = body.get_attribute(WORKER_ATTRIBUTE).ok_or("the page names no worker")?;
        let options = WorkerOptions::new();
        options.set_type(WorkerType::Module);
        let worker = Worker::new_with_options(&script, &options)?;
        let connection = self.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            if let Some(message) = web::unpack::<FromWorker>(&event.data()) {
                connection.receive(message);
            }
        });
        let connection = self.clone();
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            connection.receive_error(format!("the worker failed: {}", event.message()));
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        self.link.0.borrow_mut().worker = Some(RunningWorker {
            worker,
            is_ready: false,
            _on_message: on_message,
            _on_error: on_error,
        });
        Ok(())
    }

    /// Starts another worker, which continues the run after the delay that the supervisor asks for.
    fn replace_worker(&self) {
        self.start_worker();
        self.supervise(|run, now, emit| run.worker_ended(None, now, emit));
        let connection = self.clone();
        wasm_bindgen_futures::spawn_local(async move {
            // After another failure in the meantime, a later time is due. And browsers round their clock,
            // so that a timer may seem to end early.
            while let Some(delay) = connection.tick() {
                web::sleep(delay.max(SHORTEST_DELAY)).await;
            }
        });
    }

    /// Has the new worker continue the run if its time has come, else returns the time until then.
    fn tick(&self) -> Option<Duration> {
        let mut delay = None;
        self.supervise(|run, now, _| {
            // The channel takes every message.
            drop(run.tick(now));
            delay = run.restart_at().map(|at| at.saturating_sub(now));
        });
        delay
    }

    fn fail(&self, text: String, hint: &str) {
        let mut state = self.state.borrow_mut();
        state.replies.push_back(Reply::Failed { job: Job::Other, text, hint: hint.to_string() });
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
        (self.counted, self.silence) = (now, self.silence + 1);
        if self.silence < MAX_SILENCE {
            return false;
        }
        self.silence = 0;
        true
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
