//! A short calibration: training steps of growing size, to know what longer ones will take.

use super::{TrainingStep, best_seconds};
use crate::config::{Config, ConfigError, Layer, resolve};
use crate::gpu::{self, DeviceError, OpenDevice};
use crate::ops::OpsMode;
use crate::plan::{Plan, SpeedPoint, Work};

/// Layers, heads, width, context, sequences and vocabulary of the steps: each has about eight times
/// the arithmetic of the one before.
const SIZES: [[u32; 6]; 6] = [
    [2, 2, 32, 32, 4, 64],
    [2, 2, 64, 64, 4, 256],
    [2, 4, 128, 128, 4, 1024],
    [2, 4, 256, 256, 4, 4096],
    [2, 8, 512, 512, 4, 16_384],
    [2, 12, 768, 1024, 8, 50_304],
];

/// A step that takes longer ends the calibration, but not before the third size: the next one would
/// take eight times as long, and the smallest ones measure little but launches.
const LAST_SECONDS: f64 = 0.3;
const MIN_SIZES: usize = 3;

/// Measures training steps of growing size on `device` until they take a noticeable time.
pub(crate) fn calibrate(
    device: &OpenDevice,
    mode: OpsMode,
) -> Result<Vec<SpeedPoint>, DeviceError> {
    let mut points = Vec::new();
    for size in SIZES {
        let config = config(size).expect("each size is a valid config, see the tests");
        let vocab = config.vocab_size;
        let plan = Plan::new(&config, vocab);
        let mut step = TrainingStep::planned(&device.device, &config, &plan, mode);
        // The fastest of several, so that other programs do not count.
        let seconds = best_seconds(&device.device, || (), |()| step.step())?;
        step.check()?;
        points.push(Work::update(&config, vocab, &plan).point(seconds));
        drop(step);
        gpu::release_unused(&device.device);
        if seconds > LAST_SECONDS && points.len() >= MIN_SIZES {
            break;
        }
    }
    Ok(points)
}

fn config(
    [layers, heads, width, context, sequences, vocab]: [u32; 6],
) -> Result<Config, ConfigError> {
    let settings = format!(
        "n_layer = {layers}\nn_head = {heads}\nn_embd = {width}\nblock_size = {context}\n\
         batch_size = {sequences}\ngradient_accumulation_steps = 1\nvocab_size = {vocab}"
    );
    Ok(resolve(vec![Layer::toml("calibration", &settings)?])?.config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DeviceSpeed;

    #[test]
    fn sizes_are_valid_and_grow() {
        let work = |size| {
            let config = config(size).unwrap();
            Work::update(&config, config.vocab_size, &Plan::new(&config, config.vocab_size))
        };
        for pair in SIZES.windows(2) {
            let ratio = work(pair[1]).flop / work(pair[0]).flop;
            assert!((4.0..40.0).contains(&ratio), "{pair:?}: {ratio}");
        }
    }

    /// The estimate for a model that was not measured, against its real steps.
    #[test]
    fn a_calibration_predicts_the_steps_of_another_model() {
        let device = gpu::open("cpu".parse().unwrap()).unwrap();
        let ratio = || {
            let points = calibrate(&device, OpsMode::AUTO).unwrap();
            assert!(points.len() >= 2, "{points:?}");
            let speed = DeviceSpeed::measured(points).unwrap();
            let config = config([4, 4, 96, 96, 8, 300]).unwrap();
            let plan = Plan::new(&config, config.vocab_size);
            let mut step = TrainingStep::planned(&device.device, &config, &plan, OpsMode::AUTO);
            let taken = best_seconds(&device.device, || (), |()| step.step()).unwrap();
            speed.seconds(Work::update(&config, config.vocab_size, &plan)) / taken
        };
        // Loose, and tried again: other programs run at the same time.
        let ratios: Vec<f64> = (0..3).map(|_| ratio()).collect();
        assert!(ratios.iter().any(|ratio| (0.33..3.0).contains(ratio)), "{ratios:?}");
    }
}
