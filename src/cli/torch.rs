//! PyTorch's times of training steps, as `scripts/torch_cpu.py` prints them.

use std::path::Path;

use serde::Deserialize;

use crate::config::{Arch, Config, Gelu};
use crate::disk;
use crate::protocol::Failure;
use crate::text::excerpt;

/// The measurement of one model in one mode, with wgpt's names. Other keys are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct TorchStep {
    #[serde(default)]
    arch: Arch,
    n_layer: u32,
    n_head: u32,
    n_embd: u32,
    block_size: u32,
    batch_size: u32,
    vocab_size: u32,
    bias: bool,
    gelu: Gelu,
    pub torch: String,
    pub threads: usize,
    /// By `torch.compile`, not eager.
    pub compile: bool,
    /// Of the fastest step; `None` if it failed.
    #[serde(default)]
    pub ms: Option<f64>,
}

impl TorchStep {
    pub fn read(file: &Path) -> Result<Vec<Self>, Failure> {
        let text = disk::read_to_string(file).map_err(Failure::file(file))?;
        parse(&text).map_err(|what| {
            let hint = "write the file with `python3 scripts/torch_cpu.py`";
            Failure::usage(format!("{}, {what}", file.display()), hint)
        })
    }

    /// Returns true if this measured the model of `config` with `vocab` tokens, which PyTorch may
    /// have padded.
    pub fn measured(&self, config: &Config, vocab: u32) -> bool {
        const PADDING: u32 = 128;
        let sizes = [self.n_layer, self.n_head, self.n_embd, self.block_size, self.batch_size];
        let Config { n_layer, n_head, n_embd, block_size, batch_size, .. } = *config;
        sizes == [n_layer, n_head, n_embd, block_size, batch_size].map(u32::from)
            && (vocab..vocab + PADDING).contains(&self.vocab_size)
            && self.arch == config.arch
            && (self.arch != Arch::Gpt2 || (self.bias, self.gelu) == (config.bias, config.gelu))
    }
}

fn parse(text: &str) -> Result<Vec<TorchStep>, String> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let step = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("line {number}: {}", excerpt(error)))
    };
    lines.map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    const LINES: &str = r#"
{"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65, "batch_size": 12,
 "bias": false, "gelu": "erf", "threads": 2, "torch": "2.15.0", "compile": false, "first_ms": 90.1,
 "ms": 28.5, "tokens_per_s": 26947.3}
{"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 256, "vocab_size": 50304,
 "batch_size": 1, "bias": true, "gelu": "tanh", "threads": 2, "torch": "2.15.0", "compile": true,
 "error": "out of memory"}
"#;

    #[test]
    fn a_step_of_the_same_model_is_found() {
        let steps = parse(&LINES.replace("\n ", " ")).unwrap();
        assert_eq!(steps.iter().map(|step| step.ms).collect::<Vec<_>>(), [Some(28.5), None]);
        let config = |changes: &str| {
            let layers = [Layer::preset("shakespeare-char"), Layer::toml("small", changes)];
            resolve(layers.map(Result::unwrap).into()).unwrap().config
        };
        let small = "batch_size = 12\nn_layer = 4\nn_head = 4\nn_embd = 128";
        let same = config(&format!("block_size = 64\n{small}"));
        assert!(steps[0].measured(&same, 65) && !steps[1].measured(&same, 65));
        assert!(!steps[0].measured(&config(small), 65));
        assert!(parse("{}").unwrap_err().starts_with("line 1: "));
    }
}
