//! Waits until a device that no process of the run has open has room for it again.

use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::pipe::{send_to_owner, worker};
use super::request::start;
use crate::config::{Config, Priority};
use crate::gpu::{self, DeviceWatch};
use crate::plan::OtherUse;
use crate::protocol::{Failure, FromWorker, Need, Reply, Request};

/// The time between two readings, and between two attempts to start a process that reads.
const INTERVAL: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_secs(30);

/// A wait for the first reading of a driver.
const FIRST: Duration = Duration::from_secs(20);

/// The share of the GPU's time that others may use beside a run in the background that begins: a desktop that draws.
const IDLE: f64 = 0.1;

/// Another process that reads the device: this one loads no drivers.
pub(super) struct RoomWatch {
    child: Child,
    _input: ChildStdin,
    readings: Receiver<Reading>,
}

/// The free bytes and the use by others, as far as they are known.
type Reading = (Option<u64>, Option<OtherUse>);

impl RoomWatch {
    fn start(device: &str) -> Option<Self> {
        let request = Request::WatchDevice { choice: device.into() };
        let (child, input, mut replies) = start(worker(), request).ok()?;
        let (sender, readings) = channel();
        std::thread::spawn(move || {
            replies.all(|reply| match reply {
                Reply::DeviceRoom { free, others } => sender.send((free, others)).is_ok(),
                _ => false,
            })
        });
        Some(Self { child, _input: input, readings })
    }

    /// Returns the free bytes of a device now, where known.
    pub fn free(device: &str) -> Option<u64> {
        let watch = Self::start(device)?;
        watch.readings.recv_timeout(FIRST).ok()?.0
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
    started: Option<Instant>,
    quiet: Quiet,
}

impl RoomWait {
    /// Returns true once the device has had what the run needs for long enough. Where nothing tells, it has it.
    pub fn is_over(&mut self, (need, device): (Need, &str), config: &Config) -> bool {
        if self.watch.is_none() && self.started.is_none_or(|at| at.elapsed() >= RETRY) {
            self.started = Some(Instant::now());
            self.watch = RoomWatch::start(device);
        }
        let Some(watch) = &self.watch else { return false };
        let (now, quiet) = (Instant::now(), config.quiet_time.unwrap_or_default());
        loop {
            match watch.readings.try_recv() {
                Ok(reading) => {
                    if self.quiet.observe(has_room(&reading, need, config.priority), now, quiet) {
                        return true;
                    }
                }
                Err(std::sync::mpsc::TryRecvError::Empty) => return false,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                    self.watch = None;
                    return false;
                }
            }
        }
    }
}

fn has_room((free, others): &Reading, need: Need, priority: Priority) -> bool {
    let is_used = others.as_ref().is_some_and(|others| others.share >= IDLE);
    free.is_none_or(|free| free >= need.free_bytes)
        && !(priority == Priority::Background && is_used)
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
        let (free, others) = watch.read();
        send_to_owner(&FromWorker::Reply(Reply::DeviceRoom { free, others }));
        std::thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_if_memory_is_free_and_nobody_computes() {
        let need = Need { free_bytes: 100 };
        let used = |share| Some(OtherUse { share, program: "game".into() });
        for (reading, normal, background) in [
            ((Some(100), used(0.05)), true, true),
            ((Some(99), None), false, false),
            ((Some(100), used(0.5)), true, false),
            ((None, None), true, true),
        ] {
            assert_eq!(has_room(&reading, need, Priority::Normal), normal, "{reading:?}");
            assert_eq!(has_room(&reading, need, Priority::Background), background, "{reading:?}");
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
