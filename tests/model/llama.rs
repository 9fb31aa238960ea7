//! Compares Llama, Qwen2 and Qwen3 with PyTorch in f64, which agrees with transformers (tests/reference/llama.py):
//! in several shapes, read from Hugging Face folders.

use std::fs;

use burn::tensor::Device;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use wgpt::config::Config;
#[cfg(feature = "wgpu")]
use wgpt::gpu::{self, DeviceChoice};
use wgpt::model::{Gpt, MicroBatch, Pass, StepDropout, WeightGradients, WeightSource, parameters};
use wgpt::ops::{CrossEntropy, OpsMode};
use wgpt::runs::ModelSource;
use wgpt::train::{Masters, Optimizer};

use super::{Case, all_values, error, optimizer_config, unpadded, values};

const SEQUENCES: usize = 3;

/// The reference models, each with the shards of its embedding.
const CASES: [(&str, usize); 14] = [
    ("llama_0", 1),
    ("llama_1", 3),
    ("llama_2", 1),
    ("llama_3", 5),
    ("llama_4", 2),
    ("llama_5", 2),
    ("llama_6", 1),
    ("qwen2_0", 1),
    ("qwen2_1", 2),
    ("qwen3_0", 2),
    ("qwen3_1", 1),
    ("qwen3_2", 7),
    ("qwen3_3", 1),
    ("qwen3_4", 1),
];

/// The largest error of a value, relative to the largest of its tensor.
const TOLERANCE: f64 = 1e-5;

/// Returns the name and the values of each tensor of a kind: `weight`, `grad` or `final`.
pub fn tensors<'a>(file: &SafeTensors<'a>, kind: &str) -> Vec<(String, TensorView<'a>)> {
    let of_kind = |(name, view): (String, TensorView<'a>)| {
        let name = name.strip_prefix(kind)?.strip_prefix('.')?.to_string();
        Some((name, view))
    };
    file.tensors().into_iter().filter_map(of_kind).collect()
}

/// Writes a Hugging Face folder with the tensors of a kind, and transformers' own `config.json`.
pub fn folder(case: &Case, kind: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&case.bytes).unwrap();
    let config = &metadata.metadata().as_ref().unwrap()["config"];
    fs::write(folder.path().join("config.json"), config).unwrap();
    let file = SafeTensors::deserialize(&case.bytes).unwrap();
    let bytes = safetensors::serialize(tensors(&file, kind), None).unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

/// A case, its model and its micro-batches.
struct Reference {
    case: Case,
    source: ModelSource,
    folders: Vec<TempDir>,
    time: usize,
    vocab: usize,
}

impl Reference {
    fn open(name: &str) -> Self {
        let case = Case::open(&format!("{name}.safetensors"));
        let folders = vec![folder(&case, "weight")];
        let source = ModelSource::open(folders[0].path()).unwrap();
        assert_eq!(source.warnings, Vec::<String>::new());
        let (time, vocab) = (source.architecture.block_size, source.architecture.vocab_size);
        Self { case, source, folders, time, vocab }
    }

    fn model(&self, device: &Device, shards: usize) -> Gpt {
        let mut weights = self.source.weights().unwrap();
        Gpt::with_shards(&self.source.architecture, &mut *weights, device, shards).unwrap()
    }

    fn batch(&self, step: usize) -> MicroBatch {
        let len = SEQUENCES * self.time;
        MicroBatch {
            tokens: self.case.ids("tokens", step, len),
            targets: self.case.ids("targets", step, len),
            sequences: SEQUENCES,
        }
    }

    fn loss(&self) -> CrossEntropy {
        let scale = 1.0 / (SEQUENCES * self.time) as f32;
        CrossEntropy { vocab: self.vocab, chunk: 20, scale }
    }

    /// Returns the tensors of a kind as weights of the model.
    fn wanted(&mut self, kind: &str) -> Box<dyn WeightSource> {
        self.folders.push(folder(&self.case, kind));
        let source = ModelSource::open(self.folders[self.folders.len() - 1].path()).unwrap();
        source.weights().unwrap()
    }
}

/// Returns the shape of a parameter in files, which have no padding.
fn saved(name: &str, shape: &[usize], vocab: usize) -> Vec<usize> {
    let is_padded = name == "wte.weight" || name == "lm_head.weight";
    if is_padded { vec![vocab, shape[1]] } else { shape.to_vec() }
}

/// Compares logits, losses, gradients and ten updates of one reference model.
fn check_case(name: &str, device: &Device, mode: OpsMode, shards: usize) {
    let mut reference = Reference::open(name);
    let mut model = reference.model(device, shards);
    let pass = Pass { mode, dropout: None };

    let logits = values(model.logits(reference.batch(0).tokens, SEQUENCES, mode));
    let off = error(&logits, &reference.case.f32("logits"));
    assert!(off < TOLERANCE, "{name}: logits are off by {off:e}");

    let config = optimizer_config_of(&reference.source);
    let mut optimizer = Optimizer::new(&config, &model, None, None, mode);
    let [losses, norms, rates] =
        ["losses", "grad_norms", "learning_rates"].map(|name| reference.case.f32(name));
    for (step, rate) in rates.into_iter().enumerate() {
        // Odd steps use activation checkpointing, which must not change the results.
        let mut sums = WeightGradients::default();
        let (batch, checkpoint) = (reference.batch(step), step % 2 == 1);
        let value =
            model.add_gradients(&batch, reference.loss(), pass, checkpoint, &mut sums, None);
        let sum = sums.into_vec();
        let off = error(&values(value), &losses[step..=step]);
        assert!(off < TOLERANCE, "{name}: loss {step} is off by {off:e}");
        if step == 0 {
            let mut wanted = reference.wanted("grad");
            let mut grads = sum.iter().cloned();
            for parameter in parameters(&model) {
                let shape = saved(&parameter.name, &parameter.shape, reference.vocab);
                let grad = grads.by_ref().take(parameter.parts.len()).collect();
                let want = wanted.weight(&parameter.name, &shape).unwrap();
                let off = error(&unpadded(grad, want.len()), &want);
                assert!(
                    off < TOLERANCE,
                    "{name}: gradient of {} is off by {off:e}",
                    parameter.name
                );
            }
            assert!(grads.next().is_none());
        }
        let update = optimizer.update(
            &mut model,
            sum,
            step as u64 + 1,
            f64::from(rate),
            SEQUENCES * reference.time,
        );
        let norm = pollster::block_on(update);
        let off = error(&values(norm), &norms[step..=step]);
        assert!(off < TOLERANCE, "{name}: norm {step} is off by {off:e}");
    }
    let mut wanted = reference.wanted("final");
    for parameter in parameters(&model) {
        let shape = saved(&parameter.name, &parameter.shape, reference.vocab);
        let want = wanted.weight(&parameter.name, &shape).unwrap();
        let off = error(&unpadded(parameter.parts, want.len()), &want);
        assert!(off < 1e-3, "{name}: {} after ten steps is off by {off:e}", parameter.name);
    }
}

/// Returns the settings of the optimizer, which needs the shape of the model for Muon.
pub fn optimizer_config_of(source: &ModelSource) -> Config {
    let settings = wgpt::runs::settings(&source.architecture);
    let layer = wgpt::config::Layer::flags(settings).unwrap();
    let Config { weight_decay, beta1, beta2, grad_clip, .. } = optimizer_config();
    let config = wgpt::config::resolve(vec![layer]).unwrap().config;
    Config { weight_decay, beta1, beta2, grad_clip, ..config }
}

#[test]
fn cpu_matches_transformers() {
    for (name, shards) in CASES {
        for mode in [OpsMode::AUTO, OpsMode::REFERENCE] {
            check_case(name, &Device::flex(), mode, shards);
        }
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_transformers() {
    let adapters = gpu::devices().into_iter();
    let adapters: Vec<_> =
        adapters.filter(|info| info.id.backend == gpu::Backend::Vulkan).collect();
    assert!(!adapters.is_empty(), "no Vulkan adapter: install mesa-vulkan-drivers");
    for info in adapters {
        eprintln!("{}: {}", info.id, info.name);
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        for (name, shards) in CASES {
            check_case(name, &open.device, OpsMode::AUTO.on(open.info.kind), shards);
        }
    }
}

/// Gradients do not depend on activation checkpointing, with dropout, nor on whether they are handed over
/// in the last micro-batch.
#[test]
fn gradients_are_the_same_recomputed_and_given_away() {
    for name in ["llama_1", "qwen2_0", "qwen3_0"] {
        let reference = Reference::open(name);
        let model = reference.model(&Device::flex(), 2);
        let dropout =
            StepDropout { rate: 0.3, adapter_rate: 0.0, seed: 7, step: 3, first_sequence: 2 };
        let pass = Pass { mode: OpsMode::AUTO, dropout: Some(dropout) };
        let gradients = |checkpoint, gives: bool| {
            let (batch, mut sums) = (reference.batch(0), WeightGradients::zeros(&model));
            let mut given = Vec::new();
            let mut take = |index, gradient| given.push((index, gradient));
            let take = if gives { Some(&mut take as wgpt::model::Take<'_>) } else { None };
            let loss = reference.loss();
            let value = model.add_gradients(&batch, loss, pass, checkpoint, &mut sums, take);
            given.sort_by_key(|(index, _)| *index);
            let stay = sums.into_vec();
            assert!(stay.is_empty() || given.is_empty());
            let all = given.into_iter().map(|(_, gradient)| gradient).chain(stay);
            (values(value), all.map(values).collect::<Vec<_>>())
        };
        let wanted = gradients(false, false);
        assert_eq!(
            wanted.1.len(),
            parameters(&model).iter().map(|it| it.parts.len()).sum::<usize>()
        );
        assert!(wanted == gradients(true, false), "{name}, recomputed");
        assert!(wanted == gradients(false, true), "{name}, given away");
    }
}

/// With the optimizer in host memory, an update gives the bits of one on the device.
#[test]
fn an_offloaded_update_is_the_same() {
    for (name, optimizer) in [("llama_3", "muon"), ("qwen3_1", "muon"), ("qwen3_3", "adamw")] {
        let reference = Reference::open(name);
        let config = optimizer_config_of(&reference.source);
        let set = wgpt::config::Layer::flags([("optimizer", optimizer)]).unwrap();
        let optimizer = wgpt::config::resolve(vec![set]).unwrap().config.optimizer;
        let config = Config { optimizer, ..config };
        let (device, mode) = (Device::flex(), OpsMode::AUTO);
        let pass = Pass { mode, dropout: None };
        let trained = |offloads: bool| {
            let mut masters = offloads.then(|| Masters::new(&config).unwrap());
            let mut model = match &mut masters {
                Some(masters) => {
                    let mut weights = reference.source.weights().unwrap();
                    let architecture = &reference.source.architecture;
                    masters.model(mode.precision, architecture, &mut *weights, &device).unwrap()
                }
                None => reference.model(&device, 1),
            };
            let mut optimizer = Optimizer::new(&config, &model, masters, None, mode);
            for step in 0..3 {
                let (batch, mut sums) = (reference.batch(step), WeightGradients::default());
                model.add_gradients(&batch, reference.loss(), pass, false, &mut sums, None);
                let grads = sums.into_vec();
                pollster::block_on(optimizer.update(&mut model, grads, step as u64 + 1, 1e-3, 1));
            }
            all_values(&model)
        };
        assert!(trained(true) == trained(false), "{name}");
    }
}

/// Several files with an index, in half precision, as larger models are published.
#[test]
fn sharded_halves_are_read_as_they_are() {
    let reference = Reference::open("qwen3_0");
    let file = SafeTensors::deserialize(&reference.case.bytes).unwrap();
    for dtype in [Dtype::BF16, Dtype::F16] {
        let folder = folder(&reference.case, "weight");
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        let rounded = |view: &TensorView<'_>| -> Vec<u8> {
            let values = view.data().as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
            match dtype {
                Dtype::BF16 => values.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                _ => values.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
            }
        };
        let mut names = Vec::new();
        for part in 0..2 {
            let shard = format!("model-0000{}-of-00002.safetensors", part + 1);
            let all = tensors(&file, "weight");
            let own: Vec<_> = all.into_iter().skip(part).step_by(2).collect();
            let halves: Vec<_> = own.iter().map(|(_, view)| rounded(view)).collect();
            let views = own.iter().zip(&halves).map(|((name, view), data)| {
                (name, TensorView::new(dtype, view.shape().to_vec(), data).unwrap())
            });
            let bytes = safetensors::serialize(views, None).unwrap();
            fs::write(folder.path().join(&shard), bytes).unwrap();
            names.extend(own.into_iter().map(|(name, _)| format!("{name:?}: {shard:?}")));
        }
        let index = folder.path().join("model.safetensors.index.json");
        fs::write(&index, format!("{{\"weight_map\": {{{}}}}}", names.join(", "))).unwrap();
        let source = ModelSource::open(folder.path()).unwrap();
        source.fingerprint().unwrap();
        let round = |x: f32| match dtype {
            Dtype::BF16 => half::bf16::from_f32(x).to_f32(),
            _ => half::f16::from_f32(x).to_f32(),
        };
        let (mut sharded, mut whole) =
            (source.weights().unwrap(), reference.source.weights().unwrap());
        for (name, shape) in source.architecture.shapes() {
            let shape = saved(&name, &shape, reference.vocab);
            let want = whole.weight(&name, &shape).unwrap().into_iter().map(round);
            assert!(sharded.weight(&name, &shape).unwrap().into_iter().eq(want), "{name}");
        }
        // An index leads to no other folder, and a missing file is named.
        for (name, part) in
            [("../model-1.safetensors", "not the name"), ("c.safetensors", "c.safe")]
        {
            let text = format!("{{\"weight_map\": {{\"a\": {:?}}}}}", name);
            fs::write(&index, text).unwrap();
            let error = source.weights().err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        // So is a tensor that only a file without an entry has.
        names.retain(|entry| !entry.contains("00002-of"));
        fs::write(&index, format!("{{\"weight_map\": {{{}}}}}", names.join(", "))).unwrap();
        let failure = ModelSource::open(folder.path()).unwrap_err();
        assert!(failure.text.contains("is missing"), "{failure}");
        assert!(failure.hint.contains("with its index"), "{}", failure.hint);
    }
}
