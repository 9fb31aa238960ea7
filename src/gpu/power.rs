//! The power that a GPU draws, as its driver reports it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::DeviceInfo;
use crate::disk;

const INTERVAL: Duration = Duration::from_millis(500);

pub struct PowerMeter {
    /// The readings end when it is dropped.
    stop: Sender<()>,
    readings: JoinHandle<Vec<f64>>,
}

impl PowerMeter {
    /// Starts to read. Returns `None` for a device whose power is not reported.
    pub fn start(info: &DeviceInfo) -> Option<Self> {
        let pci = info.pci.as_deref()?.to_ascii_lowercase();
        watts(&pci)?;
        let (stop, stopped) = mpsc::channel();
        let readings = std::thread::spawn(move || {
            let mut readings = Vec::new();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                readings.extend(watts(&pci));
            }
            readings
        });
        Some(Self { stop, readings })
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

/// Returns the power of the device at a PCI address, from Linux (AMD, Intel) or NVIDIA's own program.
fn watts(pci: &str) -> Option<f64> {
    kernel_watts(pci).or_else(|| nvidia_watts(pci))
}

fn kernel_watts(pci: &str) -> Option<f64> {
    let folder = format!("/sys/bus/pci/devices/{pci}/hwmon");
    let sensors = disk::read_dir(Path::new(&folder)).ok()?.flatten();
    let mut files = sensors
        .flat_map(|sensor| ["power1_average", "power1_input"].map(|name| sensor.path().join(name)));
    let microwatts = |file: PathBuf| disk::read_to_string(file).ok()?.trim().parse::<f64>().ok();
    Some(files.find_map(microwatts)? * 1e-6)
}

fn nvidia_watts(pci: &str) -> Option<f64> {
    let arguments = ["--query-gpu=power.draw", "--format=csv,noheader,nounits", "-i", pci];
    let output = Command::new("nvidia-smi")
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_exist_reports_nothing() {
        assert_eq!(watts("ffff:ff:1f.7"), None);
    }

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
