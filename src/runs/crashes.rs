//! Kernels that have crashed a trainer, kept in the user's cache folder next to the measured speeds: later
//! runs avoid them.
//!
//! The keys of the file name device, backend, driver, dtype and version of wgpt, so that another driver or
//! version tries again. A file that is missing, damaged or not writable is no error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::speeds::{VERSION, folder, key, read};
use crate::config::Dtype;
use crate::disk;
use crate::gpu::DeviceInfo;
use crate::ops::OpsMode;

const CRASHES_FILE: &str = "crashes.json";

/// The kernels that crash a trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kernels {
    CooperativeMatrices,
}

/// The content of the file, by device.
type Crashes = BTreeMap<String, Kernels>;

fn file() -> Option<PathBuf> {
    Some(folder()?.join(CRASHES_FILE))
}

/// Removes the cooperative matrices from `device` if a run in `dtype` would use them and a trainer has
/// crashed with them. Returns a warning then, which says how to try again.
pub(crate) fn avoid_matrices(
    device: &mut DeviceInfo,
    mode: OpsMode,
    dtype: Dtype,
) -> Option<String> {
    avoid_in(&file()?, device, mode, dtype)
}

fn avoid_in(file: &Path, device: &mut DeviceInfo, mode: OpsMode, dtype: Dtype) -> Option<String> {
    let mode = mode.for_run(dtype, device).ok()?;
    mode.precision.matrices()?;
    let crashes: Crashes = read(file);
    crashes.get(&key(device, mode)?)?;
    device.abilities = device.abilities.without_matrices();
    let (name, file) = (&device.name, file.display());
    Some(format!(
        "a trainer has crashed with the cooperative matrices of {name}: computing without them, which is \
         slower; another driver tries them again, or delete {file}"
    ))
}

/// Remembers that a trainer has crashed with the cooperative matrices of `device`, which runs in `mode` use.
pub(crate) fn remember_matrices_crash(device: &DeviceInfo, mode: OpsMode) {
    if let Some(file) = file() {
        remember_in(&file, device, mode);
    }
}

fn remember_in(file: &Path, device: &DeviceInfo, mode: OpsMode) {
    let Some(key) = key(device, mode) else { return };
    let mut crashes: Crashes = read(file);
    crashes.retain(|key, _| key.ends_with(VERSION));
    crashes.insert(key, Kernels::CooperativeMatrices);
    // It is only a cache.
    let _ = disk::replace_json(file, &crashes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Abilities, Matrices};

    #[test]
    fn matrices_that_have_crashed_are_avoided_until_the_driver_changes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join(CRASHES_FILE);
        let (float16, matrices) = (true, Some(Matrices::Sixteen));
        let abilities = Abilities { float16, matrices, ..Abilities::default() };
        let gpu =
            |driver: &str| DeviceInfo { driver: driver.into(), abilities, ..DeviceInfo::cpu() };
        let avoids = |driver, dtype| {
            let mut device = gpu(driver);
            let warning = avoid_in(&file, &mut device, OpsMode::AUTO, dtype);
            assert_eq!(device.abilities.matrices.is_none(), warning.is_some(), "{warning:?}");
            warning
        };
        assert_eq!(avoids("595.58", Dtype::Auto), None);
        let mode = OpsMode::AUTO.for_run(Dtype::Auto, &gpu("595.58")).unwrap();
        remember_in(&file, &gpu("595.58"), mode);
        for dtype in [Dtype::Auto, Dtype::Float16] {
            let warning = avoids("595.58", dtype).unwrap();
            assert!(warning.contains(CRASHES_FILE), "{warning}");
        }
        assert_eq!(avoids("595.58", Dtype::Float32), None);
        assert_eq!(avoids("600.10", Dtype::Auto), None);
        disk::write(&file, "{\"a\": tr").unwrap();
        assert_eq!(avoids("595.58", Dtype::Auto), None);
    }
}
