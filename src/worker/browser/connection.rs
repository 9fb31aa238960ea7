//! The page's connection to its worker. A worker whose device fails is replaced, and the run that
//! it trained continues from its last checkpoint.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};

use crate::protocol::{
    AppliedCommands, Command, Decision, Event, FromWorker, Job, Obstacle, Recovery, Reply,
    StartRun, StopReason, ToWorker, Topic, TrainerFailure,
};
use crate::web;

/// The attribute of `<body>` that names the worker's script.
const WORKER_ATTRIBUTE: &str = "data-worker";

/// Seconds without a message after which a worker that trains is replaced: its heartbeat comes
/// every second.
const MAX_SILENCE: u32 = 60;

/// A connection to the worker, as long as the page lives.
#[derive(Clone)]
pub(super) struct Connection(Rc<RefCell<State>>);

struct State {
    worker: Option<RunningWorker>,
    /// Messages for a worker that takes none yet.
    pending: Vec<ToWorker>,
    replies: VecDeque<Reply>,
    events: VecDeque<Event>,
    run: Option<Run>,
    /// Failures of workers so far.
    failures: u32,
    /// Seconds without a message, as far as the page was awake to count them.
    silence: u32,
    /// When they were counted last, in milliseconds.
    counted: f64,
    wake: Rc<dyn Fn()>,
}

/// A worker, and the functions that the browser calls for its messages and errors.
struct RunningWorker {
    worker: Worker,
    /// True once it takes messages.
    is_ready: bool,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_error: Closure<dyn FnMut(ErrorEvent)>,
}

/// The run that trains.
struct Run {
    start: StartRun,
    /// The events of the present worker, for when it fails.
    failure: TrainerFailure,
    recovery: Recovery,
    commands: AppliedCommands,
    /// True once the run has a checkpoint.
    has_checkpoint: bool,
    /// True while the run waits for its device after a failure.
    is_waiting: bool,
    /// True from the restart after a failure until the new worker begins to train.
    is_restarting: bool,
}

impl Connection {
    /// Starts a worker. `wake` is called when replies or events arrive.
    pub fn new(wake: impl Fn() + 'static) -> Self {
        let state = State {
            worker: None,
            pending: Vec::new(),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            run: None,
            failures: 0,
            silence: 0,
            counted: 0.0,
            wake: Rc::new(wake),
        };
        let connection = Self(Rc::new(RefCell::new(state)));
        connection.start_worker();
        connection
    }

    /// Sends a message.
    pub fn send(&self, message: ToWorker) {
        self.0.borrow_mut().send(message);
    }

    /// Has the worker train a run.
    pub fn start(&self, start: StartRun) {
        request_persistence();
        let mut state = self.0.borrow_mut();
        state.events.clear();
        state.run = Some(Run {
            has_checkpoint: start.resume,
            start: start.clone(),
            failure: TrainerFailure::default(),
            recovery: Recovery::default(),
            commands: AppliedCommands::default(),
            is_waiting: false,
            is_restarting: false,
        });
        state.send(ToWorker::Start(start));
    }

    /// Passes a command to the run that trains. A run that waits for its device only stops; other
    /// commands reach its next worker.
    pub fn send_command(&self, command: Command) {
        let mut state = self.0.borrow_mut();
        let Some(run) = &mut state.run else { return };
        run.commands.apply(&command);
        match run.is_waiting {
            true if run.commands.is_stopping() => state.stop_waiting(),
            true => {}
            false => state.send(ToWorker::Command(command)),
        }
    }

    /// Returns the replies since the last call. Replaces a worker that trains and hangs.
    pub fn replies(&self) -> VecDeque<Reply> {
        let hangs = self.0.borrow_mut().hangs();
        if hangs {
            self.replace_worker();
        }
        std::mem::take(&mut self.0.borrow_mut().replies)
    }

    /// Returns the events of the run since the last call.
    pub fn events(&self) -> Vec<Event> {
        self.0.borrow_mut().events.drain(..).collect()
    }

    /// Returns true if no run trains and all events were returned.
    pub fn has_ended(&self) -> bool {
        let state = self.0.borrow();
        state.run.is_none() && state.events.is_empty()
    }

    /// Starts a worker in place of the former one.
    fn start_worker(&self) {
        let former = self.0.borrow_mut().worker.take();
        if let Some(former) = &former {
            // Its last messages are for functions that are about to be dropped.
            former.worker.set_onmessage(None);
            former.worker.set_onerror(None);
            former.worker.terminate();
        }
        if let Err(error) = self.try_start_worker() {
            let text = format!("the worker did not start: {}", web::error_text(&error));
            self.0.borrow_mut().fail(text, "reload the page");
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
            let Some(message) = web::unpack::<FromWorker>(&event.data()) else { return };
            let failed = connection.0.borrow_mut().receive(message);
            if failed {
                connection.replace_worker();
            }
        });
        let connection = self.clone();
        let on_error = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
            let text = format!("the worker failed: {}", event.message());
            let was_ready = connection.0.borrow_mut().note_error(text);
            // A worker that never became ready would not do so again.
            if was_ready {
                connection.replace_worker();
            }
        });
        worker.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        worker.set_onerror(Some(on_error.as_ref().unchecked_ref()));
        self.0.borrow_mut().worker = Some(RunningWorker {
            worker,
            is_ready: false,
            _on_message: on_message,
            _on_error: on_error,
        });
        Ok(())
    }

    /// Starts another worker, which continues the run after the delay that recovery asks for.
    fn replace_worker(&self) {
        self.start_worker();
        let Some(delay) = self.0.borrow_mut().after_failure() else { return };
        if delay.is_zero() {
            return self.0.borrow_mut().restart();
        }
        let failures = self.0.borrow().failures;
        let connection = self.clone();
        wasm_bindgen_futures::spawn_local(async move {
            web::sleep(delay).await;
            let mut state = connection.0.borrow_mut();
            // Another failure in the meantime has started another delay.
            if state.failures == failures {
                state.restart();
            }
        });
    }
}

impl State {
    fn send(&mut self, message: ToWorker) {
        match &self.worker {
            Some(running) if running.is_ready => {
                let (message, transfer) = web::pack(message);
                // A worker that is gone is replaced when the browser reports it.
                let _ = running.worker.post_message_with_transfer(&message, &transfer);
            }
            _ => self.pending.push(message),
        }
    }

    /// Takes a message of the worker. Returns true if its device has failed.
    fn receive(&mut self, message: FromWorker) -> bool {
        self.silence = 0;
        if let Some(running) = self.worker.as_mut().filter(|running| !running.is_ready) {
            running.is_ready = true;
            for message in std::mem::take(&mut self.pending) {
                self.send(message);
            }
        }
        match message {
            FromWorker::Heartbeat => return false,
            FromWorker::Reply(reply) => self.replies.push_back(reply),
            FromWorker::Event { run, event } => match &mut self.run {
                Some(known) if known.start.run == run => return self.receive_event(*event),
                _ => {}
            },
            FromWorker::Ended { run } => {
                if self.run.as_ref().is_some_and(|known| known.start.run == run) {
                    self.run = None;
                }
            }
        }
        (self.wake)();
        false
    }

    /// Takes an event of the run. Returns true if its device has failed.
    fn receive_event(&mut self, event: Event) -> bool {
        let Some(run) = &mut self.run else { return false };
        run.failure.observe(&event);
        if matches!(event, Event::Error { cause: Some(_), .. }) {
            return true;
        }
        run.has_checkpoint |= matches!(event, Event::Checkpoint { .. });
        let is_restarted =
            matches!(event, Event::Start { .. }) && std::mem::take(&mut run.is_restarting);
        let commands: Vec<Command> =
            if is_restarted { run.commands.replay().collect() } else { Vec::new() };
        for command in commands {
            self.send(ToWorker::Command(command));
        }
        self.emit(event);
        false
    }

    /// Notes an error that ended the worker. Returns true if the worker had taken messages.
    fn note_error(&mut self, text: String) -> bool {
        let hint = "the browser's console may show more";
        match &mut self.run {
            // A panic has reported more already.
            Some(run) if run.failure.text.is_empty() => {
                (run.failure.text, run.failure.hint) = (text, hint.into());
            }
            Some(_) => {}
            None => self.fail(text, hint),
        }
        self.worker.as_ref().is_some_and(|running| running.is_ready)
    }

    /// Counts a second of silence. Returns true if the worker hangs.
    fn hangs(&mut self) -> bool {
        let now = js_sys::Date::now();
        let Some(run) = self.run.as_mut().filter(|_| now - self.counted >= 1000.0) else {
            return false;
        };
        (self.counted, self.silence) = (now, self.silence + 1);
        if self.silence < MAX_SILENCE {
            return false;
        }
        self.silence = 0;
        run.failure.text = format!("the trainer has not answered for {MAX_SILENCE} seconds");
        run.failure.hint = "close other pages that use the GPU".into();
        true
    }

    /// Decides what follows the failure of a worker. Returns the time until
    /// [`restart`](Self::restart), if the run continues.
    fn after_failure(&mut self) -> Option<Duration> {
        let mut run = self.run.take()?;
        self.failures += 1;
        let failure = std::mem::take(&mut run.failure);
        if run.commands.is_stopping() {
            self.emit(failure.into_event());
            return None;
        }
        match run.recovery.decide(failure) {
            Decision::Restart { events, delay, plan } => {
                for event in events {
                    self.record(&run, event);
                }
                run.start.resume = run.has_checkpoint;
                run.start.max_plan = plan.or(run.start.max_plan.take());
                run.is_waiting = true;
                self.run = Some(run);
                Some(delay)
            }
            Decision::GiveUp { error, .. } => {
                if let Event::Error { text, hint, .. } = &error {
                    let (text, hint) = (text.clone(), hint.clone());
                    let (topic, can_train) = (Topic::Device, false);
                    let obstacle = Obstacle { topic, can_train, text, hint };
                    self.replies.push_back(Reply::Obstacle(obstacle));
                }
                self.record(&run, error);
                None
            }
        }
    }

    /// Has the new worker continue the run.
    fn restart(&mut self) {
        let Some(run) = self.run.as_mut().filter(|run| run.is_waiting) else { return };
        (run.is_waiting, run.is_restarting) = (false, true);
        let start = run.start.clone();
        self.send(ToWorker::Start(start));
    }

    /// Ends a run that waits for its device.
    fn stop_waiting(&mut self) {
        let Some(run) = self.run.take() else { return };
        let done = Event::Done {
            iter: run.recovery.furthest(),
            best_val_loss: None,
            seconds: 0.0,
            reason: StopReason::Stopped,
        };
        self.record(&run, done);
    }

    /// Emits an event of a run whose worker has ended, and has the next one record it.
    fn record(&mut self, run: &Run, event: Event) {
        let (run, recorded) = (run.start.run.clone(), Box::new(event.clone()));
        self.send(ToWorker::Record { run, event: recorded });
        self.emit(event);
    }

    fn emit(&mut self, event: Event) {
        self.events.push_back(event);
        (self.wake)();
    }

    fn fail(&mut self, text: String, hint: &str) {
        let (job, hint) = (Job::Other, hint.to_string());
        self.replies.push_back(Reply::Failed { job, text, hint });
        (self.wake)();
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
