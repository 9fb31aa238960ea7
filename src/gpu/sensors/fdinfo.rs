//! Reads the memory that each process holds on a GPU from `/proc/PID/fdinfo`, for Linux's own drivers.

use std::collections::BTreeMap;
use std::path::Path;

use crate::disk;

/// Returns the ids of the processes that hold memory of the GPU at a PCI address, with their bytes.
/// Reads what the drivers write next to each open file below `root`, which is `/proc` except in tests. The
/// kernel hides the files of other users.
pub fn holders(root: &Path, pci: &str) -> Vec<(u32, u64)> {
    let Ok(processes) = disk::read_dir(root) else { return Vec::new() };
    let processes = processes.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let files = disk::read_dir(entry.path().join("fdinfo")).ok()?.flatten();
        // A process may have the same client of the driver open several times.
        let files = files.filter_map(|file| disk::read_to_string(file.path()).ok());
        let clients: BTreeMap<String, u64> =
            files.filter_map(|text| client_memory(&text, pci)).collect();
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
}
