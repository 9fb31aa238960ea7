//! Compares GPT-2 with reference data from PyTorch in f64 (tests/reference/make.py), on the CPU
//! and on every Vulkan adapter, with the kernels and with the reference ops.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use safetensors::SafeTensors;
use wgpt::config::{Abilities, Config, Dtype, Gelu};
use wgpt::gpu::{self, DeviceChoice};
use wgpt::model::{
    Architecture, Blocks, Gpt, MicroBatch, Pass, SampleOptions, Sampler, StepDropout, WeightError,
    WeightGradients, WeightSource, parameters,
};
use wgpt::ops::{CrossEntropy, OpsMode};
use wgpt::runs::ModelSource;
use wgpt::train::{LossScale, Optimizer};

#[cfg(feature = "wgpu")]
#[path = "model/half.rs"]
mod half;
#[path = "model/llama.rs"]
mod llama;
#[path = "model/lora.rs"]
mod lora;
#[path = "model/muon.rs"]
mod muon;
#[cfg(feature = "wgpu")]
#[path = "model/offload.rs"]
mod offload;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

/// A reference file in memory.
struct Case {
    bytes: Vec<u8>,
}

impl Case {
    fn open(name: &str) -> Self {
        let bytes =
            std::fs::read(reference(name)).expect("the reference data is in the repository");
        Self { bytes }
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap_or_else(|_| panic!("no {name}"));
        tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// Returns row `step` of a `[steps, len]` tensor of ids.
    fn ids(&self, name: &str, step: usize, len: usize) -> Arc<[u32]> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = file.tensor(name).unwrap().data().to_vec();
        let ids = data.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b));
        ids.skip(step * len).take(len).collect()
    }
}

impl WeightSource for Case {
    fn weight(&mut self, name: &str, _shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        Ok(self.f32(&format!("weight.{name}")))
    }
}

const BATCH: usize = 4;
const TIME: usize = 16;
const VOCAB: usize = 65;

fn architecture(gelu: Gelu, bias: bool) -> Architecture {
    let (n_layer, n_head, n_embd) = (2, 2, 32);
    let blocks = Blocks::Gpt2 { bias, gelu };
    Architecture { n_layer, n_head, n_embd, block_size: TIME, vocab_size: VOCAB, blocks }
}

/// Returns the largest difference, relative to the largest element of `want`.
fn error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(0.0f64, |max, &x| max.max(f64::from(x.abs()))).max(1e-12);
    let difference = |(&got, &want): (&f32, &f32)| (f64::from(got) - f64::from(want)).abs();
    got.iter()
        .zip(want)
        .map(difference)
        .fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
        / scale
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Returns the first `len` elements of a weight's parts, and checks that the padding after them is
/// zero.
fn unpadded(parts: Vec<Tensor<1>>, len: usize) -> Vec<f32> {
    let mut all: Vec<f32> = parts.into_iter().flat_map(values).collect();
    assert!(all[len..].iter().all(|&padding| padding == 0.0));
    all.truncate(len);
    all
}

fn batch(case: &Case, step: usize) -> MicroBatch {
    MicroBatch {
        tokens: case.ids("tokens", step, BATCH * TIME),
        targets: case.ids("targets", step, BATCH * TIME),
        sequences: BATCH,
    }
}

/// The largest errors allowed, relative to the largest value of a tensor.
struct Tolerance {
    loss: f64,
    grad: f64,
}

/// Compares logits, loss, gradients and ten updates of one reference model.
fn check_case(
    name: &str,
    gelu: Gelu,
    bias: bool,
    device: &Device,
    mode: OpsMode,
    shards: usize,
    tolerance: &Tolerance,
) {
    let mut case = Case::open(&format!("gpt_{name}.safetensors"));
    let architecture = architecture(gelu, bias);
    let mut model = Gpt::with_shards(&architecture, &mut case, device, shards).unwrap();
    let pass = Pass { mode, dropout: None };
    let tokens = BATCH * TIME;
    // A chunk that does not divide the rows, so that the last one is short.
    let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / tokens as f32 };

    let logits = values(model.logits(batch(&case, 0).tokens, BATCH, mode));
    let off = error(&logits, &case.f32("logits"));
    assert!(off < tolerance.grad, "{name}: logits are off by {off:e}");

    let mut optimizer = Optimizer::new(&optimizer_config(), &model, None, None, mode);
    let (losses, norms) = (case.f32("losses"), case.f32("grad_norms"));
    for (step, rate) in case.f32("learning_rates").iter().enumerate() {
        // Odd steps use activation checkpointing, which must not change the results.
        let mut sums = WeightGradients::default();
        let value =
            model.add_gradients(&batch(&case, step), loss, pass, step % 2 == 1, &mut sums, None);
        let sum = sums.into_vec();
        let off = error(&values(value), &losses[step..=step]);
        assert!(off < tolerance.loss, "{name}: loss {step} is off by {off:e}");
        if step == 0 {
            check_gradients(name, &case, &model, &sum, 1.0, tolerance.grad);
        }
        let rate = f64::from(*rate);
        let update = optimizer.update(&mut model, sum, step as u64 + 1, rate, tokens);
        let norm = pollster::block_on(update);
        let off = error(&values(norm), &norms[step..=step]);
        assert!(off < tolerance.grad, "{name}: norm {step} is off by {off:e}");
    }
    for parameter in parameters(&model) {
        // The gradient of the key bias is zero except for rounding, which AdamW amplifies.
        if parameter.name.ends_with("c_attn.bias") {
            continue;
        }
        let want = case.f32(&format!("final.{}", parameter.name));
        let off = error(&unpadded(parameter.parts, want.len()), &want);
        assert!(off < 1e-3, "{name}: {} after ten steps is off by {off:e}", parameter.name);
    }
}

fn optimizer_config() -> Config {
    Config { weight_decay: 0.1, beta1: 0.9, beta2: 0.95, grad_clip: 0.5, ..Config::default() }
}

/// Compares the gradients of the first micro-batch, times `scale`, with the reference.
fn check_gradients(
    name: &str,
    case: &Case,
    model: &Gpt,
    grads: &[Tensor<1>],
    scale: f32,
    tolerance: f64,
) {
    let mut grads = grads.iter().cloned();
    for parameter in parameters(model) {
        let grad = grads.by_ref().take(parameter.parts.len()).collect();
        let mut want = case.f32(&format!("grad.{}", parameter.name));
        want.iter_mut().for_each(|grad| *grad *= scale);
        let off = error(&unpadded(grad, want.len()), &want);
        assert!(off < tolerance, "{name}: gradient of {} is off by {off:e}", parameter.name);
    }
    assert!(grads.next().is_none());
}

/// Returns the values of all weights.
fn all_values(model: &Gpt) -> Vec<Vec<f32>> {
    let parts = parameters(model).into_iter().flat_map(|parameter| parameter.parts);
    parts.map(values).collect()
}

/// A gradient that is not finite reaches neither weights nor moments, and the updates after it are the
/// same as without it.
#[test]
fn an_update_that_is_not_finite_is_skipped() {
    let device = Device::flex();
    for (mode, poison) in [
        (OpsMode::AUTO, f32::INFINITY),
        (OpsMode::AUTO, f32::NAN),
        (OpsMode::REFERENCE, f32::INFINITY),
    ] {
        let [(weights, states), wanted] = [true, false].map(|poisoned| {
            let mut case = Case::open("gpt_tanh_bias.safetensors");
            let mut model =
                Gpt::with_shards(&architecture(Gelu::Tanh, true), &mut case, &device, 2).unwrap();
            let mut optimizer = Optimizer::new(&optimizer_config(), &model, None, None, mode);
            let tokens = BATCH * TIME;
            let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / tokens as f32 };
            let mut number = 0;
            for step in 0..3 {
                let mut sums = WeightGradients::default();
                let pass = Pass { mode, dropout: None };
                model.add_gradients(&batch(&case, step), loss, pass, false, &mut sums, None);
                let grads = sums.into_vec();
                if poisoned && step == 1 {
                    number += 1;
                    let mut wrong = grads.clone();
                    wrong[3] = Tensor::full(wrong[3].shape(), poison, &device);
                    let update = optimizer.update(&mut model, wrong, number, 1e-3, tokens);
                    let norm = pollster::block_on(update);
                    assert!(!values(norm)[0].is_finite());
                }
                number += 1;
                pollster::block_on(optimizer.update(&mut model, grads, number, 1e-3, tokens));
            }
            let state = pollster::block_on(optimizer.read_loss_scale());
            assert_eq!((state.scale, state.skipped), (1.0, u64::from(poisoned)));
            let states = optimizer.saved_states(&model).into_iter().flat_map(|saved| saved.parts);
            (all_values(&model), states.map(values).collect::<Vec<_>>())
        });
        assert!(weights.iter().flatten().all(|weight| weight.is_finite()), "{mode:?}");
        assert!((weights, states) == wanted, "{mode:?}: {poison} has changed the run");
    }
}

/// The reference models, each with the shards of its embedding.
const CASES: [(&str, Gelu, bool, usize); 4] = [
    ("tanh_bias", Gelu::Tanh, true, 1),
    ("tanh_nobias", Gelu::Tanh, false, 3),
    ("erf_bias", Gelu::Erf, true, 4),
    ("erf_nobias", Gelu::Erf, false, 1),
];

fn check_cases(cases: &[(&str, Gelu, bool, usize)], device: &Device, mode: OpsMode) {
    check_checkpointing(device, mode);
    for &(name, gelu, bias, shards) in cases {
        let tolerance = Tolerance { loss: 1e-5, grad: 1e-4 };
        check_case(name, gelu, bias, device, mode, shards, &tolerance);
    }
}

/// Compares gradients with and without activation checkpointing, with dropout: the recomputed
/// blocks must drop the same elements.
fn check_checkpointing(device: &Device, mode: OpsMode) {
    let mut case = Case::open("gpt_tanh_bias.safetensors");
    let architecture = architecture(Gelu::Tanh, true);
    let model = Gpt::with_shards(&architecture, &mut case, device, 2).unwrap();
    let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / (BATCH * TIME) as f32 };
    let dropout = StepDropout { rate: 0.3, adapter_rate: 0.0, seed: 7, step: 3, first_sequence: 2 };
    let pass = Pass { mode, dropout: Some(dropout) };
    let [(whole, wanted), (again, got)] = [false, true].map(|checkpoint| {
        let mut sums = WeightGradients::default();
        let value = model.add_gradients(&batch(&case, 0), loss, pass, checkpoint, &mut sums, None);
        (value, sums.into_vec())
    });
    assert_eq!(values(whole), values(again));
    assert_eq!(wanted.len(), got.len());
    for (index, (wanted, got)) in wanted.into_iter().zip(got).enumerate() {
        let off = error(&values(got), &values(wanted));
        assert!(off < 1e-5, "gradient {index} is off by {off:e}");
    }
}

/// Gradients that are handed over during the last backward pass equal the gradients that stay, bit by
/// bit.
#[test]
fn gradients_are_given_away_when_they_are_final() {
    let device = Device::flex();
    for (name, gelu, bias, shards) in CASES {
        let mut case = Case::open(&format!("gpt_{name}.safetensors"));
        let model = Gpt::with_shards(&architecture(gelu, bias), &mut case, &device, shards);
        let model = model.unwrap();
        let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / (BATCH * TIME) as f32 };
        let pass = Pass { mode: OpsMode::AUTO, dropout: None };
        for micro_batches in 1..=2 {
            let first = || {
                let mut sums = WeightGradients::default();
                for index in 1..micro_batches {
                    model.add_gradients(&batch(&case, index), loss, pass, false, &mut sums, None);
                }
                sums
            };
            let (mut stay, mut leave, last) = (first(), first(), batch(&case, 0));
            let wanted = model.add_gradients(&last, loss, pass, false, &mut stay, None);
            let mut given = Vec::new();
            let mut take = |index: usize, gradient: Tensor<1>| given.push((index, gradient));
            let found = model.add_gradients(&last, loss, pass, false, &mut leave, Some(&mut take));
            assert_eq!(values(found), values(wanted), "{name}");
            given.sort_by_key(|(index, _)| *index);
            let found = given.into_iter().map(|(_, gradient)| gradient).collect();
            let all = |grads: Vec<Tensor<1>>| grads.into_iter().map(values).collect::<Vec<_>>();
            assert!(all(found) == all(stay.into_vec()), "{name}, {micro_batches} micro-batches");
        }
    }
}

#[test]
fn cpu_matches_pytorch() {
    for mode in [OpsMode::AUTO, OpsMode::REFERENCE] {
        check_cases(&CASES, &Device::flex(), mode);
    }
}

/// A Hugging Face folder, and checkpoints of nanoGPT with and without the prefixes of
/// torch.compile.
#[test]
fn checkpoints_of_other_programs_load() {
    let cases = [
        ("hf_tiny", "hf_tiny_logits.safetensors"),
        ("nanogpt_ckpt.pt", "nanogpt_logits.safetensors"),
        ("nanogpt_compiled_ckpt.pt", "nanogpt_logits.safetensors"),
    ];
    for (model, logits) in cases {
        let source = ModelSource::open(&reference(model)).unwrap();
        let loaded = source.model(&Device::flex()).unwrap();
        let case = Case::open(logits);
        let got = values(loaded.logits(case.ids("tokens", 0, TIME), 1, OpsMode::AUTO));
        let off = error(&got, &case.f32("logits"));
        assert!(off < 1e-5, "{model}: logits are off by {off:e}");
    }
}

/// A model in other forms: the head of a merged adapter, the head alone, names of a compiled model and of one without
/// its head, float64, and two forms of a configuration. The logits are those of transformers
/// (tests/reference/foreign.py).
#[test]
fn models_in_other_forms_are_those_of_transformers() {
    let case = Case::open("foreign/logits.safetensors");
    let tokens = case.ids("tokens", 0, TIME);
    for name in [
        "merged_head",
        "only_head",
        "compiled",
        "bare",
        "doubles",
        "theta_in_scaling",
        "null_heads",
        "null_heads_of_qwen3",
    ] {
        let source = ModelSource::open(&reference("foreign").join(name)).unwrap();
        let loaded = source.model(&Device::flex()).unwrap();
        let has_own_head = parameters(&loaded).iter().any(|weight| weight.name == "lm_head.weight");
        assert_eq!(has_own_head, ["merged_head", "compiled"].contains(&name), "{name}");
        let got = values(loaded.logits(tokens.clone(), 1, OpsMode::AUTO));
        let off = error(&got, &case.f32(name));
        assert!(off < 2e-6, "{name}: logits are off by {off:e}");
    }
}

/// transformers trains the biases of a model even if its config has none.
#[test]
fn biases_are_read_although_the_config_denies_them() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = reference("hf_tiny");
    let config = std::fs::read_to_string(tiny.join("config.json")).unwrap();
    let config = config.replacen('{', "{\"bias\": false,", 1);
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::copy(tiny.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    assert!(ModelSource::open(folder.path()).unwrap().architecture.has_biases());
}

/// Sampling with the key and value cache draws the same tokens as full forward passes.
#[test]
fn cached_sampling_equals_full_forward_passes() {
    let mut case = Case::open("gpt_tanh_bias.safetensors");
    let model = Gpt::new(&architecture(Gelu::Tanh, true), &mut case, &Device::flex()).unwrap();
    let options = SampleOptions { temperature: 0.0, top_k: 0, seed: 0 };
    let mut tokens = vec![1, 2, 3];
    let mut sampler = Sampler::new(&model, &tokens, options, OpsMode::AUTO);
    while tokens.len() < TIME {
        let logits = values(model.logits(tokens.clone().into(), 1, OpsMode::AUTO));
        let last = &logits[(tokens.len() - 1) * VOCAB..];
        let best = (0..VOCAB).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        tokens.push(pollster::block_on(sampler.next_token()));
        assert_eq!(tokens.last(), Some(&(best as u32)), "token {}", tokens.len());
    }
    // Past the model's positions, sampling continues from the end of the text.
    let mut next = || pollster::block_on(sampler.next_token());
    let more: Vec<u32> = (0..3 * TIME).map(|_| next()).collect();
    assert!(more.iter().all(|&token| (token as usize) < VOCAB));
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_pytorch() {
    let adapters: Vec<_> =
        gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan).collect();
    assert!(
        !adapters.is_empty(),
        "no Vulkan adapter: install a driver, or mesa-vulkan-drivers for a software renderer"
    );
    for info in adapters {
        eprintln!("{}: {}", info.id, info.name);
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        check_cases(&CASES, &open.device, OpsMode::AUTO.on(open.info.kind));
        // Both forms of GELU, with biases and without, in shards.
        check_cases(&CASES[1..3], &open.device, OpsMode::REFERENCE);
    }
}
