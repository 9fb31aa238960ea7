//! The memory of a run, measured at step boundaries.

use crate::gpu::{self, DeviceMonitor, OpenDevice};
use crate::plan::{DeviceHealth, Throttle};
use crate::text::bytes;

/// A run waits for something if its updates take this many times as long as its fastest ones.
const MUCH_SLOWER: f64 = 2.0;

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
    /// The bytes that the run holds beyond what the system grants it.
    pub excess: u64,
    pub health: Option<DeviceHealth>,
    system: DeviceMonitor,
    /// Step boundaries in a row at which the pools held more than the budget, under the current
    /// plan.
    crossings: u32,
    pub pace: PagedPace,
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

/// Notices that the driver moves memory of the run to the machine's instead of refusing it, as on Windows.
#[derive(Default)]
pub(super) struct PagedPace {
    /// The shortest time of an update, in seconds.
    pub best: Option<f64>,
    /// False for the first time under a plan, which compiles kernels.
    pub is_settled: bool,
    is_told: bool,
}

impl PagedPace {
    /// Returns true if an update of this time was probably slow because of the `excess`, the bytes that the
    /// run holds beyond what the system grants it now.
    fn is_paged(&mut self, seconds: f64, excess: u64) -> bool {
        if !std::mem::replace(&mut self.is_settled, true) {
            return false;
        }
        let best = self.best.unwrap_or(seconds).min(seconds);
        self.best = Some(best);
        excess > 0 && seconds >= MUCH_SLOWER * best
    }
}

impl MemoryMonitor {
    /// Creates a monitor for a run that holds `host_bytes` of host memory besides the program, for its
    /// whole time.
    pub fn new(device: &OpenDevice, host_bytes: u64) -> Self {
        let on_host = if device.info.kind.shares_memory() { host_bytes } else { 0 };
        let mut monitor = Self {
            peak: 0,
            on_host,
            others: None,
            excess: 0,
            health: None,
            system: DeviceMonitor::start(device),
            crossings: 0,
            pace: PagedPace::default(),
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
        let used = reading.memory.as_ref().map(|memory| memory.total.saturating_sub(memory.free));
        self.excess = reading.memory.map_or(0, |memory| memory.excess);
        self.others = used.map(|used| used.saturating_sub(ours));
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

    /// Checks whether an update takes its `seconds` because the driver moves memory to the machine's.
    pub fn check_pace(&mut self, seconds: f64) -> Option<MemoryPressure> {
        if !self.pace.is_paged(seconds, self.excess) {
            return None;
        }
        let text = format!(
            "the run became {MUCH_SLOWER} times slower while it held {} more GPU memory than the system \
             allows now: other programs took it",
            bytes(self.excess)
        );
        let warns = !std::mem::replace(&mut self.pace.is_told, true);
        Some(MemoryPressure::Split { text, warns })
    }

    /// Begins to watch another plan.
    pub fn change_plan(&mut self) {
        self.crossings = 0;
        self.pace.is_settled = false;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DeviceChoice;

    fn monitor() -> MemoryMonitor {
        let cpu = gpu::select("cpu".parse::<DeviceChoice>().unwrap()).unwrap().info;
        MemoryMonitor::new(&OpenDevice::cpu(cpu), 0)
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
    fn a_run_is_paged_if_it_is_slow_and_holds_more_than_it_may() {
        let mut pace = PagedPace::default();
        for (seconds, excess, is_paged) in [
            // The kernels are compiled.
            (9.0, 1, false),
            (1.0, 0, false),
            (1.9, 1, false),
            // Another program computes too.
            (4.0, 0, false),
            (2.0, 1, true),
            (0.8, 1, false),
            (1.6, 1, true),
        ] {
            assert_eq!(pace.is_paged(seconds, excess), is_paged, "{seconds} s, {excess}");
        }
        // Another plan compiles again, and is compared with the best of all.
        pace.is_settled = false;
        assert!(!pace.is_paged(9.0, 1) && pace.is_paged(1.7, 1));
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
