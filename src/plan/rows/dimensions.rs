//! The dimensions of a model, and counts of its weights.

use crate::config::{self, Arch, BaseDtype, Config, QUANTIZED_BLOCK};
use crate::plan::{self, AdaptedLayer, Architecture, Lora};

/// The dimensions of a model. Counts are in elements.
#[derive(Clone, Copy)]
pub(super) struct Dimensions<'a> {
    pub config: &'a Config,
    pub layers: u64,
    pub heads: u64,
    pub width: u64,
    /// The widths of q, k and v side by side, of attention's output, of the MLP's first product and of the
    /// input of its second one.
    pub qkv: u64,
    pub attention: u64,
    pub up: u64,
    pub ffn: u64,
    /// Rows of the embedding, including padding.
    pub vocab: u64,
    pub matrices: u64,
    pub parameters: u64,
    /// The adapter that is trained instead of the weights, if there is one.
    pub adapter: Option<AdapterDimensions>,
}

/// The sizes of an adapter, in elements.
#[derive(Clone, Copy)]
pub(super) struct AdapterDimensions {
    pub weights: u64,
    /// The masks of layers that are several matrices. Blocks share them.
    pub masks: u64,
    /// The weights of the base that are stored in 8 bits.
    pub quantized: u64,
    /// True if its token embedding is in host memory.
    pub is_on_host: bool,
    /// The largest tensor that its embeddings are split into, in bytes of f32.
    pub largest: u64,
}

impl<'a> Dimensions<'a> {
    pub fn new(config: &'a Config, vocab: u32) -> Self {
        let vocab = config::padded_vocab(vocab).into();
        Self {
            config,
            layers: config.n_layer.get().into(),
            heads: config.n_head.get().into(),
            width: config.n_embd.get().into(),
            qkv: config.qkv_width(),
            attention: config.attention_width(),
            up: config.up_width(),
            ffn: config.ffn_size().into(),
            vocab,
            matrices: config.block_matrices(),
            parameters: config.parameters(vocab),
            adapter: Lora::new(config).map(|lora| AdapterDimensions::new(&lora, config)),
        }
    }

    /// Counts the weights that are trained.
    pub fn trained(&self) -> u64 {
        self.adapter.map_or(self.parameters, |adapter| adapter.weights)
    }

    /// Counts the elements of the gradient of the token embedding, which an adapter leaves as it is.
    pub fn embedding_gradient(&self) -> u64 {
        if self.adapter.is_some() { 0 } else { self.embedding() }
    }

    /// Counts the gradients of a norm, which an adapter leaves as it is.
    pub fn norm_gradient(&self) -> u64 {
        if self.adapter.is_some() { 0 } else { self.norm() }
    }

    /// Counts the gradients of matrices with `weights` elements, or at most those of their adapters.
    pub fn gradients_of(&self, weights: u64) -> u64 {
        self.adapter.map_or(weights, |adapter| adapter.weights / self.layers)
    }

    pub fn is_gpt2(&self) -> bool {
        self.config.arch == Arch::Gpt2
    }

    /// Counts the elements of the token embedding.
    pub fn embedding(&self) -> u64 {
        self.vocab * self.width
    }

    /// Counts the elements of the matrix `[input, output]` that a product decodes, if it is stored in 8 bits.
    pub fn decoded(&self, input: u64, output: u64) -> u64 {
        let has_blocks = input.is_multiple_of(QUANTIZED_BLOCK as u64);
        if self.quantized() > 0 && has_blocks { input * output } else { 0 }
    }

    /// Counts the elements of the largest matrix that products decode.
    pub fn largest_decoded(&self) -> u64 {
        let Self { width, qkv, attention, up, ffn, .. } = *self;
        let layers = [[width, qkv.max(up)], [attention, width], [ffn, width]];
        layers.into_iter().map(|[input, output]| self.decoded(input, output)).max().unwrap_or(0)
    }

    /// Returns true if elements of the inputs of adapters are dropped.
    pub fn drops_inputs(&self) -> bool {
        self.adapter.is_some() && self.config.lora_dropout > 0.0
    }

    /// Counts the weights that are stored in 8 bits.
    pub fn quantized(&self) -> u64 {
        self.adapter.map_or(0, |adapter| adapter.quantized)
    }

    /// Counts the elements of the embeddings of tokens and positions, and of a head that is neither.
    pub fn embeddings(&self) -> u64 {
        self.parameters - self.config.parameters(0) + self.config.positions()
    }

    /// Counts the elements of the largest matrix of a block, in GPT-2 `[C, 4 C]`.
    pub fn largest_matrix(&self) -> u64 {
        self.width * self.up.max(self.qkv)
    }

    /// Counts the parameters of a norm.
    pub fn norm(&self) -> u64 {
        self.width * if self.config.bias { 2 } else { 1 }
    }

    /// Counts the values that a norm saves of a row: RMSNorm has no mean.
    pub fn norm_statistics(&self) -> u64 {
        if self.is_gpt2() { 2 } else { 1 }
    }

    /// Counts the trained weights of a block without its layer norms, whose gradients are partial sums.
    pub fn block_parameters(&self) -> u64 {
        if let Some(adapter) = self.adapter {
            return adapter.weights / self.layers;
        }
        self.matrices / self.layers + self.config.block_vectors() - 2 * self.norm()
    }

    /// Counts the elements per token of the copy of q, k and v that Qwen3 rotates, because it saves them as
    /// they were before their norms.
    pub fn rotated(&self) -> u64 {
        if self.config.arch == Arch::Qwen3 { self.qkv } else { 0 }
    }
}

impl AdapterDimensions {
    fn new(lora: &Lora, config: &Config) -> Self {
        let architecture = Architecture::new(config, 1);
        let layers = lora.layers(&architecture);
        let of_block = layers.len() / architecture.n_layer;
        let masks = layers.iter().take(of_block).filter(|layer| layer.is_masked());
        let elements = |layer: &AdaptedLayer| layer.parts.len() * lora.rank * layer.shape[1];
        let is_quantized = |(_, shape): &(String, Vec<usize>)| {
            shape.len() == 2 && shape[0].is_multiple_of(QUANTIZED_BLOCK)
        };
        let quantized = match config.base_dtype {
            BaseDtype::Auto => 0,
            BaseDtype::Q8_0 => {
                let matrices = architecture.layers().into_iter().filter(is_quantized);
                matrices.map(|(_, shape)| shape[0] * shape[1]).sum()
            }
        };
        Self {
            quantized: quantized as u64,
            is_on_host: plan::is_on_host(config.base_dtype, &architecture),
            largest: plan::largest_frozen_tensor(&architecture, None),
            weights: lora.weights(&architecture),
            masks: masks.map(elements).sum::<usize>() as u64,
        }
    }
}
