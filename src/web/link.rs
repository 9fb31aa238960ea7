//! The page's end of the line to the worker that trains.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};

use super::messages::{Ask, ObstacleKind, Reply, WORKER_ATTRIBUTE};
use super::words;
use crate::protocol::{Cause, Command, Event, StopReason};
use crate::recovery::{AppliedCommands, Decision, Recovery, TrainerFailure};

/// A worker that is kept going: when its device fails, another takes its place, and the run goes on
/// from its last checkpoint.
pub struct Link(Rc<RefCell<End>>);

/// A message and its bytes.
type Letter = (Reply, Option<Vec<u8>>);

struct End {
    worker: Option<Running>,
    /// What is asked before the worker has said anything.
    waiting: Vec<(Ask, Option<Vec<u8>>)>,
    heard: VecDeque<Letter>,
    run: Option<Run>,
    /// Seconds without a word from the worker, as far as this page was awake to count them.
    silent: u32,
    /// Failures so far: a timer of an earlier one restarts nothing.
    failures: u64,
    /// When they were counted last, in milliseconds.
    counted: f64,
    wake: Rc<dyn Fn()>,
}

/// A worker, and what the browser calls when it says something.
struct Running {
    worker: Worker,
    /// Whether it listens.
    listens: bool,
    _said: Closure<dyn FnMut(MessageEvent)>,
    _failed: Closure<dyn FnMut(ErrorEvent)>,
}

/// The run that is going on.
struct Run {
    path: String,
    /// What it was begun with.
    ask: Ask,
    failure: TrainerFailure,
    recovery: Recovery,
    /// Whether there is anything to continue from.
    saved: bool,
    applied: AppliedCommands,
    /// True until the next worker has started after a failure: it is sent `applied` then.
    restarting: bool,
    /// True during a wait before a restart.
    waiting: bool,
}

/// Seconds of silence after which a worker that trains counts as hung: it has a pulse of one second.
const SILENCE: u32 = 60;

impl Link {
    /// Starts a worker. `wake` is called when there is something to [`take`](Self::take).
    pub fn new(wake: impl Fn() + 'static) -> Self {
        let end = End {
            worker: None,
            waiting: Vec::new(),
            heard: VecDeque::new(),
            run: None,
            silent: 0,
            failures: 0,
            counted: 0.0,
            wake: Rc::new(wake),
        };
        let link = Self(Rc::new(RefCell::new(end)));
        begin(&link.0);
        link
    }

    /// Asks the worker; it answers when it comes to it.
    pub fn ask(&mut self, ask: &Ask) {
        self.ask_with(ask, None);
    }

    /// Asks the worker, and gives it bytes: see [`Ask::Import`].
    pub fn ask_with(&mut self, ask: &Ask, bytes: Option<&[u8]>) {
        let mut end = self.0.borrow_mut();
        match ask {
            Ask::Start { run, resume, .. } => {
                ask_for_persistence();
                end.run = Some(Run {
                    path: run.clone(),
                    ask: ask.clone(),
                    failure: TrainerFailure::default(),
                    recovery: Recovery::default(),
                    saved: *resume,
                    applied: AppliedCommands::default(),
                    restarting: false,
                    waiting: false,
                });
            }
            Ask::Tell { command } => {
                if let Some(run) = &mut end.run {
                    run.applied.apply(command);
                    if run.waiting {
                        // Nothing trains: the next worker is sent what it missed.
                        return if *command == Command::Stop {
                            end.stop_waiting()
                        };
                    }
                }
            }
            _ => {}
        }
        end.send(ask, bytes);
    }

    /// What the worker said since the last call, with the bytes of what has some.
    /// A worker that trains and has been silent for too long is replaced.
    pub fn take(&mut self) -> Vec<(Reply, Option<Vec<u8>>)> {
        let hangs = self.0.borrow_mut().hangs();
        if hangs {
            replace(&self.0);
        }
        self.0.borrow_mut().heard.drain(..).collect()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(running) = self.0.borrow_mut().worker.take() {
            running.worker.terminate();
        }
    }
}

impl End {
    fn send(&mut self, ask: &Ask, bytes: Option<&[u8]>) {
        match &self.worker {
            Some(running) if running.listens => {
                let (message, transfer) = super::written(ask, bytes);
                // A worker that is gone is replaced when the browser says so.
                let _ = running.worker.post_message_with_transfer(&message, &transfer);
            }
            _ => self.waiting.push((ask.clone(), bytes.map(<[u8]>::to_vec))),
        }
    }

    /// Counts a second of silence; gives whether it is one too many.
    fn hangs(&mut self) -> bool {
        let now = js_sys::Date::now();
        let Some(run) = self.run.as_mut().filter(|_| now - self.counted >= 1000.0) else {
            return false;
        };
        (self.counted, self.silent) = (now, self.silent + 1);
        if self.silent < SILENCE {
            return false;
        }
        self.silent = 0;
        run.failure.text = format!("the trainer has not answered for {SILENCE} seconds");
        run.failure.hint = "close other pages that use the graphics card".into();
        true
    }

    fn hear(&mut self, letter: Letter) {
        self.heard.push_back(letter);
        (self.wake)();
    }

    fn say(&mut self, run: &str, event: Event) {
        let (run, event) = (run.to_string(), Box::new(event));
        self.hear((Reply::Event { run, event }, None));
    }

    /// Takes in what the worker says; gives whether another is to take its place.
    fn take(&mut self, letter: Letter) -> bool {
        self.silent = 0;
        if let Some(running) = self.worker.as_mut().filter(|running| !running.listens) {
            running.listens = true;
            for (ask, bytes) in std::mem::take(&mut self.waiting) {
                self.send(&ask, bytes.as_deref());
            }
        }
        let mut again = Vec::new();
        match (&letter.0, &mut self.run) {
            (Reply::Pulse, _) => return false,
            (Reply::Event { event, run: path }, Some(run)) if *path == run.path => match &**event {
                event @ Event::Error { cause: Some(_), .. } => {
                    run.failure.observe(event);
                    return true;
                }
                event => {
                    if matches!(event, Event::Start { .. }) && std::mem::take(&mut run.restarting) {
                        again.extend(run.applied.replay());
                    }
                    run.failure.observe(event);
                    run.saved |= matches!(event, Event::Checkpoint { .. });
                }
            },
            (Reply::Ended { run: path }, Some(run)) if *path == run.path => self.run = None,
            _ => {}
        }
        for command in again {
            self.send(&Ask::Tell { command }, None);
        }
        self.hear(letter);
        false
    }

    /// Decides what follows the failure of a worker; returns the time until
    /// [`restart`](Self::restart), if the run is to be restarted.
    fn after_failure(&mut self) -> Option<Duration> {
        let mut run = self.run.take()?;
        self.failures += 1;
        let path = run.path.clone();
        let failure = std::mem::take(&mut run.failure);
        let cause = failure.cause;
        if run.applied.is_stopping() {
            self.say(&path, failure.into_event());
            self.hear((Reply::Ended { run: path }, None));
            return None;
        }
        match run.recovery.decide(failure) {
            Decision::Restart { events, delay, plan } => {
                for event in events {
                    self.say_and_record(&path, event);
                }
                if let Ask::Start { resume, less, .. } = &mut run.ask {
                    *resume = run.saved;
                    *less = plan.or(less.take());
                }
                run.waiting = true;
                self.run = Some(run);
                Some(delay)
            }
            Decision::GiveUp { error, .. } => {
                let kind = match cause {
                    Some(Cause::OutOfMemory) => ObstacleKind::OutOfMemory,
                    Some(Cause::Unavailable) => ObstacleKind::NoAdapter,
                    _ => ObstacleKind::DeviceLost,
                };
                if let Event::Error { text, hint, .. } = &error {
                    let (text, hint) = (text.clone(), hint.clone());
                    self.hear((Reply::Obstacle { kind, text, hint }, None));
                }
                self.say_and_record(&path, error);
                self.hear((Reply::Ended { run: path }, None));
                None
            }
        }
    }

    /// Has the new worker continue the run.
    fn restart(&mut self) {
        let Some(run) = self.run.as_mut().filter(|run| run.waiting) else { return };
        (run.waiting, run.restarting) = (false, true);
        let ask = run.ask.clone();
        self.send(&ask, None);
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
        self.say_and_record(&run.path, done);
        self.hear((Reply::Ended { run: run.path }, None));
    }

    fn say_and_record(&mut self, run: &str, event: Event) {
        self.send(&Ask::Record { run: run.into(), event: Box::new(event.clone()) }, None);
        self.say(run, event);
    }
}

/// Starts a worker in the place of the one before.
fn begin(end: &Rc<RefCell<End>>) {
    let former = end.borrow_mut().worker.take();
    if let Some(former) = &former {
        // What it has said and nobody has heard yet is for closures that are about to go.
        former.worker.set_onmessage(None);
        former.worker.set_onerror(None);
        former.worker.terminate();
    }
    if let Err(error) = try_begin(end) {
        let (text, hint) = (format!("the trainer did not start: {}", words(&error)), String::new());
        end.borrow_mut().hear((Reply::Failed { text, hint }, None));
    }
    if let Some(former) = former {
        // One of its closures may be what calls this: they go in a later turn.
        wasm_bindgen_futures::spawn_local(async move { drop(former) });
    }
}

fn try_begin(end: &Rc<RefCell<End>>) -> Result<(), JsValue> {
    let page = web_sys::window().and_then(|window| window.document());
    let body = page.and_then(|page| page.body()).ok_or("the page has no body")?;
    let script = body.get_attribute(WORKER_ATTRIBUTE).ok_or("the page names no worker")?;
    let options = WorkerOptions::new();
    options.set_type(WorkerType::Module);
    let worker = Worker::new_with_options(&script, &options)?;
    let ears = end.clone();
    let said = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        let Some(letter) = super::read::<Reply>(&event.data()) else { return };
        let failed = ears.borrow_mut().take(letter);
        if failed {
            replace(&ears);
        }
    });
    let ears = end.clone();
    let failed = Closure::<dyn FnMut(ErrorEvent)>::new(move |event: ErrorEvent| {
        let text = format!("the trainer ended by a fault of its own: {}", event.message());
        let hint = "the browser's console may say more".to_string();
        let mut end = ears.borrow_mut();
        let training = match &mut end.run {
            // A panic has said more already.
            Some(run) if run.failure.text.is_empty() => {
                (run.failure.text, run.failure.hint) = (text.clone(), hint.clone());
                true
            }
            run => run.is_some(),
        };
        let lives = end.worker.as_ref().is_some_and(|running| running.listens);
        if !training {
            end.hear((Reply::Failed { text, hint }, None));
        }
        drop(end);
        // What never came up would not come up again.
        if lives {
            replace(&ears);
        }
    });
    worker.set_onmessage(Some(said.as_ref().unchecked_ref()));
    worker.set_onerror(Some(failed.as_ref().unchecked_ref()));
    let running = Running { worker, listens: false, _said: said, _failed: failed };
    end.borrow_mut().worker = Some(running);
    Ok(())
}

fn replace(end: &Rc<RefCell<End>>) {
    begin(end);
    let Some(delay) = end.borrow_mut().after_failure() else { return };
    if delay.is_zero() {
        return end.borrow_mut().restart();
    }
    let failure = end.borrow().failures;
    let end = end.clone();
    wasm_bindgen_futures::spawn_local(async move {
        sleep(delay).await;
        let mut end = end.borrow_mut();
        if end.failures == failure {
            end.restart();
        }
    });
}

async fn sleep(delay: Duration) {
    let milliseconds = i32::try_from(delay.as_millis()).unwrap_or(i32::MAX);
    let timer = js_sys::Promise::new(&mut |resolve, _| {
        if let Some(window) = web_sys::window() {
            let _ = window
                .set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, milliseconds);
        }
    });
    let _ = wasm_bindgen_futures::JsFuture::from(timer).await;
}

/// Asks that what is stored stays until somebody removes it. Browsers decide without a word, or ask.
fn ask_for_persistence() {
    if let Some(window) = web_sys::window() {
        let storage = window.navigator().storage();
        if !storage.is_undefined() {
            // Without it the storage is cleared when the disk is full, which the page says.
            let _ = storage.persist();
        }
    }
}
