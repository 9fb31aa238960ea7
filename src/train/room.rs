//! Makes way for the other programs of a computer: for the memory that they need of the device, and in the background
//! for their work on it.

use std::time::Duration;

/// The readings in a row that decide. They are a second apart.
const SUSTAINED: u32 = 2;

/// The readings at the beginning of which the lowest tells what other programs held when the run was planned.
const FIRST: u32 = 3;

/// The share of the GPU's time from which on other programs need it, as a mean over some seconds. A desktop that draws a
/// film stays below.
pub(crate) const BUSY: f64 = 0.25;

/// Returns what a run that returns leaves to others at least, if that is possible, of a device with `total` bytes.
pub(super) fn margin(total: u64) -> u64 {
    total / 40
}

/// What the memory of a device was at one reading, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryReading {
    pub number: u64,
    pub total: u64,
    /// What the run can still take; below 0 if it holds more than the system grants it.
    pub left: i64,
    /// What the run holds.
    pub held: u64,
}

impl MemoryReading {
    /// Returns what others hold.
    pub fn others(&self) -> u64 {
        self.total.saturating_add_signed(-self.left).saturating_sub(self.held)
    }

    fn reserve(&self) -> u64 {
        self.total / 20
    }

    /// Returns the bytes that other programs need at least.
    fn least(&self) -> u64 {
        self.reserve() / 4
    }

    /// Returns true if others may need memory.
    pub fn is_tight(&self) -> bool {
        self.left < self.least() as i64
    }

    /// Returns the bytes that the run may hold now.
    fn most(&self) -> u64 {
        self.held.saturating_add_signed(self.left).saturating_sub(self.reserve())
    }
}

/// A change of what a run may hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// Others need memory: the run may hold this many bytes.
    Less(u64),
    /// There has been room for the plan that it had before.
    More,
}

/// Watches the memory that other programs leave to a run.
#[derive(Default)]
pub(super) struct Room {
    /// The time for which room must have been there before the run takes it again.
    quiet: Duration,
    last: MemoryReading,
    /// The least that others held at the first readings.
    base: Option<u64>,
    readings: u32,
    tight: u32,
    /// Since when there has been room for more.
    since: Option<Duration>,
}

impl Room {
    pub fn new(quiet: Duration) -> Self {
        Self { quiet, ..Self::default() }
    }

    /// Takes a reading at the time `now` of a run that would take `wanted` bytes if it had not made way. A reading
    /// while the run itself took much memory or gave it back tells nothing.
    pub fn observe(
        &mut self,
        reading: MemoryReading,
        wanted: Option<u64>,
        now: Duration,
    ) -> Option<Change> {
        if reading.number == self.last.number {
            return None;
        }
        let before = std::mem::replace(&mut self.last, reading);
        if reading.held.abs_diff(before.held) > reading.least() / 2 {
            return None;
        }
        let others = reading.others();
        self.readings += 1;
        if self.readings <= FIRST {
            self.base = Some(self.base.map_or(others, |base| base.min(others)));
        }
        // A run with a budget of its own may fill the device.
        let have_grown = self.base.is_some_and(|base| others > base + reading.least());
        let is_tight = have_grown && reading.is_tight();
        self.tight = if is_tight { self.tight + 1 } else { 0 };
        if self.tight >= SUSTAINED {
            self.since = None;
            return Some(Change::Less(reading.most()));
        }
        // With half of the reserve, so that the run does not change its plan again soon.
        let possible = reading.most().saturating_add(reading.reserve() / 2);
        if is_tight || wanted.is_none_or(|wanted| possible < wanted) {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        (now.saturating_sub(since) >= self.quiet).then_some(Change::More)
    }

    /// Begins to watch another plan.
    pub fn change_plan(&mut self) {
        (self.tight, self.since) = (0, None);
    }

    pub fn latest(&self) -> MemoryReading {
        self.last
    }

    /// Returns the bytes that must be free for a process that takes this many: no more than there were when the run
    /// began.
    pub fn need(&self, bytes: u64) -> u64 {
        let quiet = self.last.total.saturating_sub(self.base.unwrap_or(0));
        (bytes + margin(self.last.total)).min(quiet.max(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A GPU of 12,000 MiB, of which others hold some and a run `held`.
    struct Gpu {
        room: Room,
        number: u64,
        held: u64,
    }

    impl Gpu {
        fn observe(&mut self, others: u64, wanted: Option<u64>) -> Option<Change> {
            self.number += 1;
            let left = (12_000 - others as i64 - self.held as i64) * MIB as i64;
            let held = self.held * MIB;
            let reading = MemoryReading { number: self.number, total: 12_000 * MIB, left, held };
            assert_eq!(reading.others(), others * MIB);
            self.room.observe(reading, wanted.map(|it| it * MIB), Duration::from_secs(self.number))
        }

        fn new(held: u64) -> Self {
            Self { room: Room::new(Duration::from_secs(120)), number: 0, held }
        }
    }

    #[test]
    fn a_run_makes_way_when_others_take_what_was_left() {
        let mut gpu = Gpu::new(10_000);
        // The first reading is of a run that has just begun.
        for others in [900, 900, 1000, 950, 1300] {
            assert_eq!(gpu.observe(others, None), None);
        }
        // A moment is no reason, and neither is one reading that is seen twice.
        assert_eq!(gpu.observe(1990, None), None);
        let same = gpu.room.latest();
        assert_eq!(gpu.room.observe(same, None, Duration::ZERO), None);
        assert_eq!(gpu.observe(1300, None), None);
        assert_eq!(gpu.observe(2500, None), None);
        let least = (12_000 - 2500 - 600) * MIB;
        assert_eq!(gpu.observe(2500, None), Some(Change::Less(least)));
        // While the run gives memory back, nothing is known.
        gpu.held = 8000;
        gpu.room.change_plan();
        assert_eq!([gpu.observe(4000, None), gpu.observe(4000, None)], [None; 2]);
        assert_eq!(gpu.observe(4000, None), Some(Change::Less(7400 * MIB)));
    }

    #[test]
    fn a_run_that_fills_its_device_by_itself_makes_no_way() {
        let mut gpu = Gpu::new(11_000);
        for _ in 0..50 {
            assert_eq!(gpu.observe(990, None), None);
            assert_eq!(gpu.observe(1000, None), None);
        }
        // The driver grants less than the run holds.
        assert_eq!(
            [gpu.observe(1500, None), gpu.observe(1500, None)],
            [None, Some(Change::Less(9900 * MIB))]
        );
    }

    #[test]
    fn a_run_takes_its_room_again_when_it_has_been_there_for_long() {
        let mut gpu = Gpu::new(5000);
        // 10,000 MiB and half of the reserve of 600.
        assert!((0..1000).all(|_| gpu.observe(1701, Some(10_000)).is_none()));
        let mut changes = || (0..200).position(|_| gpu.observe(1700, Some(10_000)).is_some());
        assert_eq!(changes(), Some(120));
        assert_eq!(gpu.observe(2000, Some(10_000)), None);
        let mut changes = || (0..200).position(|_| gpu.observe(1000, Some(10_000)).is_some());
        assert_eq!(changes(), Some(120));
        assert!((0..1000).all(|_| gpu.observe(1000, None).is_none()));
    }

    #[test]
    fn a_run_waits_for_no_more_than_it_had() {
        let mut gpu = Gpu::new(11_000);
        (0..4).for_each(|_| assert_eq!(gpu.observe(500, None), None));
        assert_eq!(gpu.room.need(4000 * MIB), 4300 * MIB);
        // There were 11,500 MiB, and the device will never have more.
        assert_eq!(gpu.room.need(11_400 * MIB), 11_500 * MIB);
    }
}
