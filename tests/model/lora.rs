//! Compares adapters with PyTorch in f64, which agrees with PEFT (tests/reference/lora.py), read from the folders that
//! PEFT has saved.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use burn::tensor::Device;
use safetensors::SafeTensors;
use tempfile::TempDir;
use wgpt::config::{BaseDtype, Config, Precision};
#[cfg(feature = "wgpu")]
use wgpt::gpu::{self, DeviceChoice};
use wgpt::model::{
    AdaptedWeights, Gpt, MicroBatch, Parameter, Pass, StepDropout, WeightError, WeightGradients,
    WeightSource, parameters,
};
use wgpt::ops::{CrossEntropy, OpsMode};
use wgpt::runs::ModelSource;
use wgpt::train::Optimizer;

use super::llama::{folder, optimizer_config_of, tensors};
use super::{Case, error, reference, values};

const SEQUENCES: usize = 3;

const CASES: [&str; 7] =
    ["hf_tiny", "llama_0", "llama_1", "llama_5", "qwen2_0", "qwen3_0", "qwen3_3"];

/// The largest error of a value, relative to the largest of its tensor.
const TOLERANCE: f64 = 1e-5;

/// An adapter, its model and its micro-batches.
struct Reference {
    case: Case,
    source: ModelSource,
    folders: Vec<TempDir>,
    base: String,
}

impl Reference {
    fn open(name: &str) -> Self {
        let case = Case::open(&format!("lora/{name}.safetensors"));
        let mut folders = Vec::new();
        let base = if name == "hf_tiny" {
            reference(name).display().to_string()
        } else {
            let base = folder(&Case::open(&format!("{name}.safetensors")), "weight");
            let path = base.path().display().to_string();
            folders.push(base);
            path
        };
        let weights = fs::read(reference("lora").join(name).join("adapter_model.safetensors"));
        let adapter = adapter_folder(name, &base, &weights.unwrap());
        let source = ModelSource::open(adapter.path()).unwrap();
        folders.push(adapter);
        Self { case, source, folders, base }
    }

    fn model(&self, device: &Device) -> Gpt {
        let adapter = self.source.adapter.as_ref().expect("an adapter");
        self.on(&adapter.base, BaseDtype::Auto, device)
    }

    /// Returns the adapter on the weights of `base`, stored as `dtype`.
    fn on(&self, base: &ModelSource, dtype: BaseDtype, device: &Device) -> Gpt {
        let adapter = self.source.adapter.as_ref().expect("an adapter");
        let mut weights = AdaptedWeights {
            base: base.weights().unwrap(),
            adapter: self.source.adapter_weights().unwrap(),
        };
        let architecture = &self.source.architecture;
        let adapter = (&adapter.lora, dtype);
        Gpt::adapted(Precision::FLOAT32, architecture, adapter, &mut weights, device).unwrap()
    }

    fn batch(&self, step: usize, sequences: std::ops::Range<usize>) -> MicroBatch {
        let time = self.source.architecture.block_size;
        let ids = |name| {
            let all = self.case.ids(name, step, SEQUENCES * time);
            all[sequences.start * time..sequences.end * time].into()
        };
        let (tokens, targets) = (ids("tokens"), ids("targets"));
        MicroBatch { tokens, targets, sequences: sequences.len() }
    }

    fn loss(&self) -> CrossEntropy {
        let architecture = &self.source.architecture;
        let scale = 1.0 / (SEQUENCES * architecture.block_size) as f32;
        CrossEntropy { vocab: architecture.vocab_size, chunk: 20, scale }
    }

    /// Opens the tensors of a kind as an adapter.
    fn wanted(&mut self, name: &str, kind: &str) -> ModelSource {
        let file = SafeTensors::deserialize(&self.case.bytes).unwrap();
        let bytes = safetensors::serialize(tensors(&file, kind), None).unwrap();
        let folder = adapter_folder(name, &self.base, &bytes);
        let source = ModelSource::open(folder.path()).unwrap();
        self.folders.push(folder);
        source
    }
}

/// Writes a folder with the configuration of the adapter `name` for the model `base`, and these weights.
fn adapter_folder(name: &str, base: &str, weights: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = reference("lora").join(name).join("adapter_config.json");
    let config = fs::read_to_string(config).unwrap();
    assert!(config.contains("\"BASE\""), "{config}");
    let base = serde_json::Value::from(base).to_string();
    let write = |file: &str, bytes: &[u8]| fs::write(folder.path().join(file), bytes).unwrap();
    write("adapter_config.json", config.replace("\"BASE\"", &base).as_bytes());
    write("adapter_model.safetensors", weights);
    folder
}

/// Compares logits, losses, gradients and twenty updates of one adapter.
fn check_case(name: &str, device: &Device, mode: OpsMode) {
    let mut reference = Reference::open(name);
    let mut model = reference.model(device);
    let pass = Pass { mode, dropout: None };

    let tokens = reference.batch(0, 0..SEQUENCES).tokens;
    let merged = reference.source.model(device).unwrap();
    for (model, kind) in [(&model, "adapted"), (&merged, "merged")] {
        let logits = values(model.logits(tokens.clone(), SEQUENCES, mode));
        let off = error(&logits, &reference.case.f32("logits"));
        assert!(off < TOLERANCE, "{name}: {kind} logits are off by {off:e}");
    }

    let adapter = reference.source.adapter.as_ref().unwrap();
    let lora_rank = adapter.lora.rank as u32;
    let config = Config { lora_rank, ..optimizer_config_of(&reference.source) };
    let mut optimizer = Optimizer::new(&config, &model, None, None, mode);
    let [losses, norms, rates] =
        ["losses", "grad_norms", "learning_rates"].map(|name| reference.case.f32(name));
    for (step, rate) in rates.into_iter().enumerate() {
        // Odd steps use activation checkpointing, and every third step has three micro-batches, which must not
        // change the results.
        let checkpoint = step % 2 == 1;
        let (size, mut sums) = if step % 3 == 2 {
            (1, WeightGradients::zeros(&model))
        } else {
            (SEQUENCES, WeightGradients::default())
        };
        let mut loss = 0.0;
        for first in (0..SEQUENCES).step_by(size) {
            let batch = reference.batch(step, first..first + size);
            let value =
                model.add_gradients(&batch, reference.loss(), pass, checkpoint, &mut sums, None);
            loss += values(value)[0];
        }
        let sum = sums.into_vec();
        let off = error(&[loss], &losses[step..=step]);
        assert!(off < TOLERANCE, "{name}: loss {step} is off by {off:e}");
        if step == 0 {
            let mut wanted = reference.wanted(name, "grad").adapter_weights().unwrap();
            assert_eq!(sum.len(), parameters(&model).len());
            for (parameter, grad) in parameters(&model).into_iter().zip(sum.clone()) {
                let want = wanted.weight(&parameter.name, &parameter.shape).unwrap();
                let off = error(&values(grad), &want);
                assert!(
                    off < TOLERANCE,
                    "{name}: gradient of {} is off by {off:e}",
                    parameter.name
                );
            }
        }
        let tokens = SEQUENCES * reference.source.architecture.block_size;
        let (step_number, rate) = (step as u64 + 1, f64::from(rate));
        let update = optimizer.update(&mut model, sum, step_number, rate, tokens);
        let off = error(&values(pollster::block_on(update)), &norms[step..=step]);
        assert!(off < TOLERANCE, "{name}: norm {step} is off by {off:e}");
    }
    let mut wanted = reference.wanted(name, "final").adapter_weights().unwrap();
    for parameter in parameters(&model) {
        let want = wanted.weight(&parameter.name, &parameter.shape).unwrap();
        let [part] = <[_; 1]>::try_from(parameter.parts).expect("one part");
        let off = error(&values(part), &want);
        assert!(off < 1e-3, "{name}: {} after twenty steps is off by {off:e}", parameter.name);
    }
}

#[test]
fn cpu_matches_peft() {
    for name in CASES {
        for mode in [OpsMode::AUTO, OpsMode::REFERENCE] {
            check_case(name, &Device::flex(), mode);
        }
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_peft() {
    let adapters = gpu::devices().into_iter();
    let adapters: Vec<_> =
        adapters.filter(|info| info.id.backend == gpu::Backend::Vulkan).collect();
    assert!(!adapters.is_empty(), "no Vulkan adapter: install mesa-vulkan-drivers");
    for info in adapters {
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        for name in CASES {
            check_case(name, &open.device, OpsMode::AUTO.on(open.info.kind));
        }
        check_case("qwen3_0", &open.device, OpsMode::CUBE.on(open.info.kind));
    }
}

/// Returns the loss and the gradients of the first micro-batch.
fn first_gradients(
    reference: &Reference,
    model: &Gpt,
    pass: Pass,
    checkpoint: bool,
) -> Vec<Vec<f32>> {
    let (batch, mut sums) = (reference.batch(0, 0..SEQUENCES), WeightGradients::default());
    let loss = model.add_gradients(&batch, reference.loss(), pass, checkpoint, &mut sums, None);
    [loss].into_iter().chain(sums.into_vec()).map(values).collect()
}

/// An adapter that is moved by these steps, by the names of its matrices.
struct Moved {
    adapter: Box<dyn WeightSource>,
    steps: HashMap<String, Vec<f32>>,
}

impl WeightSource for Moved {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let mut values = self.adapter.weight(name, shape)?;
        if let Some(steps) = self.steps.get(name) {
            values.iter_mut().zip(steps).for_each(|(value, step)| *value += step);
        }
        Ok(values)
    }
}

/// The gradients of adapters whose inputs are dropped out are those of the loss, recomputed or not, and another
/// step drops others.
#[test]
fn dropout_in_adapters_has_its_gradient() {
    let device = Device::flex();
    for name in ["hf_tiny", "llama_0", "qwen3_3"] {
        let reference = Reference::open(name);
        let adapter = reference.source.adapter.as_ref().unwrap();
        let model = |steps| {
            let moved = Moved { adapter: reference.source.adapter_weights().unwrap(), steps };
            let mut weights =
                AdaptedWeights { base: adapter.base.weights().unwrap(), adapter: Box::new(moved) };
            let (architecture, lora) = (&reference.source.architecture, &adapter.lora);
            let lora = (lora, BaseDtype::Auto);
            Gpt::adapted(Precision::FLOAT32, architecture, lora, &mut weights, &device).unwrap()
        };
        let still = model(HashMap::new());
        let gradients = |model: &Gpt, mode, checkpoint, step| {
            let dropout =
                StepDropout { rate: 0.0, adapter_rate: 0.4, seed: 3, step, first_sequence: 1 };
            let pass = Pass { mode, dropout: Some(dropout) };
            first_gradients(&reference, model, pass, checkpoint)
        };
        let [at, recomputed] =
            [false, true].map(|checkpoint| gradients(&still, OpsMode::AUTO, checkpoint, 5));
        assert!(at == recomputed, "{name}");
        assert_ne!(at[0], gradients(&still, OpsMode::AUTO, false, 6)[0], "{name}: another step");
        for (found, wanted) in gradients(&still, OpsMode::REFERENCE, false, 5).iter().zip(&at) {
            let off = error(found, wanted);
            assert!(off < TOLERANCE, "{name}, tensor operations: off by {off:e}");
        }
        // Along the gradient, the loss rises by its length.
        let length = at[1..].iter().flatten().map(|x| x * x).sum::<f32>().sqrt();
        let [more, less] = [0.01, -0.01].map(|by: f32| {
            let step = |(parameter, gradient): (Parameter, &Vec<f32>)| {
                (parameter.name, gradient.iter().map(|x| by / length * x).collect())
            };
            let steps = parameters(&still).into_iter().zip(&at[1..]).map(step).collect();
            gradients(&model(steps), OpsMode::AUTO, false, 5)[0][0]
        });
        let slope = (more - less) / 0.02;
        assert!((slope / length - 1.0).abs() < 0.01, "{name}: {slope}, expected {length}");
    }
}

/// A base in 8 bits computes with the weights that the gguf package decodes, and every device as the CPU does. The
/// MLP of this model is 48 wide, so that its second matrix has no whole blocks.
#[test]
fn a_base_in_8_bits_is_that_of_the_gguf_package() {
    let reference = Reference::open("llama_0");
    let base = &reference.source.adapter.as_ref().unwrap().base;
    let decoded = tempfile::tempdir().unwrap();
    fs::copy(base.path.join("config.json"), decoded.path().join("config.json")).unwrap();
    let weights = super::reference("lora/q8_0.safetensors");
    fs::copy(weights, decoded.path().join("model.safetensors")).unwrap();
    let decoded = ModelSource::open(decoded.path()).unwrap();
    let cpu = Device::flex();
    let gradients = |model: &Gpt, mode, checkpoint| {
        first_gradients(&reference, model, Pass { mode, dropout: None }, checkpoint)
    };
    let wanted = {
        let model = reference.on(&decoded, BaseDtype::Auto, &cpu);
        gradients(&model, OpsMode::AUTO, false)
    };
    let quantized = reference.on(base, BaseDtype::Q8_0, &cpu);
    for checkpoint in [false, true] {
        let found = gradients(&quantized, OpsMode::AUTO, checkpoint);
        assert!(found == wanted, "recomputed: {checkpoint}");
    }
    let plain = gradients(&reference.model(&cpu), OpsMode::AUTO, false);
    let off = error(&plain[1], &wanted[1]);
    assert!((1e-4..0.1).contains(&off), "rounding changes a gradient by {off:e}");
    let found = gradients(&quantized, OpsMode::REFERENCE, false);
    let compare = |found: Vec<Vec<f32>>, what: &str| {
        for (found, wanted) in found.iter().zip(&wanted) {
            let off = error(found, wanted);
            assert!(off < TOLERANCE, "{what}: off by {off:e}");
        }
    };
    compare(found, "tensor operations");
    #[cfg(feature = "wgpu")]
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        let model = reference.on(base, BaseDtype::Q8_0, &open.device);
        for mode in [OpsMode::AUTO, OpsMode::CUBE] {
            let found = gradients(&model, mode.on(open.info.kind), false);
            compare(found, &info.name);
        }
    }
}

/// With a base in 8 bits, the embedding of a model with its own head stays in host memory. The matrices of this model
/// have no whole blocks, so that nothing is rounded.
#[test]
fn an_embedding_in_host_memory_changes_nothing() {
    let reference = Reference::open("llama_1");
    let base = &reference.source.adapter.as_ref().unwrap().base;
    let gradients = |device: &Device, dtype, mode| {
        let model = reference.on(base, dtype, device);
        first_gradients(&reference, &model, Pass { mode, dropout: None }, false)
    };
    let compare = |device: &Device, mode: OpsMode| {
        let [plain, on_host] =
            [BaseDtype::Auto, BaseDtype::Q8_0].map(|dtype| gradients(device, dtype, mode));
        assert!(plain == on_host, "{mode:?}");
    };
    compare(&Device::flex(), OpsMode::AUTO);
    compare(&Device::flex(), OpsMode::REFERENCE);
    #[cfg(feature = "wgpu")]
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        for mode in [OpsMode::AUTO, OpsMode::CUBE] {
            compare(&open.device, mode.on(open.info.kind));
        }
    }
}

/// An adapter that wgpt cannot continue names the reason.
#[test]
fn features_of_peft_that_wgpt_lacks_are_refused_by_name() {
    let weights = fs::read(reference("lora/hf_tiny/adapter_model.safetensors")).unwrap();
    let base = reference("hf_tiny").display().to_string();
    let refusal = |from: &str, to: &str| {
        let folder = adapter_folder("hf_tiny", &base, &weights);
        let path = folder.path().join("adapter_config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        ModelSource::open(folder.path()).unwrap_err().to_string()
    };
    for (from, to, word) in [
        ("\"use_rslora\": false", "\"use_rslora\": true", "use_rslora"),
        ("\"use_dora\": false", "\"use_dora\": true", "use_dora"),
        ("\"rank_pattern\": {}", "\"rank_pattern\": {\"c_attn\": 8}", "rank_pattern"),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias"),
        ("\"modules_to_save\": null", "\"modules_to_save\": [\"wte\"]", "modules_to_save"),
        ("\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\"", "LOHA"),
        ("\"r\": 4", "\"r\": 5", "lora_A"),
        ("mlp.c_fc\"", "mlp.c_fd\"", "c_fc.lora_A"),
        (&base, "nowhere/at/all", "nowhere"),
    ] {
        let text = refusal(from, to);
        assert!(text.contains(word), "{to}: {text}");
    }
    assert!(Path::new(&base).is_dir());
}
