//! Reads what each process holds and uses of a GPU from `/proc/PID/fdinfo`, for Linux's own drivers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::disk;

/// A process has several clients of a driver, each open in one or more of its files.
type Clients<T> = BTreeMap<(u32, String), T>;

/// Reads the clients of the GPU at a PCI address from what the drivers write next to each open file below `root`,
/// which is `/proc` except in tests. The kernel hides the files of other users.
fn clients<T>(root: &Path, pci: &str, read: impl Fn(&Fields) -> Option<T>) -> Clients<T> {
    let Ok(processes) = disk::read_dir(root) else { return Clients::new() };
    let mut clients = Clients::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(files) = disk::read_dir(process.path().join("fdinfo")) else { continue };
        for text in files.flatten().filter_map(|file| disk::read_to_string(file.path()).ok()) {
            let fields = Fields(&text);
            let is_here = fields.get("drm-pdev").is_some_and(|at| at.eq_ignore_ascii_case(pci));
            if let Some(value) = is_here.then(|| read(&fields)).flatten() {
                let id = fields.get("drm-client-id").unwrap_or_default();
                clients.insert((pid, id.to_string()), value);
            }
        }
    }
    clients
}

/// The text of a file in `/proc/PID/fdinfo`.
struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn all(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.lines().filter_map(|line| line.split_once(':')).map(|(name, it)| (name, it.trim()))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.all().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns the bytes of the GPU's memory.
    fn memory(&self) -> Option<u64> {
        // `vram` of amdgpu, `vram0` of xe, `local0` of i915. Older kernels have `memory` alone.
        const KEYS: [&str; 3] = ["drm-resident-vram", "drm-resident-local", "drm-memory-vram"];
        let of_key = |key: &&str| {
            let all = self.all().filter(|(name, _)| name.starts_with(*key));
            let bytes: Vec<u64> = all.filter_map(|(_, text)| bytes(text)).collect();
            (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>())
        };
        KEYS.iter().find_map(of_key)
    }

    /// Returns how long the GPU has drawn or computed for a client, and the total, both in the driver's unit. Video
    /// engines do not count.
    fn busy(&self, now: u64) -> Option<[u64; 2]> {
        // Nanoseconds of amdgpu and i915.
        const TIMES: [&str; 3] = ["drm-engine-gfx", "drm-engine-render", "drm-engine-compute"];
        // Cycles of xe.
        const CYCLES: [&str; 2] = ["rcs", "ccs"];
        let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
        let value = |name: &str| self.get(name).and_then(number);
        let times: Vec<u64> = TIMES.into_iter().filter_map(value).collect();
        if !times.is_empty() {
            return Some([times.iter().sum(), now]);
        }
        let of = |engine: &&str| {
            Some([
                value(&format!("drm-cycles-{engine}"))?,
                value(&format!("drm-total-cycles-{engine}"))?,
            ])
        };
        let engines: Vec<[u64; 2]> = CYCLES.iter().filter_map(of).collect();
        let total = engines.iter().map(|[_, total]| *total).max()?;
        Some([engines.iter().map(|[busy, _]| busy).sum(), total])
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let unit = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => 1,
    };
    Some(number.parse::<u64>().ok()?.saturating_mul(unit))
}

/// Returns the ids of the processes that hold memory of the GPU at a PCI address, with their bytes.
pub fn holders(root: &Path, pci: &str) -> Vec<(u32, u64)> {
    let mut processes = BTreeMap::<u32, u64>::new();
    for ((pid, _), bytes) in clients(root, pci, |fields| fields.memory()) {
        *processes.entry(pid).or_default() += bytes;
    }
    processes.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
}

/// The times for which the GPU has worked, as last read.
#[derive(Debug)]
pub struct BusyTimes {
    root: PathBuf,
    began: Instant,
    clients: Option<Clients<[u64; 2]>>,
}

impl BusyTimes {
    pub fn new(root: &Path) -> Self {
        Self { root: root.into(), began: Instant::now(), clients: None }
    }

    /// Returns the share of the time since the last call for which the GPU at a PCI address has worked, for each
    /// process. `None` at the first call, and if its driver does not tell.
    pub fn shares(&mut self, pci: &str) -> Option<Vec<(u32, f64)>> {
        let now = self.began.elapsed().as_nanos() as u64;
        self.shares_at(pci, now)
    }

    fn shares_at(&mut self, pci: &str, now: u64) -> Option<Vec<(u32, f64)>> {
        let clients = clients(&self.root, pci, |fields| fields.busy(now));
        // This process is a client, too, as soon as it has opened the GPU.
        let known = (!clients.is_empty()).then_some(clients);
        let before = std::mem::replace(&mut self.clients, known)?;
        let now = self.clients.as_ref()?;
        let shares = now.iter().filter_map(|(client, [busy, total])| {
            let [busy_before, total_before] = before.get(client)?;
            let time = total.saturating_sub(*total_before);
            let share = busy.saturating_sub(*busy_before) as f64 / time as f64;
            (time > 0).then_some((client.0, share))
        });
        Some(shares.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::sensors::tree;

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

    #[test]
    fn the_time_of_each_process_is_read() {
        const SECOND: u64 = 1_000_000_000;
        let here = "0000:03:00.0";
        let client =
            |id: u32, times: &str| format!("drm-pdev:\t{here}\ndrm-client-id:\t{id}\n{times}\n");
        let time = |engine: &str, ns: u64| format!("drm-engine-{engine}:\t{ns} ns");
        let root = tree(&[
            ("22/fdinfo/5", &client(1, &time("gfx", SECOND))),
            ("22/fdinfo/6", &client(2, &time("compute", 0))),
            ("33/fdinfo/4", &client(3, &time("dec", 0))),
            ("44/fdinfo/4", &client(4, "drm-cycles-rcs:\t100\ndrm-total-cycles-rcs:\t1000")),
        ]);
        let mut times = BusyTimes::new(root.path());
        assert_eq!(times.shares_at(here, 7 * SECOND), None);
        for (path, id, now) in [
            ("22/fdinfo/5", 1, time("gfx", 2 * SECOND)),
            ("22/fdinfo/6", 2, time("compute", SECOND / 2)),
            ("33/fdinfo/4", 3, time("dec", 2 * SECOND)),
            ("44/fdinfo/4", 4, "drm-cycles-rcs:\t200\ndrm-total-cycles-rcs:\t1400".into()),
        ] {
            disk::write(root.path().join(path), client(id, &now)).unwrap();
        }
        let shares = times.shares_at(here, 9 * SECOND).unwrap();
        assert_eq!(shares, [(22, 0.5), (22, 0.25), (44, 0.25)]);
        assert_eq!(BusyTimes::new(root.path()).shares_at("0000:04:00.0", 0), None);
    }
}
