//! The `config.json` of a Hugging Face folder.

use std::path::Path;

use serde_json::{Value, json};

use super::weights::NOT_QUANTIZED;
use super::{Architecture, Blocks, LlamaBlocks, WeightError};
use crate::config::{Arch, Gelu, RopeScaling};
use crate::disk;
use crate::plan::{MAX_BLOCK, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};

pub const ARCHITECTURE_FILE: &str = "config.json";

/// The most bytes of a `config.json`. Each byte of JSON can become ten in memory.
const MAX_BYTES: usize = 4 << 20;

/// The largest width of a head and of an MLP.
const MAX_HEAD: usize = 256;
const MAX_FFN: usize = 1 << 18;

/// Returns the text of a model's `config.json`, as transformers reads it. `specials` are
/// keys and values about the special tokens.
pub fn write_architecture(
    architecture: &Architecture,
    specials: Vec<(&'static str, Value)>,
) -> String {
    let mut config = match &architecture.blocks {
        Blocks::Gpt2 { bias, gelu } => gpt2_config(architecture, *bias, *gelu),
        Blocks::Llama(shape) => llama_config(architecture, shape),
    };
    for (key, value) in specials {
        config[key] = value;
    }
    config["initializer_range"] = json!(0.02);
    config["torch_dtype"] = json!("float32");
    config["vocab_size"] = json!(architecture.vocab_size);
    format!("{config:#}\n")
}

/// Returns a `GPT2Config`. GPT-2 always has biases there, so a model without biases stores zeros, and
/// `bias: false` for wgpt alone.
fn gpt2_config(architecture: &Architecture, bias: bool, gelu: Gelu) -> Value {
    let activation = match gelu {
        Gelu::Tanh => "gelu_new",
        Gelu::Erf => "gelu",
    };
    json!({
        "activation_function": activation,
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bias": bias,
        "embd_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "model_type": "gpt2",
        "n_ctx": architecture.block_size,
        "n_embd": architecture.n_embd,
        "n_head": architecture.n_head,
        "n_inner": null,
        "n_layer": architecture.n_layer,
        "n_positions": architecture.block_size,
        "resid_pdrop": 0.0,
        "tie_word_embeddings": true,
    })
}

/// Returns a `LlamaConfig`, a `Qwen2Config` or a `Qwen3Config`, with the base of the angles where transformers 4 and where
/// transformers 5 look for it.
fn llama_config(architecture: &Architecture, shape: &LlamaBlocks) -> Value {
    let LlamaBlocks { kv_heads, head_size, ffn_size, rope_theta, .. } = *shape;
    let rope = rope_parameters(shape);
    let scaling = if shape.rope_scaling == RopeScaling::None { Value::Null } else { rope.clone() };
    let arch = architecture.arch();
    let class = match arch {
        Arch::Qwen2 => "Qwen2ForCausalLM",
        Arch::Qwen3 => "Qwen3ForCausalLM",
        Arch::Gpt2 | Arch::Llama => "LlamaForCausalLM",
    };
    let mut config = json!({
        "architectures": [class],
        // For wgpt alone: other programs may give the model more tokens than it was trained on here.
        "block_size": architecture.block_size,
        "attention_dropout": 0.0,
        "head_dim": head_size,
        "hidden_act": "silu",
        "hidden_size": architecture.n_embd,
        "intermediate_size": ffn_size,
        "max_position_embeddings": architecture.positions(),
        "model_type": arch.to_string(),
        "num_attention_heads": architecture.n_head,
        "num_hidden_layers": architecture.n_layer,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": rope,
        "rope_scaling": scaling,
        "rope_theta": rope_theta,
        "tie_word_embeddings": shape.tied,
    });
    // Qwen2 has no choice.
    if arch != Arch::Qwen2 {
        config["attention_bias"] = json!(false);
        config["mlp_bias"] = json!(false);
    }
    config
}

/// Reads a folder's `config.json`.
///
/// # Errors
/// If the file is missing, is not JSON, or describes a model with a feature that wgpt lacks.
pub fn read_architecture(folder: &Path) -> Result<Architecture, WeightError> {
    let path = folder.join(ARCHITECTURE_FILE);
    if !disk::exists(&path) {
        let hint = "copy the config.json of the model next to its weights";
        return Err(WeightError::unsupported(&path, "does not exist", hint));
    }
    let text = disk::read_regular(&path).map_err(WeightError::io(&path))?;
    if text.len() > MAX_BYTES {
        return Err(WeightError::corrupt(&path, "too long for the configuration of a model"));
    }
    if disk::is_lfs_pointer(&text) {
        return Err(WeightError::unsupported(&path, disk::LFS_POINTER, disk::LFS_HINT));
    }
    let config: Value = serde_json::from_slice(&text)
        .map_err(|error| WeightError::corrupt(&path, format!("not JSON: {error}")))?;
    architecture(&config).map_err(|reason| WeightError::unsupported(&path, reason, hint(&config)))
}

/// Returns the architecture that a `config.json` describes, or the reason why wgpt has no such model.
pub(super) fn architecture(config: &Value) -> Result<Architecture, String> {
    match model_type(config) {
        Some("gpt2") => gpt2(config),
        // GPT-2's own file has no type, but its names of sizes are GPT-2's alone.
        None if config.get("n_embd").is_some() => gpt2(config),
        None => Err("`model_type` is missing".to_owned()),
        Some("llama") => llama(config, Arch::Llama),
        Some("mistral") => mistral(config),
        Some("qwen2") => llama(config, Arch::Qwen2),
        Some("qwen3") => llama(config, Arch::Qwen3),
        Some(other) => Err(format!(
            "`model_type` is \"{other}\"; gpt2, llama, mistral, qwen2 and qwen3 are supported"
        )),
    }
}

fn model_type(config: &Value) -> Option<&str> {
    config.get("model_type").and_then(Value::as_str)
}

/// Returns what to do about a `config.json` that [`architecture()`] refuses.
fn hint(config: &Value) -> &'static str {
    let sizes: &[&str] = match model_type(config) {
        None if config.get("n_embd").is_none() => &["model_type"],
        None | Some("gpt2") => &["n_layer", "n_head", "n_embd", "n_positions", "vocab_size"],
        Some("llama" | "mistral" | "qwen2" | "qwen3") => &[
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_size",
            "intermediate_size",
            "max_position_embeddings",
            "vocab_size",
        ],
        Some(_) => return "give a GPT-2, a Llama or a Qwen; `wgpt get --list` names some",
    };
    if config.get("quantization_config").is_some_and(|value| !value.is_null()) {
        NOT_QUANTIZED
    } else if sizes.iter().any(|key| config.get(key).is_none()) {
        "take the config.json that came with the weights"
    } else {
        "give a GPT-2, a Llama or a Qwen without this; `wgpt get --list` names some"
    }
}

/// Reads the size `key`, from 1 to `max`.
fn size(config: &Value, key: &str, max: usize) -> Result<usize, String> {
    let value = config.get(key).ok_or_else(|| format!("`{key}` is missing"))?;
    let size = value.as_u64().and_then(|size| size.try_into().ok());
    let size = size.filter(|size| (1..=max).contains(size));
    size.ok_or_else(|| format!("`{key}` is {value}, not an integer from 1 to {max}"))
}

/// Checks keys that must have the value of a plain model. A missing key, and null, have it.
fn require(config: &Value, plain: &[(&str, Value)]) -> Result<(), String> {
    let is_other = |(key, plain): &&(&str, Value)| {
        config.get(key).is_some_and(|value| value != plain && !value.is_null())
    };
    plain.iter().find(is_other).map_or(Ok(()), |(key, plain)| {
        Err(format!("`{key}` is {}; only {plain} is supported", config[*key]))
    })
}

fn gpt2(config: &Value) -> Result<Architecture, String> {
    let plain = [
        ("layer_norm_epsilon", json!(1e-5)),
        ("tie_word_embeddings", json!(true)),
        ("scale_attn_weights", json!(true)),
        ("scale_attn_by_inverse_layer_idx", json!(false)),
    ];
    require(config, &plain)?;
    let gelu = match config.get("activation_function").and_then(Value::as_str) {
        None | Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
        Some("gelu") => Gelu::Erf,
        Some(other) => {
            return Err(format!("activation `{other}`; gelu_new and gelu are supported"));
        }
    };
    let bias = config.get("bias").and_then(Value::as_bool).unwrap_or(true);
    let size = |key: &str, max| size(config, key, max);
    let architecture = Architecture::stated("n_positions", bias, gelu, size)?;
    require(config, &[("n_inner", json!(4 * architecture.n_embd))])?;
    Ok(architecture)
}

/// Reads a `MistralConfig`: a Llama whose positions may see only a window of those before them. Within one window it
/// is the same model, so that it has no more positions here.
fn mistral(config: &Value) -> Result<Architecture, String> {
    let mut config = config.clone();
    let window = match config.get("sliding_window") {
        None | Some(Value::Null) => MAX_BLOCK,
        Some(_) => size(&config, "sliding_window", MAX_BLOCK)?,
    };
    config["sliding_window"] = Value::Null;
    let mut architecture = llama(&config, Arch::Llama)?;
    architecture.block_size = architecture.block_size.min(window);
    if let Blocks::Llama(shape) = &mut architecture.blocks {
        shape.positions = shape.positions.min(window);
    }
    Ok(architecture)
}

/// Reads the configuration of a Llama, a Qwen2 or a Qwen3. Missing keys have the defaults of transformers.
fn llama(config: &Value, arch: Arch) -> Result<Architecture, String> {
    let plain = [
        ("hidden_act", json!("silu")),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("use_sliding_window", json!(false)),
        ("partial_rotary_factor", json!(1.0)),
        ("quantization_config", Value::Null),
    ];
    require(config, &plain)?;
    // Qwen2 and Qwen3 name a window even if they do not use it.
    if arch == Arch::Llama {
        require(config, &[("sliding_window", Value::Null)])?;
    }
    let layers = config.get("layer_types").and_then(Value::as_array).into_iter().flatten();
    if let Some(other) = layers.into_iter().find(|layer| **layer != "full_attention") {
        return Err(format!("`layer_types` has {other}; only \"full_attention\" is supported"));
    }
    let size = |key: &str, max| size(config, key, max);
    let optional = |key: &str, max, default: usize| match config.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(_) => size(key, max),
    };
    let n_head = size("num_attention_heads", MAX_WIDTH)?;
    let n_embd = size("hidden_size", MAX_WIDTH)?;
    let of_width = if arch == Arch::Qwen3 { 128 } else { n_embd / n_head };
    // A null means one for each head, as without a key in Llama; Qwen2 and Qwen3 have 32 then.
    let is_missing = config.get("num_key_value_heads").is_none();
    let default_kv_heads = if arch != Arch::Llama && is_missing { 32 } else { n_head };
    let kv_heads = optional("num_key_value_heads", MAX_WIDTH, default_kv_heads)?;
    let head_size = optional("head_dim", MAX_HEAD, of_width)?;
    if !n_head.is_multiple_of(kv_heads) {
        return Err(format!(
            "num_attention_heads {n_head} is not a multiple of num_key_value_heads {kv_heads}"
        ));
    }
    if head_size == 0 || !head_size.is_multiple_of(2) {
        return Err(format!("heads of {head_size} elements; only even sizes are supported"));
    }
    let positions = size("max_position_embeddings", MAX_BLOCK)?;
    Ok(Architecture {
        n_layer: size("num_hidden_layers", MAX_LAYERS)?,
        n_head,
        n_embd,
        block_size: optional("block_size", MAX_BLOCK, positions)?,
        vocab_size: size("vocab_size", MAX_VOCAB)?,
        blocks: Blocks::Llama(LlamaBlocks {
            kv_heads,
            head_size,
            ffn_size: size("intermediate_size", MAX_FFN)?,
            rope_theta: rope_theta(config)?,
            rope_scaling: rope_scaling(config, positions)?,
            norm_eps: positive(config, "rms_norm_eps", 1e-6)?,
            tied: config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
            has_qkv_biases: arch == Arch::Qwen2,
            has_head_norms: arch == Arch::Qwen3,
            positions,
        }),
    })
}

/// Reads a number above 0.
fn positive(config: &Value, key: &str, default: f64) -> Result<f64, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_f64()
            .filter(|number| *number > 0.0 && (*number as f32).is_finite())
            .ok_or_else(|| format!("`{key}` is {value}, not a number above 0")),
    }
}

/// Returns the angles in the form of transformers 5.
fn rope_parameters(shape: &LlamaBlocks) -> Value {
    let mut rope = match shape.rope_scaling {
        RopeScaling::None => json!({"rope_type": "default"}),
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low, high, positions } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": positions as u64,
        }),
    };
    rope["rope_theta"] = json!(shape.rope_theta);
    rope
}

/// Reads the scaling of the angles. transformers 5 has it in `rope_parameters`, transformers 4 in `rope_scaling`; a file
/// may have both.
fn rope_scaling(config: &Value, positions: usize) -> Result<RopeScaling, String> {
    let mut scaling = RopeScaling::None;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = config.get(key).filter(|rope| !rope.is_null()) else { continue };
        let supported = ["default", "linear", "llama3"];
        let kind = ["rope_type", "type"].iter().find_map(|name| rope[*name].as_str());
        let kind = kind.unwrap_or("default");
        let whole = rope.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
        if !rope.is_object() || !supported.contains(&kind) || whole != 1.0 {
            let supported = supported.join(", ");
            return Err(format!("`{key}` is {rope}; the types {supported} are supported"));
        }
        let number = |name: &str, default: f64| match positive(rope, name, default)? {
            number if number > 0.0 => Ok(number),
            _ => Err(format!("`{key}` has no `{name}`")),
        };
        let found = match kind {
            "linear" => RopeScaling::Linear { factor: number("factor", 0.0)? },
            "llama3" => RopeScaling::Llama3 {
                factor: number("factor", 0.0)?,
                low: number("low_freq_factor", 0.0)?,
                high: number("high_freq_factor", 0.0)?,
                positions: number("original_max_position_embeddings", positions as f64)?,
            },
            _ => continue,
        };
        // The limits of a setting hold for a file, too.
        scaling = RopeScaling::try_from(found.to_string())
            .map_err(|_| format!("`{key}` is {rope}; its numbers are no scaling"))?;
    }
    Ok(scaling)
}

/// Reads the base of the angles, next to their scaling or outside.
fn rope_theta(config: &Value) -> Result<f64, String> {
    let places = [&config["rope_parameters"], &config["rope_scaling"]];
    let place = places.into_iter().find(|rope| rope.get("rope_theta").is_some());
    positive(place.unwrap_or(config), "rope_theta", 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl AsRef<[u8]>) -> Result<Architecture, WeightError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(ARCHITECTURE_FILE), text).unwrap();
        read_architecture(folder.path())
    }

    #[test]
    fn a_written_architecture_reads_back() {
        let gpt2 = Architecture::tiny();
        assert_eq!(
            read(write_architecture(&gpt2, vec![("eos_token_id", json!(50256))])).unwrap(),
            gpt2
        );
        let blocks = Blocks::Gpt2 { bias: false, gelu: Gelu::Erf };
        let nanogpt = Architecture { blocks, ..gpt2 };
        assert_eq!(read(write_architecture(&nanogpt, Vec::new())).unwrap(), nanogpt);
        for (arch, tied) in [(Arch::Llama, true), (Arch::Qwen2, true), (Arch::Qwen3, false)] {
            let llama = Architecture::tiny_llama(arch, tied);
            assert_eq!(read(write_architecture(&llama, Vec::new())).unwrap(), llama);
        }
    }

    /// A model that was fine-tuned on shorter windows than it was made for.
    #[test]
    fn the_context_of_a_model_survives_a_shorter_block_size() {
        let long = Architecture::tiny_llama(Arch::Llama, true);
        let tuned = Architecture { block_size: 8, ..long };
        let text = write_architecture(&tuned, Vec::new());
        assert!(text.contains("\"max_position_embeddings\": 16"), "{text}");
        assert_eq!(read(text).unwrap(), tuned);
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_corrupt() {
        let error = read(b"\xff\xfe{}").unwrap_err();
        assert!(matches!(error, WeightError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn other_architectures_are_rejected() {
        let good = write_architecture(&Architecture::tiny(), Vec::new());
        for (from, to, word) in [
            (r#""n_head": 2"#, r#""n_head": 3"#, "multiple"),
            (r#""n_layer": 2"#, r#""n_layer": 0"#, "n_layer"),
            (r#""n_layer": 2"#, r#""n_layer": 99999999999"#, "n_layer"),
            (r#""gelu_new""#, r#""relu""#, "relu"),
            (r#""model_type": "gpt2""#, r#""model_type": "mamba""#, "mamba"),
            (r#""n_inner": null"#, r#""n_inner": 77"#, "n_inner"),
            (r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#, "tie_word"),
        ] {
            let text = good.replace(from, to);
            assert_ne!(text, good, "{from} is not in the file");
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(read("{").is_err());
    }

    #[test]
    fn the_advice_about_a_configuration_fits_its_fault() {
        let good: Value = serde_json::from_str(SMOLLM2).unwrap();
        for (key, value, reason, hint) in [
            ("model_type", json!("gemma3"), "\"gemma3\"", "give a GPT-2, a Llama or a Qwen;"),
            ("attention_bias", json!(true), "attention_bias", "without this"),
            ("quantization_config", json!({"bits": 4}), "quantization", "quantized from"),
            ("hidden_size", Value::Null, "`hidden_size` is missing", "came with the weights"),
            ("model_type", Value::Null, "`model_type` is missing", "came with the weights"),
        ] {
            let mut config = good.clone();
            if value.is_null() {
                config.as_object_mut().unwrap().remove(key);
            } else {
                config[key] = value;
            }
            let failure = crate::protocol::Failure::from(read(config.to_string()).unwrap_err());
            assert!(failure.text.contains(reason), "{failure}");
            assert!(failure.hint.contains(hint), "{}", failure.hint);
        }
    }

    #[test]
    fn a_configuration_of_gpt_2_without_a_type_gets_its_advice() {
        let config =
            r#"{"n_layer":1,"n_head":1,"n_embd":8,"n_positions":8,"vocab_size":8,"n_inner":7}"#;
        let failure = crate::protocol::Failure::from(read(config).unwrap_err());
        assert!(failure.text.contains("n_inner"), "{failure}");
        assert!(failure.hint.contains("without this"), "{}", failure.hint);
    }

    /// SmolLM2-135M as transformers 4 wrote it, without what does not matter.
    const SMOLLM2: &str = r#"{"model_type": "llama", "attention_bias": false, "head_dim": null,
        "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536, "mlp_bias": false,
        "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152}"#;

    #[test]
    fn both_places_of_the_rotation_are_read() {
        let smollm2 = read(SMOLLM2).unwrap();
        assert_eq!(smollm2.parameters(), 134_515_008);
        let five = SMOLLM2.replace(
            r#""rope_theta": 100000"#,
            r#""rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}"#,
        );
        assert_eq!(read(&five).unwrap(), smollm2);
        let Blocks::Llama(LlamaBlocks { rope_theta, head_size, .. }) = smollm2.blocks else {
            panic!("{smollm2:?}");
        };
        assert_eq!((rope_theta, head_size), (1e5, 64));
    }

    /// Llama 3.2 as transformers 4 and 5 write it.
    #[test]
    fn scaled_angles_are_read_and_written() {
        let scaling = r#"{"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}"#;
        let four =
            SMOLLM2.replace(r#""rope_scaling": null"#, &format!(r#""rope_scaling": {scaling}"#));
        let with_theta = scaling.replace('{', r#"{"rope_theta": 100000.0, "#);
        let five = SMOLLM2
            .replace(r#""rope_scaling": null"#, &format!(r#""rope_parameters": {with_theta}"#));
        let read_scaling = |text: &str| {
            let architecture = read(text).unwrap();
            assert_eq!(read(write_architecture(&architecture, Vec::new())).unwrap(), architecture);
            let Blocks::Llama(shape) = architecture.blocks else { panic!("{architecture:?}") };
            shape.rope_scaling.to_string()
        };
        for text in [four, five] {
            assert_eq!(read_scaling(&text), "llama3:32,1,4,8192");
        }
        let linear = r#""rope_scaling": {"type": "linear", "factor": 2.0}"#;
        assert_eq!(read_scaling(&SMOLLM2.replace(r#""rope_scaling": null"#, linear)), "linear:2");
    }

    /// Mistral 7B has 32,768 positions, but each sees 4096.
    #[test]
    fn a_mistral_is_a_llama_of_one_window() {
        let mut config: Value = serde_json::from_str(SMOLLM2).unwrap();
        config["model_type"] = json!("mistral");
        let positions = |config: &Value| read(config.to_string()).unwrap().positions();
        assert_eq!(positions(&config), 8192);
        for (window, seen) in [(json!(4096), 4096), (json!(10_000), 8192), (Value::Null, 8192)] {
            config["sliding_window"] = window;
            assert_eq!(positions(&config), seen);
        }
        config["sliding_window"] = json!(-1);
        let error = read(config.to_string()).unwrap_err().to_string();
        assert!(error.contains("sliding_window"), "{error}");
    }

    #[test]
    fn features_that_wgpt_lacks_are_refused_by_name() {
        for (key, value) in [
            ("attention_bias", "true"),
            ("mlp_bias", "true"),
            ("hidden_act", r#""gelu""#),
            ("rope_scaling", r#"{"rope_type": "llama3", "factor": 8.0}"#),
            ("rope_scaling", r#"{"type": "linear"}"#),
            ("rope_scaling", r#"{"type": "linear", "factor": 0.5}"#),
            ("rope_scaling", r#"{"type": "dynamic", "factor": 2.0}"#),
            ("rope_parameters", r#"{"rope_type": "yarn", "rope_theta": 1e4}"#),
            ("rope_parameters", r#"{"rope_theta": -1}"#),
            ("partial_rotary_factor", "0.5"),
            ("sliding_window", "4096"),
            ("use_sliding_window", "true"),
            ("layer_types", r#"["full_attention", "sliding_attention"]"#),
            ("quantization_config", r#"{"bits": 4}"#),
            ("num_key_value_heads", "2"),
            ("head_dim", "300"),
            ("rms_norm_eps", "0"),
        ] {
            let mut config: Value = serde_json::from_str(SMOLLM2).unwrap();
            config[key] = serde_json::from_str(value).unwrap();
            let error = read(config.to_string()).unwrap_err().to_string();
            let names = if key == "rope_parameters" {
                ["rope_parameters", "rope_theta"]
            } else {
                [key, "low_freq"]
            };
            assert!(names.iter().any(|name| error.contains(name)), "{key}: {error}");
        }
        // Qwen3 names a window that it does not use.
        let window =
            r#""use_sliding_window": false, "sliding_window": 4096, "model_type": "qwen3""#;
        let qwen3 = SMOLLM2.replace(r#""model_type": "llama""#, window);
        assert!(read(&qwen3).is_ok_and(|qwen3| qwen3.arch() == Arch::Qwen3));
    }
}
