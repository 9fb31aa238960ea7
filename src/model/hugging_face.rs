//! Hugging Face's GPT-2 folder: `config.json` and `model.safetensors`.

use std::path::Path;

use serde_json::{Value, json};

use super::{Architecture, WeightError};
use crate::config::Gelu;
use crate::disk;

pub const ARCHITECTURE_FILE: &str = "config.json";

pub const WEIGHTS_FILE: &str = "model.safetensors";

/// Returns the text of a model's `config.json`, which transformers reads as a `GPT2Config`. GPT-2
/// always has biases there, so a model without biases stores zeros, and `bias: false` for wgpt alone.
/// `ends` are the tokens that begin and end a text.
pub fn write_architecture(architecture: &Architecture, ends: [Option<u32>; 2]) -> String {
    let activation = match architecture.gelu {
        Gelu::Tanh => "gelu_new",
        Gelu::Erf => "gelu",
    };
    let config = json!({
        "activation_function": activation,
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bias": architecture.bias,
        "bos_token_id": ends[0],
        "embd_pdrop": 0.0,
        "eos_token_id": ends[1],
        "initializer_range": 0.02,
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
        "torch_dtype": "float32",
        "vocab_size": architecture.vocab_size,
    });
    format!("{config:#}\n")
}

/// Reads a folder's `config.json`.
///
/// # Errors
/// If the file is missing, is not JSON, or does not describe a plain GPT-2.
pub fn read_architecture(folder: &Path) -> Result<Architecture, WeightError> {
    let path = folder.join(ARCHITECTURE_FILE);
    let text = disk::read(&path).map_err(WeightError::io(&path))?;
    let config: Value = serde_json::from_slice(&text)
        .map_err(|error| WeightError::corrupt(&path, format!("not JSON: {error}")))?;
    architecture(&config).map_err(|reason| WeightError::corrupt(&path, reason))
}

/// Returns the architecture that a `config.json` describes, or the reason why it is not a plain GPT-2.
fn architecture(config: &Value) -> Result<Architecture, String> {
    let size = |key: &str, max: usize| {
        let value = config.get(key).and_then(Value::as_u64).and_then(|size| size.try_into().ok());
        let value = value.filter(|size| (1..=max).contains(size));
        value.ok_or_else(|| format!("`{key}` must be an integer from 1 to {max}"))
    };
    // Checks a key that must have the value of a plain GPT-2. A missing key has it.
    let require = |key: &str, plain: Value| match config.get(key) {
        Some(value) if *value != plain && !value.is_null() => {
            Err(format!("`{key}` is {value}; only {plain} is supported"))
        }
        _ => Ok(()),
    };
    require("model_type", json!("gpt2"))?;
    require("layer_norm_epsilon", json!(1e-5))?;
    require("tie_word_embeddings", json!(true))?;
    require("scale_attn_weights", json!(true))?;
    require("scale_attn_by_inverse_layer_idx", json!(false))?;
    let gelu = match config.get("activation_function").and_then(Value::as_str) {
        None | Some("gelu_new" | "gelu_pytorch_tanh") => Gelu::Tanh,
        Some("gelu") => Gelu::Erf,
        Some(other) => {
            return Err(format!("activation `{other}`; gelu_new and gelu are supported"));
        }
    };
    let bias = config.get("bias").and_then(Value::as_bool).unwrap_or(true);
    let architecture = Architecture::stated("n_positions", bias, gelu, size)?;
    require("n_inner", json!(4 * architecture.n_embd))?;
    Ok(architecture)
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
        assert_eq!(read(write_architecture(&gpt2, [Some(50256); 2])).unwrap(), gpt2);
        let nanogpt = Architecture { bias: false, gelu: Gelu::Erf, ..gpt2 };
        assert_eq!(read(write_architecture(&nanogpt, [None; 2])).unwrap(), nanogpt);
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_corrupt() {
        let error = read(b"\xff\xfe{}").unwrap_err();
        assert!(matches!(error, WeightError::Corrupt { .. }), "{error}");
    }

    #[test]
    fn other_architectures_are_rejected() {
        let good = write_architecture(&Architecture::tiny(), [None; 2]);
        for (from, to, word) in [
            (r#""n_head": 2"#, r#""n_head": 3"#, "multiple"),
            (r#""n_layer": 2"#, r#""n_layer": 0"#, "n_layer"),
            (r#""n_layer": 2"#, r#""n_layer": 99999999999"#, "n_layer"),
            (r#""gelu_new""#, r#""relu""#, "relu"),
            (r#""model_type": "gpt2""#, r#""model_type": "llama""#, "llama"),
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
}
