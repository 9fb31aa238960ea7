//! `auto` on an integrated GPU, which may be slower than the CPU: both train for a moment.

use std::num::NonZeroU32;

use super::request::measure;
use crate::config::Config;
use crate::gpu::{Backend, DeviceInfo, SelectedDevice};
use crate::ops::OpsMode;
use crate::plan::{DeviceSpeed, Plan, Work};
use crate::protocol::Failure;
use crate::runs::{follow, known_speed};
use crate::text::grouped;
use crate::train::{self, Setup};

/// The operations of a step that is measured: a tenth of a second at 100 GFLOP/s.
const OPERATIONS: f64 = 1e10;

/// Compares an integrated GPU that `auto` has chosen with the CPU, for the run of `setup`. If the CPU is
/// faster, returns it with a message for the user. Otherwise adds both speeds to the reason for the GPU.
///
/// If the speeds are not known, a small model trains on both for a moment. They are kept for the next run,
/// which only compares them. A run that continues on the CPU stays there.
pub(super) fn faster_cpu(
    gpu: &mut SelectedDevice,
    setup: &Setup,
    request: &train::TrainRequest,
) -> Option<(SelectedDevice, Option<String>)> {
    let cpu = DeviceInfo::cpu();
    // The CPU does not compute in every dtype.
    let on_cpu = request.mode.for_run(request.config.dtype, &cpu).ok()?;
    if request.resume {
        let began_on = follow(&request.run).ok()?.0.device?.backend;
        let stays = || (SelectedDevice::cpu("where the run began".into()), None);
        return (began_on == Backend::Cpu).then(stays);
    }
    let own = &setup.inputs.config;
    let plan = setup.steps.plan();
    let vocab = setup.architecture.vocab_size as u32;
    let update = Work::update(own, vocab, plan);
    let trial = small(Config {
        dtype: request.config.dtype,
        batch_size: NonZeroU32::try_from(plan.micro_batch as u32).unwrap_or(NonZeroU32::MIN),
        gradient_accumulation_steps: NonZeroU32::MIN,
        vocab_size: vocab,
        ..own.clone()
    });
    let speed_of_run = |device: &DeviceInfo, mode| {
        // The same programs were running when the other device was measured.
        let is_known = |speed: &DeviceSpeed| speed.is_known_for(work_of(&trial));
        let speed = match known_speed(device, mode).filter(is_known) {
            Some(speed) => speed,
            None => measured_speed(&trial, device, mode)?,
        };
        Ok::<_, Failure>(tokens(own) / speed.seconds(update))
    };
    let cpu_speed = speed_of_run(&cpu, on_cpu).ok()?;
    let name = &gpu.info.name;
    let id = gpu.info.id;
    let (reason, text) = match speed_of_run(&gpu.info, setup.inputs.mode) {
        Ok(gpu_speed) => {
            let [on_gpu, on_cpu] = [gpu_speed, cpu_speed].map(|speed| grouped(speed, 0));
            let text = format!("about {on_cpu} tokens/s, and {on_gpu} on {name} ({id})");
            if gpu_speed >= cpu_speed {
                gpu.reason = format!("{}; {on_gpu} tokens/s, {on_cpu} on the CPU", gpu.reason);
                return None;
            }
            ("faster than the integrated GPU", text)
        }
        Err(failure) => {
            ("the integrated GPU failed", format!("{name} ({id}) failed: {}", failure.text))
        }
    };
    let text = format!("training on the CPU: {text}; --device={id} uses the GPU");
    Some((SelectedDevice::cpu(reason.into()), Some(text)))
}

/// Measures the speed of a device in another process.
fn measured_speed(
    config: &Config,
    device: &DeviceInfo,
    mode: OpsMode,
) -> Result<DeviceSpeed, Failure> {
    let row = measure(config, device, mode)?;
    let point = work_of(config).point(tokens(config) / row.tokens_per_s);
    let measured = DeviceSpeed::measured(vec![point]);
    measured.ok_or_else(|| Failure::new("its steps took no time", ""))
}

/// Returns the tokens of an update.
fn tokens(config: &Config) -> f64 {
    config.global_batch() as f64 * f64::from(config.block_size.get())
}

fn work_of(config: &Config) -> Work {
    Work::update(config, config.vocab_size, &Plan::new(config, config.vocab_size))
}

/// Returns a configuration with a step of at most [`OPERATIONS`], or as few as its width allows. Layers and
/// sequences go first, because most products keep their sizes then.
fn small(mut config: Config) -> Config {
    let halve = |count: &mut NonZeroU32, least: u32| {
        let can = count.get() / 2 >= least;
        if can {
            *count = NonZeroU32::new(count.get() / 2).unwrap_or(NonZeroU32::MIN);
        }
        can
    };
    while work_of(&config).flop > OPERATIONS {
        if halve(&mut config.n_layer, 2) || halve(&mut config.batch_size, 1) {
            continue;
        }
        if config.vocab_size >= 2048 {
            config.vocab_size /= 2;
        } else if !(halve(&mut config.n_layer, 1) || halve(&mut config.block_size, 64)) {
            break;
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_trial_is_small_and_as_wide_as_the_runs() {
        for (preset, vocab_size) in
            [("demo", 300), ("shakespeare-char", 65), ("gpt2", 50_257), ("gpt2-xl", 50_257)]
        {
            let run = Config {
                vocab_size,
                gradient_accumulation_steps: NonZeroU32::MIN,
                ..Config::of_preset(preset, &[])
            };
            let trial = small(run.clone());
            assert_eq!((trial.n_embd, trial.n_head), (run.n_embd, run.n_head), "{preset}");
            let flop = work_of(&trial).flop;
            assert!(flop <= 4.0 * OPERATIONS, "{preset}: {flop}");
            assert!(flop >= 0.2 * OPERATIONS.min(work_of(&run).flop), "{preset}: {flop}");
        }
    }
}
