//! Files in the user's cache folder with facts about a device and its driver, measured by this version of wgpt.
//! Nothing depends on them: a file that is missing, damaged or not writable is no error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::disk;
use crate::gpu::DeviceInfo;

/// The end of every key: other versions may compute differently.
const VERSION: &str = concat!("wgpt ", env!("CARGO_PKG_VERSION"));

#[cfg(not(any(test, target_arch = "wasm32")))]
pub(crate) fn folder() -> Option<PathBuf> {
    // Windows' call ignores the variable, which a test or a person may have set.
    let local = std::env::var_os("LOCALAPPDATA").filter(|_| cfg!(windows));
    let cache = local.map(PathBuf::from).or_else(dirs::cache_dir)?;
    Some(cache.join("wgpt"))
}

/// Returns `None`: a browser has no cache folder, and the tests of the library must not read the user's.
#[cfg(any(test, target_arch = "wasm32"))]
pub(crate) fn folder() -> Option<PathBuf> {
    None
}

/// Returns the key of the fact `what` about a device and its driver.
pub(super) fn key(device: &DeviceInfo, what: &str) -> String {
    format!("{}, {what}, {VERSION}", beginning(device))
}

/// Returns the beginning of all keys of a device.
pub(super) fn beginning(DeviceInfo { id, name, driver, .. }: &DeviceInfo) -> String {
    format!("{name}, {}, {driver}", id.backend)
}

/// Reads the values in the file `name`, by key.
pub(super) fn read<T: DeserializeOwned>(name: &str) -> BTreeMap<String, T> {
    folder().map(|folder| read_file(&folder.join(name))).unwrap_or_default()
}

/// Changes the values in the file `name`, and drops values from other versions.
pub(super) fn change<T: Serialize + DeserializeOwned>(
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, T>),
) {
    if let Some(folder) = folder() {
        change_file(&folder.join(name), change);
    }
}

fn read_file<T: DeserializeOwned>(file: &Path) -> BTreeMap<String, T> {
    serde_json::from_slice(&disk::read(file).unwrap_or_default()).unwrap_or_default()
}

fn change_file<T: Serialize + DeserializeOwned>(
    file: &Path,
    change: impl FnOnce(&mut BTreeMap<String, T>),
) {
    let mut values = read_file(file);
    values.retain(|key, _| key.ends_with(VERSION));
    change(&mut values);
    let _ = disk::replace_json(file, &values);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_this_version_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/wgpt/values.json");
        let written = |file: &Path| read_file::<u32>(file).into_iter().collect::<Vec<_>>();
        assert_eq!(written(&file), []);
        let cpu = key(&DeviceInfo::cpu(), "float32");
        assert!(cpu.starts_with(&beginning(&DeviceInfo::cpu())) && cpu.ends_with(VERSION));
        change_file(&file, |values| values.extend([("a GPU, wgpt 0.0.1".into(), 1)]));
        change_file(&file, |values| values.extend([(cpu.clone(), 2)]));
        assert_eq!(written(&file), [(cpu.clone(), 2)]);
        disk::write(&file, "{\"a\": ").unwrap();
        assert_eq!(written(&file), []);
        let newer = DeviceInfo { driver: "600.1".into(), ..DeviceInfo::cpu() };
        assert_ne!(key(&newer, "float32"), cpu);
    }
}
