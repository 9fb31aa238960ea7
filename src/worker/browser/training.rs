//! Runs and samples on the worker's device.

use std::time::Duration;

use js_sys::Promise;
use wasm_bindgen::prelude::JsValue;
use wasm_bindgen_futures::JsFuture;
use web_sys::MessageChannel;
use web_time::Instant;

use super::worker::PageWorker;
use crate::gpu::{self, DeviceKind, OpenDevice};
use crate::ops::{Implementation, KernelError, KernelShapes, OpsMode, SelfTest};
use crate::plan::checkpoint_bytes;
use crate::protocol::{
    Command, Event, Failure, FromWorker, Obstacle, Reply, RunEnd, SampleRequest, StartRun,
    StopReason, Topic,
};
use crate::ranks::Group;
use crate::text::bytes;
use crate::train::{Commands, Session, Setup, TrainRequest};
use crate::worker::sampling;

/// The longest time between two checks of the message queue, unless the device blocks the worker.
const MAX_DELAY: Duration = Duration::from_millis(30);

impl PageWorker {
    /// Trains a run from its start to its end.
    pub async fn train(&self, start: StartRun) {
        self.current().run = Some(start.run.clone());
        let end = match self.session(start).await {
            Ok(reason) => RunEnd::Stopped { reason },
            Err(error) => RunEnd::Failed(error),
        };
        self.current().run = None;
        if let Some(device) = self.opened() {
            gpu::release_unused(&device.device);
        }
        self.send(FromWorker::Ended(end));
        self.list().await;
    }

    async fn session(&self, start: StartRun) -> Result<StopReason, Failure> {
        let (mut request, warnings) = start.into_request()?;
        request.config.out_dir = request.run.display().to_string();
        let mut emit = |event: &Event| self.send(FromWorker::Event(Box::new(event.clone())));
        for text in warnings {
            emit(&Event::Warning { text });
        }
        let device = self.open_device().await?;
        if let Some(text) = self.prove(&device, &mut request).await? {
            emit(&Event::Warning { text });
        }
        self.storage.make_space().await;
        let setup = Setup::new(request, &device.info, Group::alone())?;
        self.check_quota(&setup).await;
        let mut session = Session::open(setup, device, &mut emit)?;
        let event_loop = EventLoop::new();
        let mut commands = PageCommands { worker: self, yielded: Instant::now(), event_loop };
        session.run(&mut commands).await
    }

    /// Tests the kernels that a run would launch, once in the life of this worker. If one is wrong, chooses
    /// tensor operations for the run and returns a warning. The watchdog notices a device that hangs.
    async fn prove(
        &self,
        device: &OpenDevice,
        request: &mut TrainRequest,
    ) -> Result<Option<String>, Failure> {
        let shapes = KernelShapes::from(&request.config);
        let is_usual = request.mode.implementation == Implementation::Auto;
        // A software renderer is a part of the browser, and takes seconds to compile a kernel.
        if !is_usual || device.info.kind == DeviceKind::Software {
            return Ok(None);
        }
        // A dtype that the device lacks is refused later.
        let Ok(mode) = request.mode.for_run(request.config.dtype, &device.info) else {
            return Ok(None);
        };
        let known = |tested: &&(KernelShapes, OpsMode, _)| (tested.0, tested.1) == (shapes, mode);
        let known = self.tested.borrow().iter().find(known).map(|tested| tested.2.clone());
        let wrong = match known {
            Some(wrong) => wrong,
            None => {
                let wrong = first_wrong(device, mode, shapes).await?;
                self.tested.borrow_mut().push((shapes, mode, wrong.clone()));
                wrong
            }
        };
        let Some(wrong) = wrong else { return Ok(None) };
        request.mode = OpsMode::REFERENCE;
        let name = &device.info.name;
        Ok(Some(format!("{name}: {wrong}; computing by tensor operations, which is slower")))
    }

    /// Warns if the storage has no space for the checkpoints: a new one is written before an old
    /// one is removed.
    async fn check_quota(&self, setup: &Setup) {
        let usage = self.storage.usage().await;
        let config = &setup.inputs.config;
        let checkpoints = u64::from(config.keep_checkpoints.get()) + 1;
        let vocab = setup.architecture.vocab_size as u32;
        let need = checkpoint_bytes(config, vocab) * checkpoints;
        let have = usage.quota.saturating_sub(usage.used);
        if usage.quota > 0 && have < need {
            let need = bytes(need);
            let have = bytes(have);
            let text = format!("this run's checkpoints need {need}, but the browser has {have}");
            let hint = "remove runs that are no longer needed, or free space on the disk";
            self.reply(Reply::Obstacle(Obstacle::new(Topic::Quota, text, hint)));
        }
    }

    /// Generates text with a stored model or run.
    pub async fn sample(&self, request: SampleRequest) -> Result<(), Failure> {
        let open = async || self.open_device().await;
        let reply = |reply| self.reply(reply);
        sampling::sample(&request, open, &|| self.stop_sample.get(), &reply).await
    }
}

/// Returns the first kernel of a device that is wrong, if one is.
async fn first_wrong(
    device: &OpenDevice,
    mode: OpsMode,
    shapes: KernelShapes,
) -> Result<Option<KernelError>, Failure> {
    let test = SelfTest::new(device, mode, shapes);
    let mut wrong = None;
    for check in SelfTest::checks() {
        device.watchdog.heartbeat();
        wrong = test.run(check).await?.into_iter().find(|result| !result.is_right());
        if wrong.is_some() {
            break;
        }
    }
    device.watchdog.pause();
    Ok(wrong)
}

/// The commands of the page to the run that trains.
struct PageCommands<'a> {
    worker: &'a PageWorker,
    /// When the event loop ran last.
    yielded: Instant,
    event_loop: EventLoop,
}

impl Commands for PageCommands<'_> {
    fn next(&mut self) -> Option<Command> {
        self.worker.commands.borrow_mut().pop_front()
    }

    async fn yield_now(&mut self) {
        if self.yielded.elapsed() >= MAX_DELAY {
            self.event_loop.run_queued().await;
            self.worker.storage.make_space().await;
            self.yielded = Instant::now();
        }
    }

    async fn idle(&mut self) {
        self.worker.message().await;
    }
}

/// A channel from this worker to itself. A message on it arrives after the events that are queued
/// already, and sooner than a timer, which browsers delay.
struct EventLoop(Option<MessageChannel>);

impl EventLoop {
    fn new() -> Self {
        Self(MessageChannel::new().ok())
    }

    /// Waits until the queued events were handled.
    async fn run_queued(&self) {
        let Some(channel) = &self.0 else { return };
        if channel.port2().post_message(&JsValue::NULL).is_err() {
            return;
        }
        let arrived = Promise::new(&mut |resolve, _| channel.port1().set_onmessage(Some(&resolve)));
        // This promise is not rejected.
        let _ = JsFuture::from(arrived).await;
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        if let Some(channel) = &self.0 {
            channel.port1().set_onmessage(None);
            channel.port1().close();
        }
    }
}
