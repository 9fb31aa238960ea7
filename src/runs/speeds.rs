//! Measured speeds of devices, kept in the user's cache folder.
//!
//! Runs and `wgpt plan --calibrate` add to them. Nothing depends on the file but estimates of time,
//! so that a file that is missing, damaged or not writable is no error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::config::Precision;
use crate::disk;
use crate::gpu::{Backend, DeviceInfo, DriverTraits};
use crate::ops::{Implementation, OpsMode};
use crate::plan::{DeviceSpeed, SpeedPoint, gpu_named};

const SPEEDS_FILE: &str = "speeds.json";

/// The most points of a device. The oldest are dropped.
const MAX_POINTS: usize = 16;

/// A new point replaces those whose operations per op are within this factor.
const SAME_WORK: f64 = 1.5;

/// The content of the file: points by device, the newest last.
type Speeds = BTreeMap<String, Vec<SpeedPoint>>;

/// Returns the speed of a device in the precision of `mode`: measured, else from the peak that its
/// vendor publishes, if that is known.
pub(crate) fn known(device: &DeviceInfo, mode: OpsMode) -> Option<DeviceSpeed> {
    let measured = || DeviceSpeed::measured(read::<Speeds>(&file()?).remove(&key(device, mode)?)?);
    let published = || {
        // In another precision than f32, CUDA has kernels with peaks of their own.
        let is_known = device.id.backend != Backend::Cuda || mode.precision == Precision::FLOAT32;
        let gpu = gpu_named(&device.name).filter(|_| is_known)?;
        DeviceSpeed::published(gpu, mode.precision)
    };
    measured().or_else(published)
}

/// Returns what the driver of a device needs of launches, by the speed that is known in the precision of
/// `mode`.
pub(crate) fn driver_traits(device: &DeviceInfo, mode: OpsMode) -> DriverTraits {
    DriverTraits::of(device, known(device, mode).and_then(|speed| speed.flop_per_s()))
}

pub(crate) fn remember(device: &DeviceInfo, mode: OpsMode, points: &[SpeedPoint]) {
    if let (Some(file), Some(key)) = (file(), key(device, mode)) {
        let mut speeds: Speeds = read(&file);
        add(&mut speeds, key, points);
        // It is only a cache.
        let _ = disk::replace_json(&file, &speeds);
    }
}

fn file() -> Option<PathBuf> {
    Some(folder()?.join(SPEEDS_FILE))
}

#[cfg(not(any(test, target_arch = "wasm32")))]
pub(crate) fn folder() -> Option<PathBuf> {
    // Windows' own call knows no variable, which a test or a person sets.
    let local = std::env::var_os("LOCALAPPDATA").filter(|_| cfg!(windows));
    let cache = local.map(PathBuf::from).or_else(dirs::cache_dir)?;
    Some(cache.join("wgpt"))
}

/// Returns `None`: a browser has no cache folder, and the tests of the library must not read the user's.
#[cfg(any(test, target_arch = "wasm32"))]
pub(crate) fn folder() -> Option<PathBuf> {
    None
}

/// Returns the key of a device and dtype. Another driver or another version of wgpt may have another
/// speed. `None` for ops that were chosen to debug.
fn key(device: &DeviceInfo, mode: OpsMode) -> Option<String> {
    let is_usual = mode.implementation == Implementation::Auto;
    is_usual.then(|| key_of(device, &mode.precision.dtype().to_string()))
}

/// Returns the key of `what` about a device with its driver, in this version of wgpt.
pub(super) fn key_of(device: &DeviceInfo, what: &str) -> String {
    let DeviceInfo { id, name, driver, .. } = device;
    format!("{name}, {}, {driver}, {what}, {VERSION}", id.backend)
}

pub(super) const VERSION: &str = concat!("wgpt ", env!("CARGO_PKG_VERSION"));

/// Reads a file of this folder. One that is missing or damaged is empty.
pub(super) fn read<T: DeserializeOwned + Default>(file: &Path) -> T {
    let text = disk::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Adds points, and drops what other versions of wgpt measured.
fn add(speeds: &mut Speeds, key: String, points: &[SpeedPoint]) {
    speeds.retain(|key, _| key.ends_with(VERSION));
    let known = speeds.entry(key).or_default();
    for new in points {
        let is_same =
            |old: &SpeedPoint| (old.flop / new.flop).max(new.flop / old.flop) <= SAME_WORK;
        known.retain(|old| !is_same(old));
        known.push(*new);
    }
    let excess = known.len().saturating_sub(MAX_POINTS);
    known.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Work;

    fn point(flop: f64, seconds: f64) -> SpeedPoint {
        SpeedPoint { flop, seconds }
    }

    #[test]
    fn speeds_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/wgpt").join(SPEEDS_FILE);
        let key = format!("a GPU, {VERSION}");
        let mut speeds: Speeds = read(&file);
        assert_eq!(speeds.get(&key), None);
        add(&mut speeds, key.clone(), &[point(1e6, 1e-5), point(1e9, 1e-3)]);
        disk::replace_json(&file, &speeds).unwrap();
        let found: Speeds = read(&file);
        assert_eq!(found, speeds);
        let speed = DeviceSpeed::measured(found[&key].clone()).unwrap();
        assert!(
            (speed.seconds(Work { flop: 4e9, ops: 4.0, ..Work::default() }) - 4e-3).abs() < 1e-9
        );
        disk::write(&file, "{\"a\": [{\"fl").unwrap();
        assert_eq!(read::<Speeds>(&file), Speeds::default());
    }

    #[test]
    fn newer_points_and_versions_replace_older_ones() {
        let mut speeds = Speeds::default();
        add(&mut speeds, "a GPU, wgpt 0.0.1".into(), &[point(1e6, 1.0)]);
        let key = format!("a GPU, {VERSION}");
        add(&mut speeds, key.clone(), &[point(1e6, 1.0), point(1e9, 2.0)]);
        add(&mut speeds, key.clone(), &[point(1.4e6, 3.0)]);
        assert_eq!(speeds.keys().collect::<Vec<_>>(), [&key]);
        assert_eq!(speeds[&key], [point(1e9, 2.0), point(1.4e6, 3.0)]);
        let many: Vec<SpeedPoint> = (0..40).map(|i| point(2f64.powi(i), 1.0)).collect();
        add(&mut speeds, key.clone(), &many);
        assert_eq!(speeds[&key].len(), MAX_POINTS);
        assert_eq!(speeds[&key].last(), many.last());
    }
}
