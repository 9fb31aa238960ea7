//! Readings of the system about a device: its memory, the programs that hold it, and its health.

mod control_groups;
mod display;
mod fdinfo;
mod host;
mod monitor;
mod nvidia;
mod other_programs;
mod readings;
mod sysfs;

pub use host::host_memory;
pub use monitor::{DeviceMonitor, DeviceReading, DeviceWatch, PowerMeter};
pub use other_programs::OtherPrograms;
pub use readings::{device_health, drives_display, memory_holders, reported_memory};

/// Writes files with this content below a new folder.
#[cfg(test)]
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = root.path().join(path);
        crate::disk::create_dir_all(path.parent().unwrap()).unwrap();
        crate::disk::write(path, content).unwrap();
    }
    root
}
