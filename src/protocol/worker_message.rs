//! Messages between the page and the worker that trains. Paths are those of the browser's storage:
//! `runs/NAME`, `data/NAME` and `models/NAME`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::plan::Plan;
use crate::protocol::{Command, Event, Reply, Request};

/// A message from the page to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// Answers a request of the service.
    Request(Request),
    /// Trains: [`FromWorker::Event`] many times, then [`FromWorker::Ended`].
    Start(StartRun),
    /// Passes a command to the run that trains.
    Command(Command),
    /// Records an event of a run whose worker has ended.
    Record {
        /// The run folder.
        run: PathBuf,
        /// The event.
        event: Box<Event>,
    },
}

/// The start of a run in the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StartRun {
    /// The run folder.
    pub run: PathBuf,
    /// The configuration; `None` continues a run with its own.
    pub config: Option<Box<Config>>,
    /// True to continue from the run's newest checkpoint.
    pub resume: bool,
    /// The largest plan that may be used, after the device ran out of memory.
    pub max_plan: Option<Plan>,
}

/// A message from the worker to the page. The first one means that the worker takes messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum FromWorker {
    /// A reply of the service.
    Reply(Reply),
    /// An event of the run that trains.
    Event {
        /// The run folder.
        run: PathBuf,
        /// The event.
        event: Box<Event>,
    },
    /// The run no longer trains; its last event has the reason.
    Ended {
        /// The run folder.
        run: PathBuf,
    },
    /// Sent about once a second while nothing blocks the worker.
    Heartbeat,
}

/// Bytes that travel beside the JSON text of a message.
pub(crate) trait Attachment {
    /// The bytes, where this message has some.
    fn attachment(&mut self) -> Option<&mut Vec<u8>>;
}

impl Attachment for ToWorker {
    fn attachment(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            ToWorker::Request(Request::Import { zip, .. }) => Some(zip),
            _ => None,
        }
    }
}

impl Attachment for FromWorker {
    fn attachment(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            FromWorker::Reply(Reply::Exported { zip, .. }) => Some(zip),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Message, Role};
    use crate::doctor::FrontEnd;
    use crate::protocol::request::Topic;
    use crate::protocol::{
        Job, Obstacle, Progress, SampleInput, SampleRequest, Setting, StorageUsage, Texts, View,
    };
    use crate::runs::About;
    use crate::runs::Tail;

    fn assert_reads_back<T: Serialize + serde::de::DeserializeOwned>(message: &T) -> String {
        let text = serde_json::to_string(message).unwrap();
        let again: T =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        text
    }

    fn evaluation() -> Event {
        let (train_loss, val_loss) = (2.5, 2.25);
        Event::Eval { iter: 250, train_loss, val_loss, bits_per_byte: None, hellaswag: None }
    }

    #[test]
    fn messages_to_the_worker_read_back() {
        let run = PathBuf::from("runs/first");
        let event = evaluation();
        let start = StartRun {
            run: run.clone(),
            config: Some(Box::default()),
            resume: false,
            max_plan: None,
        };
        let texts = Texts::Text { name: "pasted".into(), text: "Once".into() };
        let about = About { name: "Foxes".into(), note: String::new() };
        let sample = SampleRequest {
            path: run.clone(),
            input: SampleInput::Conversation(vec![Message::new(Role::User, "Hello")]),
            tokens: 5,
            temperature: 0.8,
            top_k: 200,
            seed: 1,
            device: "auto".into(),
        };
        let front_end = FrontEnd { display: None, runs: "runs".into(), settings: None };
        for message in [
            ToWorker::Start(start),
            ToWorker::Command(Command::Pause),
            ToWorker::Command(Command::Set(Setting::LearningRate(1e-4))),
            ToWorker::Request(Request::Devices),
            ToWorker::Request(Request::Sample(sample)),
            ToWorker::Request(Request::StopSample),
            ToWorker::Request(Request::DescribeModel { path: run.clone() }),
            ToWorker::Request(Request::Doctor { front_end }),
            ToWorker::Request(Request::Describe { run: run.clone(), about }),
            ToWorker::Record { run: run.clone(), event: Box::new(event) },
            ToWorker::Request(Request::Prepare { texts, folder: "data".into() }),
            ToWorker::Request(Request::Compare { runs: [run, "runs/second".into()] }),
        ] {
            assert_reads_back(&message);
        }
    }

    #[test]
    fn messages_from_the_worker_read_back() {
        let run = PathBuf::from("runs/first");
        let event = evaluation();
        let mut progress = Progress::default();
        progress.apply(&event);
        let (tail, view) = (Tail::open(&run, true), View::Main);
        let topic = Topic::Device;
        let obstacle = Obstacle { topic, can_train: false, text: "no".into(), hint: "yes".into() };
        let event = Box::new(event);
        for message in [
            FromWorker::Reply(Reply::Run {
                run: run.clone(),
                view,
                progress: progress.into(),
                tail,
            }),
            FromWorker::Reply(Reply::Obstacle(obstacle)),
            FromWorker::Reply(Reply::Data { spec: "data/a".into(), data: Err("no".into()) }),
            FromWorker::Reply(Reply::Removed { path: run.clone() }),
            FromWorker::Reply(Reply::Model { path: run.clone(), has_chat: true }),
            FromWorker::Reply(Reply::Answered { text: "Hi".into(), forgotten: 2, done: true }),
            FromWorker::Reply(Reply::Stored {
                data: Vec::new(),
                models: Vec::new(),
                usage: StorageUsage::default(),
            }),
            FromWorker::Reply(Reply::Failed {
                job: Job::Export,
                text: "no".into(),
                hint: String::new(),
            }),
            FromWorker::Ended { run: run.clone() },
            FromWorker::Heartbeat,
        ] {
            assert_reads_back(&message);
        }
        let text = assert_reads_back(&FromWorker::Event { run, event });
        assert!(text.starts_with(r#"{"message":"event","run":"runs/first""#), "{text}");
    }

    #[test]
    fn bytes_travel_beside_the_text() {
        let (folder, name) = (PathBuf::from("models"), "a".to_string());
        let request = Request::Import { folder, name, zip: vec![1, 2, 3] };
        let mut message = ToWorker::Request(request);
        let text = serde_json::to_string(&message).unwrap();
        let mut read: ToWorker = serde_json::from_str(&text).unwrap();
        assert_eq!(message.attachment(), Some(&mut vec![1, 2, 3]));
        assert_eq!(read.attachment(), Some(&mut Vec::new()));
    }
}
