//! The memory of a run, measured at step boundaries.

use super::clock::Moment;
use super::room::{BUSY, Change, MemoryReading, Room};
use crate::config::{Config, Priority};
use crate::gpu::{self, DeviceMonitor, DeviceReading, OpenDevice, ReportedMemory};
use crate::plan::{DeviceHealth, OtherUse, Throttle};
use crate::text::bytes;

/// The log lines in a row with a throttled clock after which the user is warned.
const THROTTLED_LINES: u32 = 3;

/// A monitor of the device: its memory, in bytes, and its health.
pub(super) struct MemoryMonitor {
    /// The most that the pools have held.
    pub peak: u64,
    /// The bytes of the run in host memory, where that is the memory of the device too.
    on_host: u64,
    /// The bytes that other programs use, where known.
    pub others: Option<u64>,
    pub health: Option<DeviceHealth>,
    system: DeviceMonitor,
    /// Step boundaries in a row at which the pools held more than the budget, under the current
    /// plan.
    crossings: u32,
    began: Moment,
    pub room: Room,
    pub reading: Option<MemoryReading>,
    /// True once unused pages were given back for others, under the current plan.
    pub has_released: bool,
    /// Log lines in a row with a clock that is too low for a reason that the user can change.
    throttled: u32,
}

/// The answer to a run that holds too much memory.
#[derive(Debug, PartialEq)]
pub(super) enum MemoryPressure {
    /// Return free pages to the driver.
    Release,
    /// Return free pages and split steps smaller, for the reason in `text`. If that is impossible, the user
    /// is warned if `warns`.
    Split { text: String, warns: bool },
}

impl MemoryMonitor {
    /// Creates a monitor for a run that holds `host_bytes` of host memory besides the program, for its
    /// whole time, and that another process starts again if `makes_way`.
    pub fn new(device: &OpenDevice, host_bytes: u64, config: &Config, makes_way: bool) -> Self {
        let on_host = if device.info.kind.shares_memory() { host_bytes } else { 0 };
        let mut monitor = Self {
            peak: 0,
            on_host,
            others: None,
            health: None,
            system: DeviceMonitor::start(
                device,
                makes_way && config.priority == Priority::Background,
            ),
            crossings: 0,
            began: Moment::now(),
            room: Room::new(config.quiet_time.unwrap_or_default()),
            reading: None,
            has_released: false,
            throttled: 0,
        };
        monitor.read(device);
        monitor
    }

    /// Returns what the pools hold; `None` on the CPU, or where it is unknown.
    pub fn read(&mut self, device: &OpenDevice) -> Option<u64> {
        let held = gpu::memory(&device.device).map(|memory| memory.reserved);
        self.peak = self.peak.max(held.unwrap_or(0));
        let reading = self.system.latest();
        let ours = held.unwrap_or(0) + self.on_host;
        self.reading = memory_reading(&reading, ours);
        self.others = self.reading.as_ref().map(MemoryReading::others);
        self.health = reading.health.known();
        held
    }

    /// Returns what is known of the device now.
    pub fn latest_health(&self) -> DeviceHealth {
        self.system.latest().health
    }

    /// Compares what the pools `held` at the boundary of a step with the budget. If they exceed it again,
    /// free pages were not enough.
    pub fn check_budget(&mut self, held: u64, budget: u64) -> Option<MemoryPressure> {
        self.crossings = if held > budget { self.crossings + 1 } else { 0 };
        let text = || format!("the run used {} of a budget of {}", bytes(held), bytes(budget));
        match self.crossings {
            0 => None,
            1 => Some(MemoryPressure::Release),
            count => Some(MemoryPressure::Split { text: text(), warns: count == 2 }),
        }
    }

    /// Returns true if others leave little memory, by a reading that is newer than the last one that was looked at.
    pub fn is_tight(&self) -> bool {
        memory_reading(&self.system.latest(), 0)
            .is_some_and(|new| new.is_tight() && new.number != self.room.latest().number)
    }

    /// Returns how the run is to change for others, `now` in its time, if it would take `wanted` bytes had it not made
    /// way before.
    pub fn change(&mut self, wanted: Option<u64>) -> Option<Change> {
        let now = self.began.elapsed();
        self.room.observe(self.reading?, wanted, now)
    }

    /// Returns the use of the device by other programs, if they need it and the run watches them.
    pub fn rivals(&self) -> Option<OtherUse> {
        self.system.latest().others.filter(|others| others.share >= BUSY)
    }

    /// Begins to watch another plan.
    pub fn change_plan(&mut self) {
        (self.crossings, self.has_released) = (0, false);
        self.room.change_plan();
    }

    /// Returns a warning once the clock was low at several log lines in a row, for a reason that the user
    /// can change. A GPU at its power limit works as its makers intend.
    pub fn throttle_warning(&mut self) -> Option<String> {
        let health = self.health.unwrap_or_default();
        let advice = match health.throttled {
            Some(Throttle::Heat) => "it is too hot: clean its fans, or lower its power limit",
            Some(Throttle::PowerSupply) => "its power supply delivers too little: check its cables",
            // One warning is enough.
            _ if self.throttled >= THROTTLED_LINES => return None,
            _ => {
                self.throttled = 0;
                return None;
            }
        };
        self.throttled = self.throttled.saturating_add(1);
        (self.throttled == THROTTLED_LINES)
            .then(|| format!("the GPU lowers its clock, because {advice} ({health})"))
    }
}

fn memory_reading(reading: &DeviceReading, held: u64) -> Option<MemoryReading> {
    let ReportedMemory { total, free, excess, .. } = *reading.memory.as_ref()?;
    let left = free as i64 - excess as i64;
    Some(MemoryReading { number: reading.number, total, left, held })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceChoice;

    fn monitor() -> MemoryMonitor {
        let cpu = gpu::select("cpu".parse::<DeviceChoice>().unwrap()).unwrap().info;
        MemoryMonitor::new(&OpenDevice::cpu(cpu), 0, &Config::default(), true)
    }

    #[test]
    fn only_crossings_in_a_row_count() {
        let mut memory = monitor();
        let mut check = |held| match memory.check_budget(held, 10) {
            None => "fine",
            Some(MemoryPressure::Release) => "release",
            Some(MemoryPressure::Split { warns: true, .. }) => "split and warn",
            Some(MemoryPressure::Split { warns: false, .. }) => "split",
        };
        let found = [11, 9, 11, 12, 13, 10, 11].map(&mut check);
        let expected = ["release", "fine", "release", "split and warn", "split", "fine", "release"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_clock_that_stays_low_is_told_once() {
        let mut memory = monitor();
        let mut warnings = |throttled: Option<Throttle>, lines: u32| {
            let health = DeviceHealth { celsius: Some(88.0), throttled, ..Default::default() };
            memory.health = Some(health);
            (0..lines).filter_map(|_| memory.throttle_warning()).collect::<Vec<_>>()
        };
        assert_eq!(warnings(Some(Throttle::PowerLimit), 9), [""; 0]);
        for throttled in [Some(Throttle::Heat), None, Some(Throttle::Heat)] {
            assert_eq!(warnings(throttled, THROTTLED_LINES - 1), [""; 0]);
        }
        let told = warnings(Some(Throttle::Heat), 9);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("too hot") && told[0].contains("88 °C"), "{told:?}");
    }
}
