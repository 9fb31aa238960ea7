//! The architecture of a model: its sizes, and the names and shapes of its weights.

use serde::{Deserialize, Serialize};

use super::MAX_SHARDS;
use crate::config::{self, Arch, Config, Gelu, RopeScaling};

/// The largest sizes that a file may state. A file with larger ones is damaged or hostile, and below
/// these limits no product of sizes overflows.
pub(crate) const MAX_LAYERS: usize = 1024;
pub(crate) const MAX_WIDTH: usize = 65_536;
pub(crate) const MAX_BLOCK: usize = 1 << 20;
pub(crate) const MAX_VOCAB: usize = 1 << 24;

/// The head of a model that is not tied to the token embedding.
pub(crate) const HEAD: &str = "lm_head.weight";

/// Everything that determines the shapes and the function of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    pub n_layer: usize,
    pub n_head: usize,
    pub n_embd: usize,
    pub block_size: usize,
    /// The number of tokens without padding.
    pub vocab_size: usize,
    pub blocks: Blocks,
}

/// The shape of a model's blocks, positions and head.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Blocks {
    Gpt2 {
        /// True if linear layers and layer norms have biases.
        bias: bool,
        gelu: Gelu,
    },
    Llama(LlamaBlocks),
}

/// The shape of Llama, of Qwen2 and of Qwen3.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlamaBlocks {
    /// Divides `n_head`.
    pub kv_heads: usize,
    pub head_size: usize,
    /// The width inside the MLP.
    pub ffn_size: usize,
    pub rope_theta: f64,
    #[serde(default)]
    pub rope_scaling: RopeScaling,
    pub norm_eps: f64,
    /// True if the output head is the token embedding.
    pub tied: bool,
    /// True for Qwen2, which adds biases to queries, keys and values.
    #[serde(default)]
    pub has_qkv_biases: bool,
    /// True for Qwen3, which normalises the queries and keys of each head.
    pub has_head_norms: bool,
    /// The positions that the model was made for, at least `block_size`: rotation needs no weights for them.
    #[serde(default)]
    pub positions: usize,
}

#[cfg(test)]
impl Architecture {
    /// Returns a model for tests.
    pub(crate) fn tiny() -> Self {
        let (n_layer, n_head, n_embd, block_size, vocab_size) = (2, 2, 32, 16, 65);
        let blocks = Blocks::Gpt2 { bias: true, gelu: Gelu::Tanh };
        Self { n_layer, n_head, n_embd, block_size, vocab_size, blocks }
    }

    /// Returns a Llama, or another model of its shape, for tests: with grouped heads whose sizes are no quotient of
    /// the width.
    pub(crate) fn tiny_llama(arch: Arch, tied: bool) -> Self {
        let blocks = Blocks::Llama(LlamaBlocks {
            kv_heads: 2,
            head_size: 10,
            ffn_size: 48,
            rope_theta: 1e4,
            rope_scaling: RopeScaling::None,
            norm_eps: 1e-6,
            tied,
            has_qkv_biases: arch == Arch::Qwen2,
            has_head_norms: arch == Arch::Qwen3,
            positions: 16,
        });
        Self { n_head: 4, blocks, ..Self::tiny() }
    }
}

impl Architecture {
    /// Returns the architecture that `config` describes, for a vocabulary of `vocab_size` tokens.
    pub fn new(config: &Config, vocab_size: u32) -> Self {
        Self {
            n_layer: config.n_layer.get() as usize,
            n_head: config.n_head.get() as usize,
            n_embd: config.n_embd.get() as usize,
            block_size: config.block_size.get() as usize,
            vocab_size: vocab_size as usize,
            blocks: match config.arch {
                Arch::Gpt2 => Blocks::Gpt2 { bias: config.bias, gelu: config.gelu },
                arch => Blocks::Llama(LlamaBlocks {
                    kv_heads: config.kv_heads() as usize,
                    head_size: config.head_size() as usize,
                    ffn_size: config.ffn_size() as usize,
                    rope_theta: config.rope_theta,
                    rope_scaling: config.rope_scaling,
                    norm_eps: config.norm_eps,
                    tied: config.tie_embeddings,
                    has_qkv_biases: arch == Arch::Qwen2,
                    has_head_norms: arch == Arch::Qwen3,
                    positions: config.block_size.get().max(config.max_positions) as usize,
                }),
            },
        }
    }

    /// Returns the most tokens that other programs may give the model at once.
    pub fn positions(&self) -> usize {
        match self.blocks {
            Blocks::Gpt2 { .. } => self.block_size,
            Blocks::Llama(LlamaBlocks { positions, .. }) => self.block_size.max(positions),
        }
    }

    pub fn arch(&self) -> Arch {
        match self.blocks {
            Blocks::Gpt2 { .. } => Arch::Gpt2,
            Blocks::Llama(LlamaBlocks { has_head_norms: true, .. }) => Arch::Qwen3,
            Blocks::Llama(LlamaBlocks { has_qkv_biases: true, .. }) => Arch::Qwen2,
            Blocks::Llama(_) => Arch::Llama,
        }
    }

    /// Returns true if all linear layers and layer norms have biases.
    pub fn has_biases(&self) -> bool {
        matches!(self.blocks, Blocks::Gpt2 { bias: true, .. })
    }

    /// Returns true if the output head is a separate weight, not the token embedding.
    pub(crate) fn has_own_head(&self) -> bool {
        matches!(self.blocks, Blocks::Llama(LlamaBlocks { tied: false, .. }))
    }

    /// Returns the number of heads of keys and values, and the size of all heads.
    pub(crate) fn kv_heads(&self) -> [usize; 2] {
        match self.blocks {
            Blocks::Gpt2 { .. } => [self.n_head, self.n_embd / self.n_head],
            Blocks::Llama(LlamaBlocks { kv_heads, head_size, .. }) => [kv_heads, head_size],
        }
    }

    /// Returns the number of rows of the token embedding: the vocabulary and its padding.
    pub fn padded_vocab(&self) -> usize {
        config::padded_vocab(self.vocab_size as u32) as usize
    }

    /// Returns the number of shards of the token embedding on a device that binds at most `largest`
    /// bytes to a kernel. Returns more than `MAX_SHARDS` if even that many shards would be too
    /// large. GPT-2's embedding of 147 MiB exceeds the 128 MiB that WebGPU guarantees.
    pub fn shards(&self, largest: Option<u64>) -> usize {
        let bytes = |shards| (4 * self.shard_rows(shards)[0] * self.n_embd) as u64;
        let fits = |shards: &usize| bytes(*shards) <= largest.unwrap_or(u64::MAX);
        (1..=MAX_SHARDS).find(fits).unwrap_or(MAX_SHARDS + 1)
    }

    /// Returns the number of rows of each shard, the largest first.
    pub(crate) fn shard_rows(&self, shards: usize) -> Vec<usize> {
        let padded = self.padded_vocab();
        let most = config::padded_vocab(padded.div_ceil(shards) as u32) as usize;
        (0..padded).step_by(most).map(|first| most.min(padded - first)).collect()
    }

    /// Returns the total number of weights, padding included.
    pub fn parameters(&self) -> usize {
        self.shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Returns the name and shape of every weight, padding included, in the order of the model.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (rows, c) = (self.padded_vocab(), self.n_embd);
        let mut shapes = vec![("wte.weight".to_string(), vec![rows, c])];
        if self.arch() == Arch::Gpt2 {
            shapes.push(("wpe.weight".to_string(), vec![self.block_size, c]));
        }
        for (name, shape) in self.layers() {
            let out = shape[shape.len() - 1];
            shapes.push((format!("{name}.weight"), shape));
            let is_biased_qkv = self.arch() == Arch::Qwen2 && name.ends_with("qkv_proj");
            if self.has_biases() || is_biased_qkv {
                shapes.push((format!("{name}.bias"), vec![out]));
            }
        }
        shapes.extend(self.has_own_head().then(|| (HEAD.to_string(), vec![rows, c])));
        shapes
    }

    /// Returns the name of each layer norm and linear layer with the shape of its weight, `[c]` or
    /// `[in, out]`, in the order of the model. `qkv_proj` and `gate_up_proj` are the matrices of their
    /// names side by side.
    pub(crate) fn layers(&self) -> Vec<(String, Vec<usize>)> {
        let c = self.n_embd;
        let block = match self.blocks {
            Blocks::Gpt2 { .. } => vec![
                ("ln_1", vec![c]),
                ("attn.c_attn", vec![c, 3 * c]),
                ("attn.c_proj", vec![c, c]),
                ("ln_2", vec![c]),
                ("mlp.c_fc", vec![c, 4 * c]),
                ("mlp.c_proj", vec![4 * c, c]),
            ],
            Blocks::Llama(LlamaBlocks {
                kv_heads, head_size, ffn_size, has_head_norms, ..
            }) => {
                let heads = self.n_head;
                let norms = ["self_attn.q_norm", "self_attn.k_norm"]
                    .into_iter()
                    .take(if has_head_norms { 2 } else { 0 });
                let mut block = vec![
                    ("input_layernorm", vec![c]),
                    ("self_attn.qkv_proj", vec![c, (heads + 2 * kv_heads) * head_size]),
                    ("self_attn.o_proj", vec![heads * head_size, c]),
                ];
                block.extend(norms.map(|norm| (norm, vec![head_size])));
                block.extend([
                    ("post_attention_layernorm", vec![c]),
                    ("mlp.gate_up_proj", vec![c, 2 * ffn_size]),
                    ("mlp.down_proj", vec![ffn_size, c]),
                ]);
                block
            }
        };
        let in_block = |index| {
            block.iter().map(move |(name, shape)| (format!("h.{index}.{name}"), shape.clone()))
        };
        let last = ("ln_f".to_string(), vec![c]);
        (0..self.n_layer).flat_map(in_block).chain([last]).collect()
    }

    /// Returns the layers of transformers that lie side by side in the layer `name`, with their numbers of columns.
    /// None for a norm.
    pub(crate) fn layers_of(&self, name: &str) -> Vec<(&'static str, usize)> {
        let c = self.n_embd;
        let [kv_heads, head_size] = self.kv_heads();
        let [queries, keys] = [self.n_head, kv_heads].map(|heads| heads * head_size);
        let ffn_size = match self.blocks {
            Blocks::Gpt2 { .. } => 4 * c,
            Blocks::Llama(LlamaBlocks { ffn_size, .. }) => ffn_size,
        };
        // Without the block, as in `h.0.attn.c_attn`.
        match name.splitn(3, '.').nth(2).unwrap_or_default() {
            "attn.c_attn" => vec![("attn.c_attn", 3 * c)],
            "attn.c_proj" => vec![("attn.c_proj", c)],
            "mlp.c_fc" => vec![("mlp.c_fc", ffn_size)],
            "mlp.c_proj" => vec![("mlp.c_proj", c)],
            "self_attn.qkv_proj" => vec![
                ("self_attn.q_proj", queries),
                ("self_attn.k_proj", keys),
                ("self_attn.v_proj", keys),
            ],
            "self_attn.o_proj" => vec![("self_attn.o_proj", c)],
            "mlp.gate_up_proj" => vec![("mlp.gate_proj", ffn_size), ("mlp.up_proj", ffn_size)],
            "mlp.down_proj" => vec![("mlp.down_proj", c)],
            _ => Vec::new(),
        }
    }

    /// Returns the GPT-2 that a file states. `size` reads a size up to a limit by its name there,
    /// which is `block_size` for the context.
    ///
    /// # Errors
    /// The reason why a size is not valid, or does not belong to the others.
    pub(crate) fn stated(
        block_size: &str,
        bias: bool,
        gelu: Gelu,
        size: impl Fn(&str, usize) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let (n_head, n_embd) = (size("n_head", MAX_WIDTH)?, size("n_embd", MAX_WIDTH)?);
        if !n_embd.is_multiple_of(n_head) {
            return Err(format!("n_embd {n_embd} is not a multiple of n_head {n_head}"));
        }
        Ok(Self {
            n_layer: size("n_layer", MAX_LAYERS)?,
            n_head,
            n_embd,
            block_size: size(block_size, MAX_BLOCK)?,
            vocab_size: size("vocab_size", MAX_VOCAB)?,
            blocks: Blocks::Gpt2 { bias, gelu },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_count_the_weights_of_their_models() {
        for (preset, arch) in [
            ("gpt2", Arch::Gpt2),
            ("demo", Arch::Gpt2),
            ("llama-15m", Arch::Llama),
            ("smollm2-135m", Arch::Llama),
            ("smollm2-135m", Arch::Qwen2),
            ("qwen3-0.6b", Arch::Qwen3),
        ] {
            for tied in ["true", "false"] {
                if arch == Arch::Gpt2 && tied == "false" {
                    continue;
                }
                let arch = arch.to_string();
                let settings = [("arch", &*arch), ("tie_embeddings", tied)];
                let config = Config::of_preset(preset, &settings);
                let architecture = Architecture::new(&config, 49_152);
                assert_eq!(architecture.parameters() as u64, config.parameters(49_152), "{preset}");
                let is_matrix = |(name, shape): &(String, Vec<usize>)| {
                    name.starts_with("h.") && shape.len() == 2
                };
                let matrices = architecture.shapes().into_iter().filter(is_matrix);
                let weights: usize = matrices.map(|(_, shape)| shape[0] * shape[1]).sum();
                assert_eq!(weights as u64, config.block_matrices(), "{preset}");
            }
        }
    }

    #[test]
    fn the_embedding_of_qwen3_takes_five_shards_of_128_mib() {
        let qwen3 = Architecture::new(&Config::of_preset("qwen3-0.6b", &[]), 151_936);
        assert_eq!(qwen3.shards(Some(128 << 20)), 5);
        assert_eq!(qwen3.shards(None), 1);
        assert_eq!(qwen3.shards(Some(64 << 20)), MAX_SHARDS + 1);
    }
}
