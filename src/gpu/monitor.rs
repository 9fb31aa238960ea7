//! Watches a device on a thread of its own, so that no step waits for what the system tells.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::reported_memory::ReportedMemory;
use super::sensors::Sensors;
use super::{DeviceKind, OpenDevice, meter};
use crate::plan::DeviceHealth;

const INTERVAL: Duration = Duration::from_secs(1);

/// The latest reading of a device.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub memory: Option<ReportedMemory>,
    pub health: DeviceHealth,
}

pub struct DeviceMonitor {
    latest: Arc<Mutex<Reading>>,
    /// The readings end when it is dropped.
    _stop: Option<Sender<()>>,
}

impl DeviceMonitor {
    /// Reads the memory of an open device, and starts to read it again every second. The CPU has
    /// nothing to read.
    pub fn start(device: &OpenDevice) -> Self {
        let latest = Arc::<Mutex<Reading>>::default();
        if device.info.kind == DeviceKind::Cpu {
            return Self { latest, _stop: None };
        }
        let card = meter::card(&device.device);
        let mut sensors = Sensors::of(&device.info, device.adapter.clone(), card);
        let (stop, stopped) = mpsc::channel();
        let mut reading = Reading { memory: sensors.memory(), ..Reading::default() };
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = reading.clone();
        let shared = latest.clone();
        let watch = move || {
            loop {
                reading.health = sensors.health();
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = reading.clone();
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                reading.memory = sensors.memory();
            }
        };
        // Without another thread, the first reading stays.
        let thread = std::thread::Builder::new().name("monitor".into());
        let _stop = thread.spawn(watch).is_ok().then_some(stop);
        Self { latest, _stop }
    }

    pub fn latest(&self) -> Reading {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
