//! The power that a GPU draws, as its driver reports it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::DeviceInfo;
use super::sensors::Sensors;

const INTERVAL: Duration = Duration::from_millis(500);

pub struct PowerMeter {
    /// The readings end when it is dropped.
    stop: Sender<()>,
    readings: JoinHandle<Vec<f64>>,
}

impl PowerMeter {
    /// Starts to read a device. One whose power is not reported has no readings.
    pub fn start(info: &DeviceInfo) -> Self {
        let mut sensors = Sensors::of(info, None, None);
        let (stop, stopped) = mpsc::channel();
        let readings = std::thread::spawn(move || {
            let mut readings = Vec::new();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                readings.extend(sensors.health().watts);
            }
            readings
        });
        Self { stop, readings }
    }

    /// Stops reading. Returns the median of the readings in watts, or `None` without any.
    pub fn finish(self) -> Option<f64> {
        drop(self.stop);
        // A thread that panicked has no readings.
        let mut readings = self.readings.join().unwrap_or_default();
        readings.sort_by(f64::total_cmp);
        readings.get(readings.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_readings_is_returned() {
        let meter = |readings: Vec<f64>| PowerMeter {
            stop: mpsc::channel().0,
            readings: std::thread::spawn(|| readings),
        };
        assert_eq!(meter(vec![300.0, 20.0, 310.0]).finish(), Some(300.0));
        assert_eq!(meter(Vec::new()).finish(), None);
    }
}
