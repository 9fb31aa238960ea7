//! Measures whole training steps.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::{Device, Tensor};

use super::cases::ids;
use super::{LaunchRow, StepRow, best_seconds, fraction};
use crate::config::{Config, GPT2_VOCABULARY};
use crate::gpu::{self, DeviceError, Peaks};
use crate::model::{
    Architecture, Gpt, Lora, MicroBatch, Pass, RandomWeights, StepDropout, WeightError,
    WeightGradients, WeightSource,
};
use crate::ops::{CrossEntropy, OpsMode};
use crate::plan::Plan;
use crate::train::{Masters, Optimizer};

/// A model with everything that a training step needs, on meaningless tokens.
pub struct TrainingStep {
    model: Gpt,
    optimizer: Optimizer,
    batch: MicroBatch,
    loss: CrossEntropy,
    pass: Pass,
    grad_checkpoint: bool,
    /// Micro-batches per update, at most two: a third would not need more memory.
    accumulation: usize,
    step: u64,
    /// The gradient norm of the last update.
    norm: Option<Tensor<1>>,
}

impl TrainingStep {
    /// Builds the model of `config` on `device`, with one micro-batch per update. The precision is
    /// that of `mode`.
    pub fn new(device: &Device, config: &Config, mode: OpsMode) -> Self {
        let vocab = architecture(config).vocab_size as u32;
        let plan = Plan { accumulation: 1, ..Plan::new(config, vocab) };
        Self::planned(device, config, &plan, mode)
    }

    /// Builds the model of `config` on `device`, with steps split by `plan`.
    pub fn planned(device: &Device, config: &Config, plan: &Plan, mode: OpsMode) -> Self {
        let mut weights = RandomWeights::new(&architecture(config), config.seed);
        Self::build(device, config, plan, mode, &mut weights, false)
    }

    /// Builds the step as [`planned`](Self::planned) does, for a dry run: all weights are zero, and
    /// the host memory of an offloaded optimizer is reserved and never written.
    pub fn reserved(device: &Device, config: &Config, plan: &Plan, mode: OpsMode) -> Self {
        Self::build(device, config, plan, mode, &mut Zeros, true)
    }

    fn build(
        device: &Device,
        config: &Config,
        plan: &Plan,
        mode: OpsMode,
        weights: &mut dyn WeightSource,
        is_dry: bool,
    ) -> Self {
        let architecture = architecture(config);
        let precision = mode.precision;
        let mut masters = if plan.offload_optimizer { Masters::new(config) } else { None };
        let model = match &mut masters {
            Some(_) if is_dry => Gpt::stored_in(precision, &architecture, weights, device),
            Some(masters) => masters.model(precision, &architecture, weights, device),
            None => match Lora::new(config) {
                Some(lora) => {
                    let adapter = (&lora, config.base_dtype);
                    Gpt::adapted(precision, &architecture, adapter, weights, device)
                }
                None => Gpt::new(&architecture, weights, device),
            },
        };
        let mut model = model.expect("such weights exist for every name");
        if masters.is_none() {
            model.keep_half_weights(precision);
        }
        let optimizer = Optimizer::new(config, &model, masters, None, mode);
        let vocab = architecture.vocab_size;
        let rows = plan.micro_batch * architecture.block_size;
        let dropout = (config.dropout > 0.0 || config.lora_dropout > 0.0).then_some(StepDropout {
            rate: config.dropout as f32,
            adapter_rate: config.lora_dropout as f32,
            seed: config.seed,
            step: 0,
            first_sequence: 0,
        });
        Self {
            optimizer,
            model,
            batch: MicroBatch {
                tokens: ids(0, rows, vocab),
                targets: ids(1, rows, vocab),
                sequences: plan.micro_batch,
            },
            loss: CrossEntropy { vocab, chunk: plan.loss_chunk, scale: 1.0 / rows as f32 },
            pass: Pass { mode, dropout },
            grad_checkpoint: plan.grad_checkpoint,
            accumulation: plan.accumulation.min(2),
            step: 0,
            norm: None,
        }
    }

    /// Queues the gradients of an update's micro-batches, and does not wait for them.
    pub fn gradients(&self) -> WeightGradients {
        let Self { model, batch, loss, pass, grad_checkpoint, .. } = self;
        let mut sums = WeightGradients::default();
        if self.accumulation > 1 {
            sums = WeightGradients::zeros(model);
        }
        sums = sums.scaled(self.optimizer.loss_scale());
        for _ in 0..self.accumulation {
            model.add_gradients(batch, *loss, *pass, *grad_checkpoint, &mut sums, None);
        }
        sums
    }

    /// Queues one update, and does not wait for it unless the optimizer is in host memory.
    pub fn step(&mut self) {
        let grads = self.gradients().into_vec();
        self.step += 1;
        let tokens = self.batch.tokens.len() * self.accumulation;
        let update = self.optimizer.update(&mut self.model, grads, self.step, 1e-4, tokens);
        self.norm = Some(pollster::block_on(update));
    }

    /// Reads the gradient norm of the last update, which depends on every kernel of the backward
    /// pass. A read fails after a failed launch or allocation, where a wait may succeed.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        let Some(norm) = self.norm.clone() else { return Ok(()) };
        let read = norm.try_into_data();
        read.map(drop).map_err(|error| DeviceError::Stopped { reason: error.to_string() })
    }
}

struct Zeros;

impl WeightSource for Zeros {
    fn weight(&mut self, _name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        Ok(vec![0.0; shape.iter().product()])
    }
}

/// Returns the model that is measured: with GPT-2's vocabulary, unless `config` has another.
pub(crate) fn architecture(config: &Config) -> Architecture {
    let vocab = if config.vocab_size == 0 { GPT2_VOCABULARY } else { config.vocab_size };
    Architecture::new(config, vocab)
}

pub(super) fn measure(
    device: &Device,
    config: &Config,
    mode: OpsMode,
    peaks: Option<Peaks>,
    profile: bool,
) -> Result<StepRow, DeviceError> {
    let architecture = architecture(config);
    let vocab = architecture.vocab_size as u32;
    let mut plan = Plan { accumulation: 1, ..Plan::new(config, vocab) };
    // As in a run with enough memory: not on the CPU, which has no pools.
    while config.loss_chunk == 0 && gpu::memory(device).is_some() {
        let Some(larger) = plan.with_larger_chunk(config, vocab, mode.precision) else { break };
        plan = larger;
    }
    let mut bench = TrainingStep::planned(device, config, &plan, mode);
    gpu::wait(device)?;
    let start = Instant::now();
    bench.step();
    gpu::wait(device)?;
    let first_ms = start.elapsed().as_secs_f64() * 1e3;
    let ((), launches) = gpu::count_launches(|| bench.step());
    let mut host = f64::INFINITY;
    let step = |()| {
        let start = Instant::now();
        bench.step();
        // Waits for cubecl's queue, not for the device.
        gpu::memory(device);
        host = host.min(start.elapsed().as_secs_f64());
    };
    let seconds = best_seconds(device, || (), step)?;
    bench.check()?;
    let host_us = (launches > 0).then_some(host * 1e6);
    let block_size = architecture.block_size;
    let micro_batch = bench.batch.sequences;
    let tokens = (micro_batch * block_size) as f64;
    let parameters = architecture.parameters();
    let operations = config.operations(parameters as u64) * tokens;
    Ok(StepRow {
        ops: mode.implementation,
        dtype: mode.precision.dtype(),
        parameters,
        micro_batch,
        block_size,
        first_ms,
        ms: seconds * 1e3,
        tokens_per_s: tokens / seconds,
        gflop_per_s: operations / seconds * 1e-9,
        fraction: fraction(peaks, 0.0, operations, seconds),
        launches,
        host_us,
        host_us_per_launch: host_us.map(|us| us / launches as f64),
        peak_bytes: gpu::memory(device).map(|memory| memory.reserved),
        kernels: if profile { profile_step(device, &mut bench)? } else { Vec::new() },
    })
}

fn profile_step(device: &Device, bench: &mut TrainingStep) -> Result<Vec<LaunchRow>, DeviceError> {
    let mut rows = BTreeMap::<String, LaunchRow>::new();
    let (waited, launches) = gpu::time_launches(|| {
        bench.step();
        gpu::wait(device)
    });
    waited?;
    for (name, seconds) in launches {
        let new = LaunchRow { name: name.clone(), launches: 0, ms: 0.0 };
        let row = rows.entry(name).or_insert(new);
        row.launches += 1;
        row.ms += seconds * 1e3;
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(rows)
}
