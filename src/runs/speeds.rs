//! Measured speeds of devices, kept in the user's cache folder.
//!
//! Runs and `wgpt plan --calibrate` add to them. Only estimates of time depend on the file.

use std::collections::BTreeMap;

use super::device_cache as cache;
use crate::config::{Choice, Config, Precision};
use crate::gpu::{Backend, DeviceInfo, DriverTraits, drives_display};
use crate::ops::{Implementation, OpsMode};
use crate::plan::{DeviceSpeed, SpeedPoint, gpu_named};

const SPEEDS_FILE: &str = "speeds.json";

/// The most points of a device. The oldest are dropped.
const MAX_POINTS: usize = 16;

/// A new point replaces the points within this factor of its operations per op.
const SAME_WORK: f64 = 1.5;

/// The content of the file: points by device, the newest last.
type Speeds = BTreeMap<String, Vec<SpeedPoint>>;

/// Returns the speed of a device in the precision of `mode`: measured, else from the peak that its
/// vendor publishes, if that is known.
pub(crate) fn known(device: &DeviceInfo, mode: OpsMode) -> Option<DeviceSpeed> {
    let measured = || {
        let key = key(device, mode)?;
        DeviceSpeed::measured(cache::read(SPEEDS_FILE).remove(&key)?)
    };
    let published = || {
        // In other precisions than f32, CUDA's kernels have other peaks.
        let is_known = device.id.backend != Backend::Cuda || mode.precision == Precision::FLOAT32;
        let gpu = gpu_named(&device.name).filter(|gpu| is_known && !gpu.is_vague)?;
        DeviceSpeed::published(gpu, mode.precision)
    };
    measured().or_else(published)
}

/// Returns the limits of a device's driver for launches of a run, given the known speed in the precision of `mode`.
pub(crate) fn driver_traits(device: &DeviceInfo, mode: OpsMode, config: &Config) -> DriverTraits {
    let rate = known(device, mode).and_then(|speed| speed.flop_per_s());
    let usual = DriverTraits::of(device, rate);
    let is_gentle = match config.gentle {
        Choice::Auto => drives_display(device),
        choice => choice == Choice::True,
    };
    // NVIDIA's driver interrupts kernels of CUDA.
    if !is_gentle || !device.kind.is_gpu() || device.id.backend == Backend::Cuda {
        return usual;
    }
    let [rows, block, width, vocab] =
        [config.batch_size.get(), config.block_size.get(), config.n_embd.get(), config.vocab_size]
            .map(u64::from);
    let factors = [2, rows, block, width, vocab.max(4 * width)];
    usual.gentle(rate, factors.into_iter().fold(1, u64::saturating_mul))
}

pub(crate) fn remember(device: &DeviceInfo, mode: OpsMode, points: &[SpeedPoint]) {
    if let Some(key) = key(device, mode) {
        cache::change(SPEEDS_FILE, |speeds| add(speeds, key, points));
    }
}

/// Returns the key of a device, a dtype and the library of products. Another driver or another version of wgpt
/// may have another speed. `None` for ops that were chosen to debug.
fn key(device: &DeviceInfo, mode: OpsMode) -> Option<String> {
    let is_usual = mode.implementation == Implementation::Auto;
    let dtype = mode.precision.dtype();
    is_usual.then(|| match mode.products() {
        Some(library) => cache::key(device, &format!("{dtype} by {}", library.name)),
        None => cache::key(device, &dtype.to_string()),
    })
}

/// Adds points, which replace those of the same work. A point that other programs slowed down replaces none that says
/// more of the device.
fn add(speeds: &mut Speeds, key: String, points: &[SpeedPoint]) {
    let known = speeds.entry(key).or_default();
    for new in points {
        let is_same =
            |old: &SpeedPoint| (old.flop / new.flop).max(new.flop / old.flop) <= SAME_WORK;
        if known.iter().any(|old| is_same(old) && new.is_worse_than(old)) {
            continue;
        }
        known.retain(|old| !is_same(old));
        known.push(*new);
    }
    let excess = known.len().saturating_sub(MAX_POINTS);
    known.drain(..excess);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(flop: f64, seconds: f64) -> SpeedPoint {
        SpeedPoint::new(flop, seconds)
    }

    #[test]
    fn newer_points_replace_older_ones() {
        let mut speeds = Speeds::default();
        let key = "a GPU".to_string();
        add(&mut speeds, key.clone(), &[point(1e6, 1.0), point(1e9, 2.0)]);
        add(&mut speeds, key.clone(), &[point(1.4e6, 3.0)]);
        assert_eq!(speeds[&key], [point(1e9, 2.0), point(1.4e6, 3.0)]);
        let many: Vec<SpeedPoint> = (0..40).map(|i| point(2f64.powi(i), 1.0)).collect();
        add(&mut speeds, key.clone(), &many);
        assert_eq!(speeds[&key].len(), MAX_POINTS);
        assert_eq!(speeds[&key].last(), many.last());
    }

    #[test]
    fn a_speed_from_a_busy_machine_replaces_only_one_that_says_less() {
        let key = "a CPU".to_string();
        let added = |points: &[SpeedPoint]| {
            let mut speeds = Speeds::default();
            points.iter().for_each(|&point| add(&mut speeds, key.clone(), &[point]));
            speeds[&key].clone()
        };
        let alone = point(1e6, 1.0);
        let slow = point(1e6, 40.0).with_others(0.9);
        let fast = point(1e6, 0.5).with_others(0.5);
        assert_eq!(added(&[alone, slow]), [alone]);
        assert_eq!(added(&[slow, alone]), [alone]);
        assert_eq!(added(&[alone, fast]), [fast]);
        // The device itself has become slower: a new driver, or a battery.
        let slower = point(1e6, 2.0).with_others(0.05);
        assert_eq!(added(&[alone, slower]), [slower]);
    }
}
