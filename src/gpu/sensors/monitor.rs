//! Reads sensors on a thread, so that no step waits for them.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::readings::Sensors;
use crate::gpu::device::{OpenDevice, memory_adapter};
use crate::gpu::memory::{ReportedMemory, physical_device};
use crate::plan::{DeviceHealth, DeviceKind, OtherUse};
use crate::protocol::DeviceInfo;

/// Calls `read` on another thread, now and at every interval, until the returned value is dropped.
/// Returns `None` if no thread can be started.
fn repeat(interval: Duration, mut read: impl FnMut() + Send + 'static) -> Option<Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    let readings = move || {
        loop {
            read();
            if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("sensors".into());
    thread.spawn(readings).is_ok().then_some(stop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The latest reading of a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceReading {
    /// Each reading has the next number.
    pub number: u64,
    pub memory: Option<ReportedMemory>,
    pub health: DeviceHealth,
    /// The use by other programs, where it is watched and known.
    pub others: Option<OtherUse>,
}

/// Watches a device during a run.
pub struct DeviceMonitor {
    latest: Arc<Mutex<DeviceReading>>,
    /// The readings end when it is dropped.
    _stop: Option<Sender<()>>,
}

impl DeviceMonitor {
    /// Reads the state of an open device, and starts to read it again every second, with the use by other programs if
    /// `watches_others`. The CPU has nothing to read.
    pub fn start(device: &OpenDevice, watches_others: bool) -> Self {
        let latest = Arc::<Mutex<DeviceReading>>::default();
        if device.info.kind == DeviceKind::Cpu {
            return Self { latest, _stop: None };
        }
        let physical = physical_device(&device.device);
        let mut sensors = Sensors::of(&device.info, device.adapter.clone(), physical);
        let mut number = 0;
        let mut reading = move || {
            number += 1;
            let others = if watches_others { sensors.others() } else { None };
            DeviceReading { number, memory: sensors.memory(), health: sensors.health(), others }
        };
        *lock(&latest) = reading();
        let shared = latest.clone();
        let read = move || {
            let reading = reading();
            *lock(&shared) = reading;
        };
        Self { latest, _stop: repeat(Duration::from_secs(1), read) }
    }

    pub fn latest(&self) -> DeviceReading {
        lock(&self.latest).clone()
    }
}

/// Watches a device that this process does not open.
pub struct DeviceWatch(Sensors);

impl DeviceWatch {
    pub fn start(info: &DeviceInfo) -> Self {
        let mut sensors = Sensors::of(info, memory_adapter(info), None);
        sensors.others();
        Self(sensors)
    }

    /// Returns the total and the free memory of the device in bytes, and its use by other programs, as far as the
    /// system reports them.
    pub fn read(&mut self) -> (Option<[u64; 2]>, Option<OtherUse>) {
        (self.0.memory().map(|memory| [memory.total, memory.free]), self.0.others())
    }
}

/// Measures the power that a GPU draws, as its driver reports it.
pub struct PowerMeter {
    watts: Arc<Mutex<Vec<f64>>>,
    /// The readings end when it is dropped.
    _stop: Option<Sender<()>>,
}

impl PowerMeter {
    /// Starts to read a device. There are no readings if nothing reports its power.
    pub fn start(info: &DeviceInfo) -> Self {
        let mut sensors = Sensors::of(info, None, None);
        let watts = Arc::<Mutex<Vec<f64>>>::default();
        let readings = watts.clone();
        let mut is_busy = false;
        let read = move || {
            let watts = sensors.health().watts;
            // The first reading is of a device that has just begun.
            lock(&readings).extend(watts.filter(|_| is_busy));
            is_busy = true;
        };
        Self { watts, _stop: repeat(Duration::from_millis(500), read) }
    }

    /// Stops reading. Returns the median of the readings in watts, or `None` without any.
    pub fn finish(self) -> Option<f64> {
        let mut watts = lock(&self.watts);
        watts.sort_by(f64::total_cmp);
        watts.get(watts.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_readings_is_returned() {
        let meter =
            |watts: Vec<f64>| PowerMeter { watts: Arc::new(Mutex::new(watts)), _stop: None };
        assert_eq!(meter(vec![300.0, 20.0, 310.0]).finish(), Some(300.0));
        assert_eq!(meter(Vec::new()).finish(), None);
    }
}
