//! An adapter in the files of PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! There each matrix has its own A `[rank, in]` and B `[out, rank]`. In memory they are transposed, those of
//! matrices that share an input side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};

use super::folder::{FileTensor, SavedTensor, pack, write_tensors};
use super::weights::Parameter;
use super::{Architecture, Lora, WeightError, WeightFile, WeightSource};
use crate::config::Arch;
use crate::disk;
use crate::plan::{AdaptedLayer, LORA_A, LORA_B};

pub const ADAPTER_CONFIG: &str = "adapter_config.json";
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// The most bytes of an `adapter_config.json`.
const MAX_BYTES: usize = 1 << 20;

/// The advice about an adapter that wgpt cannot continue.
const MERGE: &str = "merge it into its model, in Python with PEFT's merge_and_unload and save_pretrained, and start \
                     from that";

/// The advice about an adapter for a model of other sizes.
const OTHER_BASE: &str = "give the model that this adapter was trained on: its folder or name is \
                          base_model_name_or_path in adapter_config.json";

/// Returns true if a folder has an adapter.
pub fn has_adapter(folder: &Path) -> bool {
    disk::exists(&folder.join(ADAPTER_CONFIG))
}

/// The contents of an `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// The name or the folder of the model that it belongs to.
    pub base: String,
    pub lora: Lora,
}

impl AdapterConfig {
    /// Reads the `adapter_config.json` of a folder.
    ///
    /// # Errors
    /// If it is missing, is not JSON, or describes something other than low-rank matrices of one rank.
    pub fn read(folder: &Path) -> Result<Self, WeightError> {
        let path = folder.join(ADAPTER_CONFIG);
        let text = disk::read_regular(&path).map_err(WeightError::io(&path))?;
        if text.len() > MAX_BYTES {
            return Err(WeightError::corrupt(
                &path,
                "too long for the configuration of an adapter",
            ));
        }
        if disk::is_lfs_pointer(&text) {
            return Err(WeightError::unsupported(&path, disk::LFS_POINTER, disk::LFS_HINT));
        }
        let config: Value = serde_json::from_slice(&text)
            .map_err(|error| WeightError::corrupt(&path, format!("not JSON: {error}")))?;
        Self::of(&config).map_err(|reason| WeightError::unsupported(&path, reason, MERGE))
    }

    fn of(config: &Value) -> Result<Self, String> {
        if config["peft_type"] != "LORA" {
            return Err(format!(
                "`peft_type` is {}; only \"LORA\" is supported",
                config["peft_type"]
            ));
        }
        // Absent, null, false and empty mean that a feature is not used.
        let is_used = |key: &&&str| match &config[**key] {
            Value::Null | Value::Bool(false) => false,
            Value::Array(values) => !values.is_empty(),
            Value::Object(values) => !values.is_empty(),
            Value::String(word) => word != "none",
            _ => true,
        };
        let unsupported = [
            "alora_invocation_tokens",
            "alpha_pattern",
            "bias",
            "layer_replication",
            "layers_to_transform",
            "lora_bias",
            "megatron_config",
            "modules_to_save",
            "rank_pattern",
            "target_parameters",
            "trainable_token_indices",
            "use_dora",
            "use_qalora",
            "use_rslora",
        ];
        if let Some(key) = unsupported.iter().find(is_used) {
            return Err(format!("`{key}` is {}, which wgpt does not support", config[*key]));
        }
        let rank = config["r"].as_u64().filter(|rank| (1..=1 << 12).contains(rank));
        let rank = rank.ok_or_else(|| format!("`r` is {}, not a rank", config["r"]))?;
        let alpha = config["lora_alpha"].as_f64().filter(|alpha| *alpha > 0.0);
        let alpha = alpha.ok_or_else(|| format!("`lora_alpha` is {}", config["lora_alpha"]))?;
        let base = config["base_model_name_or_path"].as_str().unwrap_or_default().to_owned();
        let targets = match &config["target_modules"] {
            Value::String(word) if word == "all-linear" => Vec::new(),
            Value::Array(names) => {
                let names: BTreeSet<_> =
                    names.iter().filter_map(Value::as_str).map(last_part).collect();
                names.into_iter().collect()
            }
            other => return Err(format!("`target_modules` is {other}, not a list of modules")),
        };
        let dropout = config["lora_dropout"].as_f64().unwrap_or(0.0);
        Ok(Self { base, lora: Lora { rank: rank as usize, alpha, dropout, targets } })
    }

    fn json(&self, architecture: &Architecture) -> Value {
        let Self { base, lora } = self;
        let mut targets: Vec<&str> = lora
            .layers(architecture)
            .iter()
            .flat_map(|layer| layer.parts.iter().map(|(name, _)| *name))
            .map(|name| name.rsplit('.').next().unwrap_or(name))
            .collect();
        targets.sort_unstable();
        targets.dedup();
        json!({
            // PEFT has the names of the hub without a prefix.
            "base_model_name_or_path": base.strip_prefix("hf:").unwrap_or(base),
            "bias": "none",
            // The matrices of GPT-2 are `[in, out]` in its files.
            "fan_in_fan_out": architecture.arch() == Arch::Gpt2,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": lora.alpha,
            "lora_dropout": lora.dropout,
            "peft_type": "LORA",
            "r": lora.rank,
            "target_modules": targets,
            "task_type": "CAUSAL_LM",
        })
    }
}

fn last_part(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

/// Returns the tensors of a file that make up the matrix `kind` of a layer's adapter.
fn tensors_of(
    architecture: &Architecture,
    layer: &AdaptedLayer,
    kind: &str,
    rank: usize,
) -> Vec<FileTensor> {
    let block = layer.name.split('.').nth(1).unwrap_or_default();
    let prefix = match architecture.arch() {
        Arch::Gpt2 => "transformer.h",
        Arch::Llama | Arch::Qwen2 | Arch::Qwen3 => "model.layers",
    };
    let tensor = |(index, (name, columns)): (usize, &(&str, Range<usize>))| FileTensor {
        name: format!("base_model.model.{prefix}.{block}.{name}.{kind}.weight"),
        columns: Some(match kind {
            LORA_A => index * rank..(index + 1) * rank,
            _ => columns.clone(),
        }),
    };
    layer.parts.iter().enumerate().map(tensor).collect()
}

/// The matrices of an adapter under the names of the model, read one at a time.
#[derive(Debug)]
pub struct AdapterFolder {
    file: WeightFile,
    architecture: Architecture,
    lora: Lora,
}

impl AdapterFolder {
    /// Opens the adapter in a folder.
    ///
    /// # Errors
    /// If its matrices are not those of `lora` for a model of this architecture.
    pub fn open(
        folder: &Path,
        architecture: &Architecture,
        lora: &Lora,
    ) -> Result<Self, WeightError> {
        let path = folder.join(ADAPTER_FILE);
        let file = WeightFile::open(&path)?;
        let mut wanted = BTreeMap::new();
        for layer in lora.layers(architecture) {
            for (kind, whole) in [LORA_A, LORA_B].into_iter().zip(layer.shapes(lora.rank)) {
                for tensor in tensors_of(architecture, &layer, kind, lora.rank) {
                    let shape = tensor.shape(&whole);
                    wanted.insert(tensor.name, shape);
                }
            }
        }
        if let Some((name, _)) = file.shapes().find(|(name, _)| !wanted.contains_key(*name)) {
            let reason = format!("`{name}` is not a matrix in the blocks of this model");
            return Err(WeightError::unsupported(&path, reason, MERGE));
        }
        for (name, need) in wanted {
            let shape = file.shapes().find(|(it, _)| *it == name).map(|(_, shape)| shape);
            let have = shape.ok_or_else(|| WeightError::missing(&path, &name, MERGE))?;
            if have != need {
                let shapes = [have, &need[..]];
                return Err(WeightError::shape(&path, &name, shapes, OTHER_BASE));
            }
        }
        Ok(Self { file, architecture: architecture.clone(), lora: lora.clone() })
    }
}

impl WeightSource for AdapterFolder {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let (layer, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        let layers = self.lora.layers(&self.architecture);
        let layer = layers.iter().find(|adapted| adapted.name == layer);
        let layer = layer.expect("a model asks for the adapters of its layers");
        let tensors = tensors_of(&self.architecture, layer, kind, self.lora.rank);
        pack(tensors, shape, |name, shape| self.file.weight(name, shape))
    }
}

/// The weights of a model, and those of its adapter under their own names.
pub struct AdaptedWeights {
    pub base: Box<dyn WeightSource>,
    pub adapter: Box<dyn WeightSource>,
}

impl WeightSource for AdaptedWeights {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let is_adapter = name.ends_with(LORA_A) || name.ends_with(LORA_B);
        let source = if is_adapter { &mut self.adapter } else { &mut self.base };
        source.weight(name, shape)
    }
}

/// The weights of a model with its adapter added to them.
pub struct MergedWeights {
    pub base: Box<dyn WeightSource>,
    pub adapter: Box<dyn WeightSource>,
    pub architecture: Architecture,
    pub lora: Lora,
}

impl WeightSource for MergedWeights {
    /// The weight and `alpha / rank A B`, in f32.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let mut weight = self.base.weight(name, shape)?;
        let layers = self.lora.layers(&self.architecture);
        let layer = name.strip_suffix(".weight");
        let Some(layer) = layers.iter().find(|adapted| Some(adapted.name.as_str()) == layer) else {
            return Ok(weight);
        };
        let rank = self.lora.rank;
        let [of_a, of_b] = layer.shapes(rank);
        let mut matrix = |kind, shape: [usize; 2]| {
            self.adapter.weight(&format!("{}.{kind}", layer.name), &shape)
        };
        let (a, b) = (matrix(LORA_A, of_a)?, matrix(LORA_B, of_b)?);
        let [[_, width], [_, out]] = [of_a, of_b];
        let scale = self.lora.scale() as f32;
        for (row, a) in weight.chunks_exact_mut(out).zip(a.chunks_exact(width)) {
            for ((_, columns), a) in layer.parts.iter().zip(a.chunks_exact(rank)) {
                for (a, b) in a.iter().zip(b.chunks_exact(out)) {
                    let sums = row[columns.clone()].iter_mut().zip(&b[columns.clone()]);
                    sums.for_each(|(sum, b)| *sum += scale * a * b);
                }
            }
        }
        Ok(weight)
    }
}

/// Writes an adapter, given in the order of the model, as PEFT does.
pub(crate) async fn write_adapter(
    folder: &Path,
    architecture: &Architecture,
    config: &AdapterConfig,
    weights: Vec<Parameter>,
) -> Result<(), WeightError> {
    let path = folder.join(ADAPTER_CONFIG);
    disk::write(&path, format!("{:#}\n", config.json(architecture)))
        .map_err(WeightError::io(&path))?;
    let layers = config.lora.layers(architecture);
    let mut tensors = Vec::new();
    for parameter in weights {
        let (layer, kind) = parameter.name.rsplit_once('.').unwrap_or_default();
        let layer = layers.iter().find(|adapted| adapted.name == layer);
        let layer = layer.expect("the parameters are those of the adapter");
        for tensor in tensors_of(architecture, layer, kind, config.lora.rank) {
            tensors.push(SavedTensor::new(tensor, &parameter));
        }
    }
    write_tensors(&folder.join(ADAPTER_FILE), tensors).await
}
