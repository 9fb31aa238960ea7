//! Reads the files in which Linux reports the state of a GPU, for amdgpu, i915, xe and nouveau.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::disk;
use crate::plan::{DeviceHealth, Throttle};

/// The files of a PCI device.
#[derive(Debug)]
pub(super) struct KernelFiles {
    /// `/sys`, or a copy of it for tests.
    folder: PathBuf,
    hwmon: Option<PathBuf>,
    /// A reading of the joules that the GPU has drawn.
    drawn: Option<(Instant, f64)>,
}

/// Places of the clock in MHz: of a card of i915, and of xe.
const CLOCKS: [&str; 2] = ["drm/*/gt_act_freq_mhz", "tile0/gt0/freq0/act_freq"];

/// Files of i915 and xe that contain a 1 while the clock is lowered for this reason.
const THROTTLES: [(&str, Throttle); 4] = [
    ("drm/*/gt/gt0/throttle_reason_thermal", Throttle::Heat),
    ("tile0/gt0/freq0/throttle/reason_thermal", Throttle::Heat),
    ("drm/*/gt/gt0/throttle_reason_pl1", Throttle::PowerLimit),
    ("tile0/gt0/freq0/throttle/reason_pl1", Throttle::PowerLimit),
];

impl KernelFiles {
    /// Finds the files of the device at a PCI address below `root`, which is `/sys` but in tests.
    pub fn of(root: &Path, pci: &str) -> Option<Self> {
        let folder = root.join("bus/pci/devices").join(pci);
        if !disk::is_dir(&folder) {
            return None;
        }
        let hwmon = first_in(&folder.join("hwmon"));
        Some(Self { folder, hwmon, drawn: None })
    }

    /// Returns the bytes of the GPU and the part of them that is free, which amdgpu reports.
    pub fn memory(&self) -> Option<[u64; 2]> {
        let bytes = |name: &str| Some(self.number(name)? as u64);
        let (total, used) = (bytes("mem_info_vram_total")?, bytes("mem_info_vram_used")?);
        Some([total, total.saturating_sub(used)])
    }

    pub fn health(&mut self) -> DeviceHealth {
        let sensor = |name: &str| number(&self.hwmon.as_ref()?.join(name));
        // The first temperature is the edge's on AMD's GPUs; Intel's begin at the second.
        let celsius = sensor("temp1_input").or_else(|| sensor("temp2_input"));
        let microwatts = sensor("power1_average").or_else(|| sensor("power1_input"));
        let hertz = sensor("freq1_input");
        let joules = sensor("energy1_input").map(|microjoules| microjoules * 1e-6);
        let clock = hertz.map(|hertz| hertz * 1e-6);
        let mean = joules.and_then(|joules| self.mean_watts(Instant::now(), joules));
        let throttled = THROTTLES.iter().find(|(file, _)| self.number(file) == Some(1.0));
        DeviceHealth {
            utilization: None,
            celsius: celsius.map(|thousandths| thousandths * 1e-3),
            watts: microwatts.map(|microwatts| microwatts * 1e-6).or(mean),
            // An Intel GPU that sleeps has no clock.
            clock_mhz: clock
                .or_else(|| CLOCKS.iter().find_map(|file| self.number(file)))
                .filter(|clock| *clock > 0.0),
            throttled: throttled.map(|(_, reason)| *reason),
        }
    }

    /// Returns the mean power since the last reading of the energy.
    fn mean_watts(&mut self, now: Instant, joules: f64) -> Option<f64> {
        let (before, drawn) = self.drawn.replace((now, joules))?;
        let seconds = now.duration_since(before).as_secs_f64();
        (seconds > 0.0 && joules >= drawn).then(|| (joules - drawn) / seconds)
    }

    /// Reads the number in a file of the device. `*` stands for the name of its card.
    fn number(&self, file: &str) -> Option<f64> {
        let path = match file.split_once("/*/") {
            Some((folder, rest)) => card_in(&self.folder.join(folder))?.join(rest),
            None => self.folder.join(file),
        };
        number(&path)
    }
}

fn number(path: &Path) -> Option<f64> {
    disk::read_to_string(path).ok()?.trim().parse().ok()
}

fn first_in(folder: &Path) -> Option<PathBuf> {
    disk::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).min()
}

fn card_in(folder: &Path) -> Option<PathBuf> {
    let names = disk::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_card = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("card"))
    };
    names.filter(is_card).min()
}

/// Returns the processes that hold memory of the GPU at a PCI address, by their numbers, and the bytes.
/// Reads what the drivers write next to each open file below `root`, which is `/proc` but in tests. The
/// kernel hides the files of other users.
pub(super) fn holders(root: &Path, pci: &str) -> Vec<(u32, u64)> {
    let Ok(processes) = disk::read_dir(root) else { return Vec::new() };
    let processes = processes.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let files = disk::read_dir(entry.path().join("fdinfo")).ok()?.flatten();
        // A process may have the same client of the driver open several times.
        let texts = files.filter_map(|file| disk::read_to_string(file.path()).ok());
        let clients: BTreeMap<String, u64> =
            texts.filter_map(|text| client_memory(&text, pci)).collect();
        let bytes = clients.values().sum();
        (bytes > 0).then_some((pid, bytes))
    });
    processes.collect()
}

/// Returns the client of a driver on the GPU and its bytes of the GPU's memory, from the text of a
/// file in `/proc/PID/fdinfo`; `None` for a file of anything else.
fn client_memory(text: &str, pci: &str) -> Option<(String, u64)> {
    // `vram` of amdgpu, `vram0` of xe, `local0` of i915. Older kernels have `memory` alone.
    const KEYS: [&str; 3] = ["drm-resident-vram", "drm-resident-local", "drm-memory-vram"];
    let pairs = || text.lines().filter_map(|line| line.split_once(':'));
    let value = |key: &str| Some(pairs().find(|(name, _)| *name == key)?.1.trim());
    if !value("drm-pdev")?.eq_ignore_ascii_case(pci) {
        return None;
    }
    let kib = |text: &str| {
        let (number, unit) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let unit = match unit {
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            _ => 1,
        };
        Some(number.parse::<u64>().ok()?.saturating_mul(unit))
    };
    let of_key = |key: &&str| {
        let all = pairs().filter(|(name, _)| name.starts_with(*key));
        let bytes: Vec<u64> = all.filter_map(|(_, text)| kib(text)).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>())
    };
    let bytes = KEYS.iter().find_map(of_key)?;
    Some((value("drm-client-id").unwrap_or_default().to_string(), bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    /// Writes files with these texts below a new folder.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            disk::create_dir_all(path.parent().unwrap()).unwrap();
            disk::write(path, text).unwrap();
        }
        root
    }

    fn files_of(root: &TempDir) -> KernelFiles {
        KernelFiles::of(root.path(), "0000:03:00.0").unwrap()
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
        assert!(KernelFiles::of(root.path(), "0000:04:00.0").is_none());
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

    #[test]
    fn processes_with_memory_of_the_gpu_are_found() {
        let client = |pdev: &str, id: u32, memory: &str| {
            format!(
                "pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{pdev}\ndrm-client-id:\t{id}\n{memory}"
            )
        };
        let here = "0000:03:00.0";
        let old = client(here, 7, "drm-memory-vram:\t2048 KiB\ndrm-memory-gtt:\t9 KiB\n");
        let new = client(here, 8, "drm-total-vram0:\t9 MiB\ndrm-resident-vram0:\t3 MiB\n");
        let root = tree(&[
            ("1/fdinfo/0", "pos:\t0\n"),
            ("22/fdinfo/5", &old),
            ("22/fdinfo/6", &old),
            ("22/fdinfo/7", &new),
            ("33/fdinfo/3", &client("0000:04:00.0", 1, "drm-memory-vram:\t4096 KiB\n")),
            ("self/fdinfo/3", &old),
        ]);
        assert_eq!(holders(root.path(), here), [(22, 5 << 20)]);
    }
}
