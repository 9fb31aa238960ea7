//! The architecture of a model: its sizes, and the names and shapes of its weights.

use serde::{Deserialize, Serialize};

use crate::config::{self, Config, Gelu};
use crate::ops;

/// The limits of the sizes that files may state. A larger one is a damaged or hostile file rather
/// than a GPT-2; within them no product of sizes overflows.
pub(super) const MAX_LAYERS: usize = 1024;
pub(super) const MAX_WIDTH: usize = 65_536;
pub(super) const MAX_BLOCK: usize = 1 << 20;
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// Everything that determines the shapes and the function of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// The number of blocks.
    pub n_layer: usize,
    /// The number of attention heads; divides `n_embd`.
    pub n_head: usize,
    /// The width of the residual stream.
    pub n_embd: usize,
    /// The number of positions.
    pub block_size: usize,
    /// The number of tokens in the vocabulary, without padding.
    pub vocab_size: usize,
    /// True if linear layers and layer norms have biases.
    pub bias: bool,
    /// The form of the activation.
    pub gelu: Gelu,
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
            bias: config.bias,
            gelu: config.gelu,
        }
    }

    /// Returns the number of rows of the token embedding: the vocabulary and its padding.
    pub fn padded_vocab(&self) -> usize {
        config::padded_vocab(self.vocab_size as u32) as usize
    }

    /// Returns the number of shards of the token embedding on a device that binds at most `largest`
    /// bytes, or more than [`ops::MAX_SHARDS`] if even that many are too large. GPT-2's embedding
    /// of 147 MiB exceeds the 128 MiB that WebGPU guarantees.
    pub fn shards(&self, largest: Option<u64>) -> usize {
        let fits = |bytes: usize| largest.is_none_or(|largest| bytes as u64 <= largest);
        let shards = 1..=ops::MAX_SHARDS;
        let enough = |&shards: &usize| fits(4 * self.shard_rows(shards)[0] * self.n_embd);
        shards.clone().find(enough).unwrap_or(ops::MAX_SHARDS + 1)
    }

    /// Returns the number of rows of each shard, the largest first.
    pub(super) fn shard_rows(&self, shards: usize) -> Vec<usize> {
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
        let c = self.n_embd;
        let mut shapes = vec![
            ("wte.weight".to_string(), vec![self.padded_vocab(), c]),
            ("wpe.weight".to_string(), vec![self.block_size, c]),
        ];
        let mut layer = |name: String, weight: Vec<usize>| {
            let out = weight[weight.len() - 1];
            shapes.push((format!("{name}.weight"), weight));
            if self.bias {
                shapes.push((format!("{name}.bias"), vec![out]));
            }
        };
        for block in 0..self.n_layer {
            layer(format!("h.{block}.ln_1"), vec![c]);
            layer(format!("h.{block}.attn.c_attn"), vec![c, 3 * c]);
            layer(format!("h.{block}.attn.c_proj"), vec![c, c]);
            layer(format!("h.{block}.ln_2"), vec![c]);
            layer(format!("h.{block}.mlp.c_fc"), vec![c, 4 * c]);
            layer(format!("h.{block}.mlp.c_proj"), vec![4 * c, c]);
        }
        layer("ln_f".to_string(), vec![c]);
        shapes
    }
}
