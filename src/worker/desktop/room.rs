//! Waits until a device that no process of the run has open has room for it again.

use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::pipe::{send_to_owner, worker};
use super::request::start;
use crate::config::{Config, Priority};
use crate::gpu::{self, DeviceWatch};
use crate::plan::OtherUse;
use crate::protocol::{Failure, FromWorker, Reply, Request};
use crate::train::BUSY;

/// The time between two readings, and between two attempts to start a process that reads.
const INTERVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_secs(30);

/// A wait for a reading of a driver.
const ANSWER: Duration = Duration::from_secs(10);

/// The processes without a reading after which the run starts all the same: it knows what to say of a device that is gone.
const FAILED: u32 = 10;

/// The share of the GPU's time that others may use beside a run in the background that begins, as a mean over some
/// seconds. While nothing trains, a GPU lowers its clock, and a desktop uses more of its time.
const IDLE: f64 = 0.6 * BUSY;

/// Another process that reads the device: this one loads no drivers.
pub(super) struct RoomWatch {
    child: Child,
    _input: ChildStdin,
    readings: Receiver<Reading>,
}

/// The total and the free bytes, and the use by others, as far as they are known.
type Reading = (Option<[u64; 2]>, Option<OtherUse>);

impl RoomWatch {
    fn start(device: &str) -> Option<Self> {
        let request = Request::WatchDevice { choice: device.into() };
        let (child, input, mut replies) = start(worker(), request).ok()?;
        let (sender, readings) = channel();
        std::thread::spawn(move || {
            replies.all(|reply| match reply {
                Reply::DeviceRoom { memory, others } => sender.send((memory, others)).is_ok(),
                _ => false,
            })
        });
        Some(Self { child, _input: input, readings })
    }

    /// Returns the total and the free bytes of a device now, where known.
    pub fn memory(device: &str) -> Option<[u64; 2]> {
        let watch = Self::start(device)?;
        watch.readings.recv_timeout(ANSWER).ok()?.0
    }
}

impl Drop for RoomWatch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The wait of a run that has made way for others.
#[derive(Default)]
pub(super) struct RoomWait {
    watch: Option<RoomWatch>,
    /// When the present process has started, or was heard last.
    heard: Option<Instant>,
    failures: u32,
    quiet: Quiet,
}

impl RoomWait {
    /// Returns true once the device has had what the run needs for long enough, or if nobody can read it.
    pub fn is_over(&mut self, (need, device): (u64, &str), config: &Config) -> bool {
        let now = Instant::now();
        let silence = self.heard.map(|at| now.saturating_duration_since(at));
        if self.watch.is_none() && silence.is_none_or(|silence| silence >= RETRY) {
            self.heard = Some(now);
            self.watch = RoomWatch::start(device);
        }
        let Some(watch) = &self.watch else { return self.failures >= FAILED };
        let mut is_gone = silence.is_some_and(|silence| silence >= RETRY);
        loop {
            match watch.readings.try_recv() {
                Ok(reading) => {
                    (self.heard, self.failures, is_gone) = (Some(now), 0, false);
                    let quiet = config.quiet_time.unwrap_or_default();
                    if self.quiet.observe(has_room(&reading, need, config.priority), now, quiet) {
                        return true;
                    }
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    is_gone = true;
                    break;
                }
            }
        }
        if is_gone {
            self.failures += 1;
            self.watch = None;
        }
        self.failures >= FAILED
    }
}

fn has_room((memory, others): &Reading, need: u64, priority: Priority) -> bool {
    let is_used = others.as_ref().is_some_and(|others| others.share >= IDLE);
    memory.is_none_or(|[_, free]| free >= need) && !(priority == Priority::Background && is_used)
}

/// Finds a time in which all readings are good.
#[derive(Default)]
struct Quiet {
    since: Option<Instant>,
}

impl Quiet {
    fn observe(&mut self, is_good: bool, now: Instant, least: Duration) -> bool {
        if !is_good {
            self.since = None;
            return false;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now)) >= least
    }
}

/// Reads the device until the owner of this process is gone.
pub(super) fn watch_device(choice: &str) -> Result<(), Failure> {
    let mut watch = DeviceWatch::start(&gpu::select(choice.parse()?)?.info);
    loop {
        let (memory, others) = watch.read();
        send_to_owner(&FromWorker::Reply(Reply::DeviceRoom { memory, others }));
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_if_memory_is_free_and_nobody_computes() {
        let used = |share| Some(OtherUse { share, program: "game".into() });
        for (reading, normal, background) in [
            ((Some([500, 100]), used(0.05)), true, true),
            ((Some([500, 99]), None), false, false),
            ((Some([500, 100]), used(0.5)), true, false),
            ((None, None), true, true),
        ] {
            assert_eq!(has_room(&reading, 100, Priority::Normal), normal, "{reading:?}");
            assert_eq!(has_room(&reading, 100, Priority::Background), background, "{reading:?}");
        }
    }

    #[test]
    fn one_bad_reading_begins_the_wait_again() {
        let start = Instant::now();
        let mut quiet = Quiet::default();
        let mut observe = |second, is_good| {
            let now = start + Duration::from_secs(second);
            quiet.observe(is_good, now, Duration::from_secs(120))
        };
        assert!(!observe(0, true) && !observe(119, true) && !observe(119, false));
        assert!(!observe(120, true) && !observe(239, true) && observe(240, true));
    }
}
