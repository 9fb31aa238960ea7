//! The architecture of a model: its sizes, and the names and shapes of its weights.

use serde::{Deserialize, Serialize};

use super::MAX_SHARDS;
use crate::config::{self, Config, Gelu};

/// The largest sizes that a file may state. A file with larger ones is damaged or hostile, and below
/// these limits no product of sizes overflows.
const MAX_LAYERS: usize = 1024;
const MAX_WIDTH: usize = 65_536;
const MAX_BLOCK: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 24;

/// Everything that determines the shapes and the function of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    pub n_layer: usize,
    /// Divides `n_embd`.
    pub n_head: usize,
    pub n_embd: usize,
    pub block_size: usize,
    /// The number of tokens without padding.
    pub vocab_size: usize,
    /// True if linear layers and layer norms have biases.
    pub bias: bool,
    pub gelu: Gelu,
}

#[cfg(test)]
impl Architecture {
    /// Returns a model for tests.
    pub(crate) fn tiny() -> Self {
        let (n_layer, n_head, n_embd, block_size, vocab_size) = (2, 2, 32, 16, 65);
        Self { n_layer, n_head, n_embd, block_size, vocab_size, bias: true, gelu: Gelu::Tanh }
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
            bias: config.bias,
            gelu: config.gelu,
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
        let c = self.n_embd;
        let mut shapes = vec![
            ("wte.weight".to_string(), vec![self.padded_vocab(), c]),
            ("wpe.weight".to_string(), vec![self.block_size, c]),
        ];
        for (name, shape) in self.layers() {
            let out = shape[shape.len() - 1];
            shapes.push((format!("{name}.weight"), shape));
            if self.bias {
                shapes.push((format!("{name}.bias"), vec![out]));
            }
        }
        shapes
    }

    /// Returns the name of each layer norm and linear layer with the shape of its weight, `[c]` or
    /// `[in, out]`, in the order of the model.
    pub(crate) fn layers(&self) -> Vec<(String, Vec<usize>)> {
        let c = self.n_embd;
        let block = [
            ("ln_1", vec![c]),
            ("attn.c_attn", vec![c, 3 * c]),
            ("attn.c_proj", vec![c, c]),
            ("ln_2", vec![c]),
            ("mlp.c_fc", vec![c, 4 * c]),
            ("mlp.c_proj", vec![4 * c, c]),
        ];
        let in_block = |index| {
            block.iter().map(move |(name, shape)| (format!("h.{index}.{name}"), shape.clone()))
        };
        let last = ("ln_f".to_string(), vec![c]);
        (0..self.n_layer).flat_map(in_block).chain([last]).collect()
    }

    /// Returns the architecture that a file states. `size` reads a size up to a limit by its name there,
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
            bias,
            gelu,
        })
    }
}
