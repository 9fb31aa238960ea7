//! Runs and samples on the worker's device.

use std::time::Duration;

use web_time::Instant;

use super::event_loop::EventLoop;
use super::worker::Worker;
use crate::config::{Choice, Config};
use crate::data::Message;
use crate::gpu;
use crate::model::{Gpt, SampleOptions, Sampler};
use crate::ops::OpsMode;
use crate::plan::Plan;
use crate::protocol::{
    Event, FromWorker, Job, Obstacle, Reply, SampleInput, SampleRequest, StartRun, Topic,
};
use crate::ranks::{Group, Wire};
use crate::runs;
use crate::runs::ModelSource;
use crate::text::bytes;
use crate::train::{self, Commands, Next, Session, Setup, TrainError};

/// The longest time between two checks of the message queue, unless the device blocks the worker.
const MAX_DELAY: Duration = Duration::from_millis(30);

/// The time between two replies with a growing sample.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    /// Trains a run from its start to its end.
    pub async fn train(&self, start: StartRun) {
        let run = start.run.clone();
        self.current.set(Some(run.clone()));
        if let Err(error) = self.session(start).await {
            let (text, hint) = (error.to_string(), error.hint().unwrap_or_default());
            self.emit(&run, Event::Error { text, hint, cause: error.cause() });
        }
        self.current.set(None);
        if let Some(device) = self.opened() {
            gpu::release_unused(&device.device);
        }
        self.send(FromWorker::Ended { run });
        self.list().await;
    }

    async fn session(&self, start: StartRun) -> Result<(), TrainError> {
        let StartRun { run, config, resume, max_plan } = start;
        let recorded = || runs::config(&run).map(Box::new);
        let Some(config) = config.or_else(recorded) else {
            return Err(TrainError::NoCheckpoint { path: run });
        };
        let config = Config { out_dir: run.display().to_string(), ..*config };
        let config = match max_plan {
            Some(plan) => within(config, plan),
            None => config,
        };
        let device = self.open_device().await?;
        self.storage.make_space().await;
        let request = train::Request {
            config: config.clone(),
            run: run.clone(),
            resume,
            mode: OpsMode::AUTO,
            // The page sends resolved settings: which of them the user has set is not known here.
            plans_schedule: false,
            elapsed: Duration::ZERO,
            shares: Vec::new(),
            wire: Wire::Float32,
        };
        let setup = Setup::new(request, &device.info, Group::alone())?;
        self.check_quota(&config, &setup).await;
        let mut emit = |event: &Event| self.emit(&run, event.clone());
        let mut session = Session::open(setup, device, &mut emit)?;
        let event_loop = EventLoop::new();
        let mut commands = Messages { worker: self, yielded: Instant::now(), event_loop };
        session.run(&mut commands).await.map(|_| ())
    }

    /// Warns if the storage has no space for the checkpoints: a new one is written before an old
    /// one is removed.
    async fn check_quota(&self, config: &Config, setup: &Setup) {
        let usage = self.measure_usage().await;
        let checkpoints = u64::from(config.keep_checkpoints.get()) + 1;
        let need = setup.checkpoint_bytes() * checkpoints;
        let have = usage.quota.saturating_sub(usage.used);
        if usage.quota > 0 && have < need {
            let (need, have) = (bytes(need), bytes(have));
            self.reply(Reply::Obstacle(Obstacle {
                topic: Topic::Quota,
                can_train: true,
                text: format!("the checkpoints of this run need {need}, the browser has {have}"),
                hint: "remove runs that are no longer needed, or free space on the disk".into(),
            }));
        }
    }

    /// Generates text with a stored model or run.
    pub async fn sample(&self, request: SampleRequest) -> Result<(), TrainError> {
        let source = ModelSource::open(&request.path)?;
        match &request.input {
            SampleInput::Prompt(prompt) => self.continue_text(&source, prompt, &request).await,
            SampleInput::Conversation(messages) => {
                self.answer_message(&source, messages, &request).await
            }
        }
    }

    async fn continue_text(
        &self,
        source: &ModelSource,
        prompt: &str,
        request: &SampleRequest,
    ) -> Result<(), TrainError> {
        let unknown = || TrainError::checkpoint(&source.path, "its tokenizer is unknown");
        let tokenizer = source.tokenizer.as_ref().ok_or_else(unknown)?;
        let ids = tokenizer.encode_prompt(prompt)?;
        if ids.is_empty() {
            self.fail(Job::Sample, "the prompt is empty", "type a character");
            return Ok(());
        }
        let (model, mode) = self.load(source).await?;
        let mut sampler = Sampler::new(&model, &ids, options(request), mode);
        let (mut generated, mut replied) = (Vec::new(), Instant::now());
        for number in 1..=request.tokens {
            generated.push(sampler.next_token().await);
            let done = number == request.tokens || self.stop_sample.get();
            if done || replied.elapsed() >= SAMPLE_INTERVAL {
                replied = Instant::now();
                let text = tokenizer.decode(&generated);
                self.reply(Reply::Sampled { prompt: prompt.to_string(), text, done });
            }
            if done {
                break;
            }
        }
        Ok(())
    }

    /// Answers the last message of a conversation.
    async fn answer_message(
        &self,
        source: &ModelSource,
        messages: &[Message],
        request: &SampleRequest,
    ) -> Result<(), TrainError> {
        let begun = source.conversation().and_then(|mut conversation| {
            let last = conversation.load(messages)?;
            let prompt = conversation.ask(last, request.tokens as usize)?;
            Ok((conversation, prompt))
        });
        let (conversation, prompt) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                self.fail(Job::Sample, &error, &error.hint().unwrap_or_default());
                return Ok(());
            }
        };
        let (model, mode) = self.load(source).await?;
        let mut answer = conversation.answer(&prompt, &model, options(request), mode);
        let (mut text, mut replied) = (String::new(), Instant::now());
        while !self.stop_sample.get()
            && let Some(piece) = answer.next().await
        {
            text += &piece;
            if replied.elapsed() >= SAMPLE_INTERVAL {
                replied = Instant::now();
                self.reply(Reply::Answered { text: text.clone(), forgotten: 0, done: false });
            }
        }
        self.reply(Reply::Answered { text, forgotten: prompt.forgotten, done: true });
        Ok(())
    }

    /// Loads a model onto the device.
    async fn load(&self, source: &ModelSource) -> Result<(Gpt, OpsMode), TrainError> {
        let device = self.open_device().await?;
        Ok((source.model(&device.device)?, OpsMode::AUTO.on(device.info.kind)))
    }
}

/// The options of the draws.
fn options(request: &SampleRequest) -> SampleOptions {
    let &SampleRequest { temperature, top_k, seed, .. } = request;
    SampleOptions { temperature, top_k: top_k as usize, seed }
}

/// The commands of the page to the run that trains.
struct Messages<'a> {
    worker: &'a Worker,
    /// When the event loop ran last.
    yielded: Instant,
    event_loop: EventLoop,
}

impl Commands for Messages<'_> {
    fn next(&mut self) -> Next {
        match self.worker.commands.borrow_mut().pop_front() {
            Some(command) => Next::Command(command),
            None => Next::None,
        }
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

/// The configuration whose plan is at most this one.
fn within(config: Config, plan: Plan) -> Config {
    let (micro_batch, loss_chunk) = (plan.micro_batch as u32, plan.loss_chunk as u32);
    let mut config = Config { micro_batch, loss_chunk, ..config };
    if plan.grad_checkpoint {
        config.grad_checkpoint = Choice::True;
    }
    config
}
