//! The sizes that follow from a model's settings: the widths of its layers, and its parameters.

use super::{Arch, Config, OptimizerKind};

impl Config {
    /// Returns the number of key and value heads. Several query heads share one.
    pub(crate) fn kv_heads(&self) -> u32 {
        if self.n_kv_head == 0 { self.n_head.get() } else { self.n_kv_head }
    }

    /// Returns the number of elements of a head.
    pub(crate) fn head_size(&self) -> u32 {
        if self.head_size == 0 { self.n_embd.get() / self.n_head } else { self.head_size }
    }

    /// Returns the width inside the MLP: `4 C` in GPT-2. Otherwise two matrices widen the stream, so
    /// that `8/3 C` has as many weights; it is rounded up to a multiple of 64.
    pub(crate) fn ffn_size(&self) -> u32 {
        let width = self.n_embd.get();
        match (self.ffn_size, self.arch) {
            (0, Arch::Gpt2) => 4 * width,
            (0, _) => (8 * width).div_ceil(3).next_multiple_of(64),
            (size, _) => size,
        }
    }

    /// Returns the width of attention's output: all heads side by side.
    pub(crate) fn attention_width(&self) -> u64 {
        u64::from(self.n_head.get()) * u64::from(self.head_size())
    }

    /// Returns the width of q, k and v side by side.
    pub(crate) fn qkv_width(&self) -> u64 {
        self.attention_width() + 2 * u64::from(self.kv_heads()) * u64::from(self.head_size())
    }

    /// Returns the width of the MLP's first product: gate and up side by side, or GPT-2's `4 C`.
    pub(crate) fn up_width(&self) -> u64 {
        let ffn = u64::from(self.ffn_size());
        if self.arch == Arch::Gpt2 { ffn } else { 2 * ffn }
    }

    /// Counts the parameters of the model with `vocab` rows in its embedding, which may also be the head.
    ///
    /// Saturates at `u64::MAX`, which only a `vocab` beyond the config's limits can reach.
    pub(crate) fn parameters(&self, vocab: u64) -> u64 {
        let [layers, width] = [self.n_layer, self.n_embd].map(|n| u64::from(n.get()));
        let norm = if self.bias { 2 * width } else { width };
        let vectors = layers * self.block_vectors() + norm;
        let rows = if self.tie_embeddings { vocab } else { vocab.saturating_mul(2) };
        let embeddings = rows.saturating_mul(width).saturating_add(self.positions());
        (self.block_matrices() + vectors).saturating_add(embeddings)
    }

    /// Counts the weights of the embedding of positions, if there is one.
    pub(crate) fn positions(&self) -> u64 {
        let learned = u64::from(self.block_size.get()) * u64::from(self.n_embd.get());
        if self.arch == Arch::Gpt2 { learned } else { 0 }
    }

    /// Counts the weights in the matrices of the blocks: `12 C^2` in each of GPT-2's.
    pub(crate) fn block_matrices(&self) -> u64 {
        let [layers, width] = [self.n_layer, self.n_embd].map(|n| u64::from(n.get()));
        let attention = self.qkv_width() + self.attention_width();
        layers * width * (attention + self.up_width() + u64::from(self.ffn_size()))
    }

    /// Counts the weights of a block outside its matrices: with C = `n_embd`, `2 C` in the layer norms.
    /// Biases add 9 C to the matrices and 2 C to the layer norms. Qwen2 has biases of q, k and v, Qwen3 norms of q
    /// and k of a head.
    pub(crate) fn block_vectors(&self) -> u64 {
        let width = u64::from(self.n_embd.get());
        match self.arch {
            Arch::Gpt2 if self.bias => 13 * width,
            Arch::Gpt2 | Arch::Llama => 2 * width,
            Arch::Qwen2 => 2 * width + self.qkv_width(),
            Arch::Qwen3 => 2 * (width + u64::from(self.head_size())),
        }
    }

    /// Returns the floating-point operations per token of a forward pass over `time` positions: first those of
    /// the products, two for each of `parameters` weights except for an embedding that is not the output head,
    /// then those of causal attention, `2 L H D T` with H heads of size D.
    pub(crate) fn forward_operations(&self, parameters: u64, time: u32) -> [f64; 2] {
        let embeddings = parameters.saturating_sub(self.parameters(0));
        let looked_up = if self.tie_embeddings { 0 } else { embeddings / 2 };
        let attention = f64::from(self.n_layer.get()) * self.attention_width() as f64;
        [2.0 * (parameters - looked_up) as f64, 2.0 * attention * f64::from(time)]
    }

    /// Returns the floating-point operations per token of a forward and a backward pass.
    pub(crate) fn operations(&self, parameters: u64) -> f64 {
        3.0 * self.forward_operations(parameters, self.block_size.get()).iter().sum::<f64>()
    }

    /// Counts the weights that Muon updates; AdamW updates the others.
    pub(crate) fn muon_weights(&self) -> u64 {
        match self.optimizer {
            OptimizerKind::AdamW => 0,
            OptimizerKind::Muon => self.block_matrices(),
        }
    }
}
