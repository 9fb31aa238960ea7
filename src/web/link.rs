//! The page's end of the line to the worker that trains.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue};
use web_sys::{ErrorEvent, MessageEvent, Worker, WorkerOptions, WorkerType};

use super::messages::{Ask, ObstacleKind, Reply, WORKER_ATTRIBUTE};
use super::words;
use crate::protocol::{Cause, Event};
use crate::recovery::{Decision, Failed, Heard, Recovery};

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
    told: Failed,
    recovery: Recovery,
    /// Whether there is anything to continue from.
    saved: bool,
    heard: Heard,
    /// Whether another worker is about to begin, which has heard nothing yet.
    again: bool,
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
                    told: Failed::default(),
                    recovery: Recovery::default(),
                    saved: *resume,
                    heard: Heard::default(),
                    again: false,
                });
            }
            Ask::Tell { command } => {
                if let Some(run) = &mut end.run {
                    run.heard.take(command);
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
        run.told.text = format!("the trainer has said nothing for {SILENCE} seconds");
        run.told.hint = "close other pages that use the graphics card".into();
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
                Event::Error { text, hint, cause: cause @ Some(_) } => {
                    (run.told.text, run.told.hint) = (text.clone(), hint.clone());
                    run.told.cause = *cause;
                    return true;
                }
                event => {
                    if matches!(event, Event::Start { .. }) && std::mem::take(&mut run.again) {
                        again.extend(run.heard.again());
                    }
                    run.told.take(event);
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

    /// What is said, and asked of the next worker, after one has failed.
    fn after_failure(&mut self) {
        let Some(mut run) = self.run.take() else { return };
        let failed = std::mem::take(&mut run.told);
        let cause = failed.cause;
        if run.heard.stopping {
            self.say(&run.path, failed.event());
            return self.hear((Reply::Ended { run: run.path }, None));
        }
        let path = run.path.clone();
        match run.recovery.after(failed) {
            Decision::Again { event, less } => {
                let record = Ask::Record { run: path.clone(), event: Box::new(event.clone()) };
                self.say(&path, event);
                if let Ask::Start { resume, less: most, .. } = &mut run.ask {
                    *resume = run.saved;
                    *most = less.or(most.take());
                }
                self.send(&record, None);
                let again = run.ask.clone();
                self.send(&again, None);
                run.again = true;
                self.run = Some(run);
            }
            Decision::GiveUp { event } => {
                let record = Ask::Record { run: path.clone(), event: Box::new(event.clone()) };
                self.send(&record, None);
                let kind = match cause {
                    Some(Cause::OutOfMemory) => ObstacleKind::OutOfMemory,
                    _ => ObstacleKind::DeviceLost,
                };
                if let Event::Error { text, hint, .. } = &event {
                    let (text, hint) = (text.clone(), hint.clone());
                    self.hear((Reply::Obstacle { kind, text, hint }, None));
                }
                self.say(&path, event);
                self.hear((Reply::Ended { run: path }, None));
            }
        }
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
            Some(run) if run.told.text.is_empty() => {
                (run.told.text, run.told.hint) = (text.clone(), hint.clone());
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
    end.borrow_mut().after_failure();
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
