//! Reads the files below `/sys` in which Linux reports the state of a GPU, for amdgpu, i915, xe and nouveau.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::disk;
use crate::plan::{DeviceHealth, Throttle};

/// The files of a PCI device.
#[derive(Debug)]
pub struct Sysfs {
    /// Its folder below `/sys`, or a copy of it for tests.
    folder: PathBuf,
    /// The last reading of the joules that the GPU has drawn.
    drawn: Option<(Instant, f64)>,
}

/// The files of a quantity, each with the factor to its unit. The first that exists is read. `*` stands
/// for the rest of the first matching name.
type Files = &'static [(&'static str, f64)];

/// The first temperature is the edge's on AMD's GPUs; Intel's begin at the second.
const CELSIUS: Files = &[("hwmon/*/temp1_input", 1e-3), ("hwmon/*/temp2_input", 1e-3)];
const WATTS: Files = &[("hwmon/*/power1_average", 1e-6), ("hwmon/*/power1_input", 1e-6)];
const JOULES: Files = &[("hwmon/*/energy1_input", 1e-6)];
/// Of amdgpu, i915 and xe.
const CLOCK_MHZ: Files = &[
    ("hwmon/*/freq1_input", 1e-6),
    ("drm/card*/gt_act_freq_mhz", 1.0),
    ("tile0/gt0/freq0/act_freq", 1.0),
];

/// Files of i915 and xe that contain a 1 while the clock is lowered for this reason.
const THROTTLES: [(&str, Throttle); 4] = [
    ("drm/card*/gt/gt0/throttle_reason_thermal", Throttle::Heat),
    ("tile0/gt0/freq0/throttle/reason_thermal", Throttle::Heat),
    ("drm/card*/gt/gt0/throttle_reason_pl1", Throttle::PowerLimit),
    ("tile0/gt0/freq0/throttle/reason_pl1", Throttle::PowerLimit),
];

impl Sysfs {
    /// Finds the files of the device at a PCI address below `root`, which is `/sys` except in tests.
    pub fn of(root: &Path, pci: &str) -> Option<Self> {
        let folder = root.join("bus/pci/devices").join(pci);
        disk::is_dir(&folder).then_some(Self { folder, drawn: None })
    }

    /// Returns the total and the free memory of the GPU in bytes, which amdgpu reports.
    pub fn memory(&self) -> Option<[u64; 2]> {
        let total = self.number("mem_info_vram_total")? as u64;
        let used = self.number("mem_info_vram_used")? as u64;
        Some([total, total.saturating_sub(used)])
    }

    /// Returns true if a display is connected to the GPU.
    pub fn has_display(&self) -> bool {
        let cards = all_in(&self.folder.join("drm"), "card");
        let connectors = cards.iter().flat_map(|card| all_in(card, "card"));
        let mut states = connectors.filter_map(|it| disk::read_to_string(it.join("status")).ok());
        states.any(|state| state.trim() == "connected")
    }

    pub fn health(&mut self) -> DeviceHealth {
        let mean = self.read(JOULES).and_then(|joules| self.mean_watts(Instant::now(), joules));
        let throttled = THROTTLES.iter().find(|(file, _)| self.number(file) == Some(1.0));
        DeviceHealth {
            utilization: None,
            celsius: self.read(CELSIUS),
            watts: self.read(WATTS).or(mean),
            // An Intel GPU that sleeps has no clock.
            clock_mhz: self.read(CLOCK_MHZ).filter(|clock| *clock > 0.0),
            throttled: throttled.map(|(_, reason)| *reason),
        }
    }

    /// Returns the mean power since the last reading of the energy.
    fn mean_watts(&mut self, now: Instant, joules: f64) -> Option<f64> {
        let (before, drawn) = self.drawn.replace((now, joules))?;
        let seconds = now.duration_since(before).as_secs_f64();
        (seconds > 0.0 && joules >= drawn).then(|| (joules - drawn) / seconds)
    }

    fn read(&self, files: Files) -> Option<f64> {
        files.iter().find_map(|(file, factor)| Some(self.number(file)? * factor))
    }

    /// Reads the number in a file of the device.
    fn number(&self, file: &str) -> Option<f64> {
        let path = match file.split_once("*/") {
            Some((start, rest)) => {
                let (folder, start) = start.rsplit_once('/')?;
                first_in(&self.folder.join(folder), start)?.join(rest)
            }
            None => self.folder.join(file),
        };
        disk::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Returns the first path in a folder, in the order of names, whose name begins with `start`.
fn first_in(folder: &Path, start: &str) -> Option<PathBuf> {
    all_in(folder, start).into_iter().min()
}

/// Returns the paths in a folder whose names begin with `start`.
fn all_in(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(entries) = disk::read_dir(folder) else { return Vec::new() };
    let named = entries.flatten().filter(|it| it.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;
    use crate::gpu::sensors::tree;

    fn files_of(root: &TempDir) -> Sysfs {
        Sysfs::of(root.path(), "0000:03:00.0").unwrap()
    }

    #[test]
    fn the_files_of_amdgpu_are_read() {
        let root = tree(&[
            ("bus/pci/devices/0000:03:00.0/mem_info_vram_total", "17163091968\n"),
            ("bus/pci/devices/0000:03:00.0/mem_info_vram_used", "1163091968\n"),
            ("bus/pci/devices/0000:03:00.0/hwmon/hwmon4/temp1_input", "71000\n"),
            ("bus/pci/devices/0000:03:00.0/hwmon/hwmon4/power1_average", "168000000\n"),
            ("bus/pci/devices/0000:03:00.0/hwmon/hwmon4/freq1_input", "2450000000\n"),
        ]);
        let mut files = files_of(&root);
        assert_eq!(files.memory(), Some([17_163_091_968, 16_000_000_000]));
        assert_eq!(files.health().to_string(), "71 °C, 168 W, 2450 MHz");
        assert!(Sysfs::of(root.path(), "0000:04:00.0").is_none());
        // A thousandth of the second between two readings.
        let fastest = (0..20).map(|_| {
            let start = Instant::now();
            std::hint::black_box((files.memory(), files.health()));
            start.elapsed()
        });
        let fastest = fastest.min().unwrap();
        println!("a reading takes {fastest:?}");
        // Other systems have no such files, and emulators of Windows are slower.
        assert!(!cfg!(target_os = "linux") || fastest < Duration::from_millis(1), "{fastest:?}");
    }

    #[test]
    fn the_files_of_intels_drivers_are_read() {
        for (clock, heat) in [
            ("drm/card1/gt_act_freq_mhz", "drm/card1/gt/gt0/throttle_reason_thermal"),
            ("tile0/gt0/freq0/act_freq", "tile0/gt0/freq0/throttle/reason_thermal"),
        ] {
            let folder = "bus/pci/devices/0000:03:00.0";
            let root = tree(&[
                (&format!("{folder}/drm/renderD128/dev"), "226:128\n"),
                (&format!("{folder}/{clock}"), "2050\n"),
                (&format!("{folder}/{heat}"), "1\n"),
                (&format!("{folder}/hwmon/hwmon3/temp2_input"), "95000\n"),
            ]);
            let health = files_of(&root).health();
            assert_eq!(health.to_string(), "95 °C, 2050 MHz, throttled (heat)");
            assert_eq!(files_of(&root).memory(), None);
        }
    }

    #[test]
    fn a_display_is_found_at_any_connector() {
        let folder = "bus/pci/devices/0000:03:00.0/drm";
        for (second, has_display) in [("disconnected\n", false), ("connected\n", true)] {
            let root = tree(&[
                (&format!("{folder}/card1/card1-DP-1/status"), "disconnected\n"),
                (&format!("{folder}/card1/card1-HDMI-A-1/status"), second),
                (&format!("{folder}/renderD128/dev"), "226:128\n"),
            ]);
            assert_eq!(files_of(&root).has_display(), has_display);
        }
    }

    #[test]
    fn power_is_the_energy_between_two_readings() {
        let root = tree(&[("bus/pci/devices/0000:03:00.0/vendor", "0x8086\n")]);
        let mut files = files_of(&root);
        assert_eq!(files.health().known(), None);
        let start = Instant::now();
        assert_eq!(files.mean_watts(start, 100.0), None);
        assert_eq!(files.mean_watts(start + Duration::from_secs(2), 400.0), Some(150.0));
        // The counter has begun again.
        assert_eq!(files.mean_watts(start + Duration::from_secs(3), 5.0), None);
    }
}
