//! The worker: one device, one run at a time, and the storage.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::Closure;
use web_sys::{DedicatedWorkerGlobalScope, MessageEvent};

use super::RUNS;
use super::device;
use super::storage::Slots;
use crate::doctor::DoctorReport;
use crate::gpu::{DeviceError, DeviceKind, OpenDevice, Watchdog};
use crate::ops::{KernelError, KernelShapes, OpsMode};
use crate::protocol::{
    Cause, Command, Exit, Failure, FromWorker, MESSAGES_VERSION, Obstacle, Reply, Request,
    RequestKind, RunEnd, SampleRequest, StartRun, ToWorker, Topic,
};
use crate::runs::{device_profile, record};
use crate::worker::answer::answer;
use crate::worker::data_requests::free_path;
use crate::worker::page_storage::{export_zip, import, stored};
use crate::{browser, disk, runs};

/// The time between two heartbeats, for the device's watchdog and for the page.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Answers the page's messages from now on.
pub(crate) fn serve() {
    let worker = Rc::<PageWorker>::default();
    worker.report_panics();
    let receiver = worker.clone();
    let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
        if let Some(message) = browser::unpack::<ToWorker>(&event.data()) {
            receiver.receive(message);
        }
    });
    scope().set_onmessage(Some(on_message.as_ref().unchecked_ref()));
    // It lasts as long as the worker.
    on_message.forget();
    wasm_bindgen_futures::spawn_local(async move { worker.run().await });
}

fn scope() -> DedicatedWorkerGlobalScope {
    js_sys::global().unchecked_into()
}

#[derive(Default)]
pub(super) struct PageWorker {
    /// Runs and samples that wait for the device.
    tasks: RefCell<VecDeque<DeviceTask>>,
    pub commands: RefCell<VecDeque<Command>>,
    waker: RefCell<Option<Waker>>,
    current: Arc<Mutex<Current>>,
    /// True once the page has stopped the text that is being generated.
    pub stop_sample: Cell<bool>,
    device: RefCell<Option<OpenDevice>>,
    /// The kernels that were tested, and the first wrong one of each.
    pub tested: RefCell<Vec<(KernelShapes, OpsMode, Option<KernelError>)>>,
    pub storage: Slots,
}

/// Work for the device.
enum DeviceTask {
    Train(StartRun),
    Sample(SampleRequest),
}

/// The state that the panic hook reads.
#[derive(Default)]
pub(super) struct Current {
    /// The run that trains.
    pub run: Option<PathBuf>,
    watchdog: Watchdog,
}

impl PageWorker {
    pub fn send(&self, message: FromWorker) {
        let (message, transfer) = browser::pack(message);
        // The page may be gone.
        let _ = scope().post_message_with_transfer(&message, &transfer);
    }

    pub fn reply(&self, reply: Reply) {
        self.send(FromWorker::Reply(reply));
    }

    pub fn fail(&self, job: RequestKind, failure: impl Into<Failure>) {
        self.reply(Reply::failed(job, failure.into()));
    }

    pub fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports panics as errors: after one, the page starts another worker.
    fn report_panics(self: &Rc<Self>) {
        let current = self.current.clone();
        std::panic::set_hook(Box::new(move |panic| {
            let current = current.lock().unwrap_or_else(PoisonError::into_inner);
            let mut failure = match current.watchdog.failure() {
                Some(error) => failure_of(error),
                None => {
                    let text = panic.payload_as_str().unwrap_or("an error of the program");
                    let place = panic.location().map(|place| format!(" ({place})"));
                    let text = format!("{text}{}", place.unwrap_or_default());
                    let exit = Exit::DeviceFailed;
                    let cause = Some(Cause::DeviceLost);
                    Failure { exit, cause, ..Failure::new(text, "") }
                }
            };
            let message = if current.run.is_some() {
                failure.hint = "the browser's console may show more".into();
                FromWorker::Ended(RunEnd::Failed(failure))
            } else {
                failure.hint = "reload the page".into();
                FromWorker::Reply(Reply::failed(RequestKind::Other, failure))
            };
            let (message, _) = browser::pack(message);
            let _ = scope().post_message(&message);
        }));
    }

    fn start_heartbeat(self: &Rc<Self>) {
        let worker = self.clone();
        wasm_bindgen_futures::spawn_local(async move {
            loop {
                browser::sleep(HEARTBEAT).await;
                worker.heartbeat();
            }
        });
    }

    fn heartbeat(&self) {
        self.send(FromWorker::Heartbeat);
        let device = self.device.borrow();
        let Some(device) = device.as_ref() else { return };
        device.watchdog.check();
        if let Some(error) = device.watchdog.failure()
            && self.current().run.is_some()
        {
            self.send(FromWorker::Ended(RunEnd::Failed(failure_of(error))));
        }
    }

    /// Handles a message. Runs and samples wait for the device.
    fn receive(self: &Rc<Self>, message: ToWorker) {
        match message {
            ToWorker::Command(command) => self.commands.borrow_mut().push_back(command),
            ToWorker::Train(start) | ToWorker::Supervise(start) => {
                self.enqueue(RequestKind::Other, DeviceTask::Train(*start));
            }
            ToWorker::Request(Request::Sample(request)) => {
                self.stop_sample.set(false);
                self.enqueue(RequestKind::Sample, DeviceTask::Sample(request));
            }
            ToWorker::Request(Request::StopSample) => self.stop_sample.set(true),
            ToWorker::Request(Request::Devices | Request::Device { .. }) => {
                if let Some(device) = self.device.borrow().as_ref() {
                    self.describe(device);
                }
            }
            ToWorker::Request(Request::Doctor { .. }) => self.report(),
            ToWorker::Request(Request::Remove { path })
                if self.current().run.as_ref() == Some(&path) =>
            {
                let text = format!("{} is training", path.display());
                self.fail(RequestKind::Other, Failure::new(text, "stop it first"));
            }
            // All lists are sent.
            ToWorker::Request(Request::ListRuns { .. }) => self.list_later(),
            ToWorker::Request(request) => {
                let job = request.job();
                match self.answer(request) {
                    Ok(last) => last.into_iter().for_each(|reply| self.reply(reply)),
                    Err(failure) => self.fail(job, failure),
                }
                self.list_later();
            }
            ToWorker::Record { run, event } => {
                if let Err(error) = record(&run, &event) {
                    self.fail(RequestKind::Other, error);
                }
                self.list_later();
            }
        }
        self.wake();
    }

    /// Returns the last reply to a request about what is stored.
    fn answer(&self, request: Request) -> Result<Option<Reply>, Failure> {
        Ok(Some(match request {
            Request::Export { checkpoint, .. } => export_zip(&checkpoint)?,
            Request::Import { folder, name, zip } => {
                Reply::Imported { model: import(&free_path(&folder, &name, ""), zip)? }
            }
            // The storage has neither trash nor file manager.
            Request::Remove { path } => {
                disk::remove_dir_all(&path).map_err(Failure::io("remove", &path))?;
                Reply::Removed { path }
            }
            request => return answer(request, &mut |reply| self.reply(reply)),
        }))
    }

    fn enqueue(&self, job: RequestKind, task: DeviceTask) {
        if self.current().run.is_some() {
            let hint = "stop it, or wait until it is done";
            return self.fail(job, Failure::new("a run is training", hint));
        }
        // Commands from here on are for this task.
        self.commands.borrow_mut().clear();
        self.tasks.borrow_mut().push_back(task);
    }

    fn list_later(self: &Rc<Self>) {
        let worker = self.clone();
        wasm_bindgen_futures::spawn_local(async move { worker.list().await });
    }

    /// Makes space for the next files, and reports to the page what is stored.
    pub async fn list(&self) {
        self.storage.make_space().await;
        let usage = self.storage.usage().await;
        let folder = PathBuf::from(RUNS);
        let runs = runs::list(&folder).unwrap_or_default();
        self.reply(Reply::Runs { folder, runs });
        self.reply(stored(Path::new(""), usage));
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub async fn message(&self) {
        let mut is_waiting = false;
        poll_fn(|context| {
            if std::mem::replace(&mut is_waiting, true) {
                return Poll::Ready(());
            }
            self.waker.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    async fn run(self: &Rc<Self>) {
        if let Err(problem) = self.storage.open().await {
            let text = format!("this page cannot store what you train: {problem}");
            let hint = "close other tabs of this page, or leave private browsing; export before you \
                        leave";
            self.reply(Reply::Obstacle(Obstacle::new(Topic::Storage, text, hint)));
        }
        self.send(FromWorker::Ready { version: MESSAGES_VERSION });
        self.start_heartbeat();
        // A failure here repeats, and is reported, when a run starts.
        let _ = self.open_device().await;
        loop {
            let task = self.tasks.borrow_mut().pop_front();
            match task {
                None => self.message().await,
                Some(DeviceTask::Train(start)) => self.train(start).await,
                Some(DeviceTask::Sample(request)) => {
                    if let Err(failure) = self.sample(request).await {
                        self.fail(RequestKind::Sample, failure);
                    }
                }
            }
        }
    }

    /// Returns the device. If it is not open, opens it and reports it to the page.
    pub async fn open_device(&self) -> Result<OpenDevice, Failure> {
        if let Some(device) = self.opened() {
            return Ok(device);
        }
        let device = device::open().await.map_err(|obstacle| {
            let error = device::unavailable(&obstacle);
            self.reply(Reply::Obstacle(obstacle));
            error
        })?;
        self.current().watchdog = device.watchdog.clone();
        self.device.replace(Some(device.clone()));
        self.describe(&device);
        if device.info.kind == DeviceKind::Software {
            self.reply(Reply::Obstacle(device::software_obstacle()));
        }
        Ok(device)
    }

    pub fn opened(&self) -> Option<OpenDevice> {
        self.device.borrow().clone()
    }

    /// Replies with the text for a bug report.
    fn report(&self) {
        let browser = scope().navigator().user_agent().unwrap_or_default();
        let device = self.opened();
        let report = DoctorReport::of_page(browser, device.as_ref().map(|device| &device.info));
        self.reply(Reply::Report { text: report.to_string() });
    }

    fn describe(&self, device: &OpenDevice) {
        self.reply(Reply::Devices { devices: vec![device.info.line()] });
        let device = device_profile(&device.info, OpsMode::AUTO);
        self.reply(Reply::Device { device });
    }
}

/// The failure of the open device, which recovery replaces.
fn failure_of(error: &DeviceError) -> Failure {
    let mut failure = Failure::from(error.clone());
    failure.cause.get_or_insert(Cause::DeviceLost);
    failure
}
