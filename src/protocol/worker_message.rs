//! Messages between a worker and its owner, which has started it: a front end, a supervisor or a page. A
//! page has the paths of the browser's storage: `runs/NAME`, `data/NAME` and `models/NAME`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigSource, DecayLength};
use crate::plan::{Backend, Plan};
use crate::protocol::{Command, Event, Failure, Implementation, Reply, Request, StopReason};

/// The version of the messages. A window that was open while its program was updated must not talk to a
/// worker of the new version.
pub(crate) const MESSAGES_VERSION: u32 = 6;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// Answers a request: [`FromWorker::Reply`], for some requests several times.
    Request(Request),
    /// Trains: [`FromWorker::Event`] many times, then [`FromWorker::Ended`].
    Train(Box<StartRun>),
    /// Trains, in another worker that this one supervises if the device can fail: the same replies.
    Supervise(Box<StartRun>),
    /// Passes a command to the run.
    Command(Command),
    /// Records an event of a run after its worker has ended.
    Record { run: PathBuf, event: Box<Event> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// The first message: the worker takes messages of this version.
    Ready {
        version: u32,
    },
    Reply(Reply),
    /// The run has selected its device, which it opens next, and uses cooperative matrices or not.
    Selected {
        uses_matrices: bool,
    },
    Event(Box<Event>),
    /// The run no longer trains.
    Ended(RunEnd),
    /// Sent by the worker of a page about once a second while nothing blocks it.
    Heartbeat,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StartRun {
    /// The run folder; empty while none is chosen.
    pub run: PathBuf,
    pub settings: RunSettings,
    /// True to continue from the newest checkpoint.
    pub resume: bool,
    /// The updates in which a run that continues decays its learning rate and ends.
    pub decay: Option<DecayLength>,
    /// The value of `--device`. A page has one device.
    pub device: String,
    /// The name of the device that former workers of this run have opened.
    pub device_name: Option<String>,
    /// The backends to leave out: their drivers crashed while they listed devices.
    pub without: Vec<Backend>,
    pub implementation: Implementation,
    pub self_test: SelfTestOptions,
    /// The time in former workers.
    pub elapsed: Duration,
    /// The limit of the plan after the device ran out of memory.
    pub max_plan: Option<Plan>,
    /// True once a former worker has opened the run folder: its checkpoints are of this run.
    pub is_restart: bool,
    /// With several ranks: their shares of the global batch; empty to follow their measured speeds.
    pub shares: Vec<f64>,
    /// With several ranks: the seconds for which one waits for another; `None` for the usual limit.
    pub rank_limit: Option<u64>,
    /// True if the owner restarts a run that stopped to make room for other programs.
    #[serde(default)]
    pub makes_way: bool,
    /// True if a former worker stopped for that reason.
    #[serde(default)]
    pub has_made_way: bool,
    /// As often as `-v` was given.
    pub verbose: u8,
    /// True to print no messages about device and precision.
    pub quiet: bool,
}

/// How a device's kernels are tested before a run relies on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SelfTestOptions {
    /// True to rely on them without a test.
    pub skip: bool,
    /// The seconds that each check may take; `None` for the usual limit.
    pub limit: Option<u64>,
    /// True once a former worker of this run has crashed with cooperative matrices: this one uses none.
    pub avoids_matrices: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunSettings {
    /// The settings that a person has given.
    Typed(ConfigSource),
    /// A whole configuration; `plans_schedule` if `max_time` plans the schedule of the run.
    Resolved { config: Box<Config>, plans_schedule: bool },
    /// The configuration in the run folder.
    #[default]
    Recorded,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(crate) enum RunEnd {
    Stopped { reason: StopReason },
    Failed(Failure),
}

impl StartRun {
    /// Returns the start of a new run, or of a recorded one, on the automatic device.
    pub fn new(run: PathBuf, settings: RunSettings) -> Self {
        let resume = settings == RunSettings::Recorded;
        Self { run, resume, settings, device: "auto".into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::protocol::{
        KernelError, KernelProgress, Progress, RequestKind, RunView, StorageUsage, Tail,
    };

    fn assert_reads_back<T: Serialize + DeserializeOwned>(messages: Vec<T>) {
        for message in messages {
            let text = serde_json::to_string(&message).unwrap();
            let again: T = serde_json::from_str(&text).expect(&text);
            assert_eq!(serde_json::to_string(&again).unwrap(), text);
        }
    }

    #[test]
    fn messages_read_back() {
        let run = PathBuf::from("runs/first");
        let eval = Event::Eval {
            iter: 250,
            train_loss: 2.5,
            val_loss: 2.25,
            bits_per_byte: None,
            hellaswag: None,
        };
        let mut progress = Box::<Progress>::default();
        progress.apply(&eval);
        let usage = StorageUsage::default();
        let view = RunView::Main;
        let tail = Tail { path: run.join("events.jsonl"), offset: 2, before: b"{}".to_vec() };
        let text = "no".to_string();
        let hint = String::new();
        let job = RequestKind::Export;
        let event = FromWorker::Event(Box::new(eval.clone()));
        let error = KernelError { kernel: "linear".into(), error: None, allowed: 0.01 };
        let json = serde_json::to_string(&event).unwrap();
        assert!(json.starts_with(r#"{"message":"event","event":"eval","iter":250"#), "{json}");
        assert_reads_back(vec![
            event,
            FromWorker::Reply(Reply::Run { run: run.clone(), view, progress, tail }),
            FromWorker::Reply(Reply::Data { spec: "data/a".into(), data: Err(text.clone()) }),
            FromWorker::Reply(Reply::Stored { data: vec![], models: vec![], usage }),
            FromWorker::Reply(Reply::Failed { job, text, hint }),
            FromWorker::Reply(Reply::Kernels { progress: KernelProgress::Tested(error) }),
            FromWorker::Reply(Reply::Kernels { progress: KernelProgress::Done }),
            FromWorker::Ready { version: MESSAGES_VERSION },
            FromWorker::Selected { uses_matrices: true },
            FromWorker::Ended(RunEnd::Stopped { reason: StopReason::MaxTime }),
            FromWorker::Ended(RunEnd::Failed(Failure::default())),
            FromWorker::Heartbeat,
        ]);
        let config = Box::new(Config::default());
        let resolved = RunSettings::Resolved { config, plans_schedule: true };
        let flags = vec![("n_layer".to_string(), "3".to_string())];
        let source = ConfigSource { preset: Some("demo".into()), flags, ..ConfigSource::default() };
        let typed = RunSettings::Typed(source);
        assert_reads_back(vec![
            ToWorker::Train(Box::new(StartRun::new(run.clone(), resolved))),
            ToWorker::Supervise(Box::new(StartRun::new(run.clone(), typed))),
            ToWorker::Command(Command::Pause),
            ToWorker::Request(Request::StopSample),
            ToWorker::Request(Request::Compare { runs: [run.clone(), "runs/second".into()] }),
            ToWorker::Record { run, event: Box::new(eval) },
        ]);
    }
}
