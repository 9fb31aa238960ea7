//! GPT-2: the weights under their Hugging Face names, the forward pass, sampling, and the files
//! that other programs read and write.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::config::{self, Config, Gelu};
use crate::gpu;
use crate::ops::{self, CrossEntropy, Dropout, OpsMode};

mod block;
mod gradients;
mod hugging_face;
mod init;
mod nanogpt;
mod sample;
mod weights;

use block::{Block, BlockPass, Conv1d, Mlp, Norm, SelfAttention};
pub use gradients::WeightGradients;
pub use hugging_face::{ARCHITECTURE_FILE, WEIGHTS_FILE, read_architecture, write_architecture};
pub use init::RandomWeights;
pub use nanogpt::NanoGptCheckpoint;
pub use sample::{SampleOptions, Sampler};
pub use weights::{Parameter, WeightError, WeightFile, parameters, write_tensors};

/// What decides the shapes and the function of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Architecture {
    /// Blocks.
    pub n_layer: usize,
    /// Attention heads; divides `n_embd`.
    pub n_head: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Positions.
    pub block_size: usize,
    /// Tokens that exist.
    pub vocab_size: usize,
    /// Whether linear layers and layer norms have biases.
    pub bias: bool,
    /// The form of the activation.
    pub gelu: Gelu,
}

impl Architecture {
    /// The model that `config` describes, over `vocab_size` tokens.
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

    /// Rows of the token embedding: the vocabulary and its padding.
    pub fn padded_vocab(&self) -> usize {
        config::padded_vocab(self.vocab_size as u32) as usize
    }

    /// The number of shards of the token embedding on a device that binds at most `largest` bytes;
    /// more than [`ops::MAX_SHARDS`] if no split is fine enough. GPT-2's 147 MiB are more than the 128
    /// that WebGPU guarantees.
    pub fn shards(&self, largest: Option<u64>) -> usize {
        let fits = |bytes: usize| largest.is_none_or(|largest| bytes as u64 <= largest);
        let shards = 1..=ops::MAX_SHARDS;
        let enough = |&shards: &usize| fits(4 * self.shard_rows(shards)[0] * self.n_embd);
        shards.clone().find(enough).unwrap_or(ops::MAX_SHARDS + 1)
    }

    /// The number of rows of each shard.
    fn shard_rows(&self, shards: usize) -> Vec<usize> {
        let padded = self.padded_vocab();
        let most = config::padded_vocab(padded.div_ceil(shards) as u32) as usize;
        (0..padded).step_by(most).map(|first| most.min(padded - first)).collect()
    }

    /// Weights in all, padding included.
    pub fn parameters(&self) -> usize {
        self.shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// The name and shape of every weight, padding included, in the order of the model.
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

/// Reads a tensor off its device without blocking this thread.
///
/// # Panics
/// If the device does not answer: what follows from that means nothing, and whoever watches the
/// device ends the program.
pub async fn values<const D: usize>(tensor: Tensor<D>) -> TensorData {
    tensor.into_data_async().await.expect("a device that answers")
}

/// Reads a tensor of one element off its device without blocking this thread.
///
/// # Panics
/// As [`values`].
pub async fn scalar(tensor: Tensor<1>) -> f32 {
    tensor.into_scalar_async::<f32>().await.expect("a device that answers")
}

/// Where a model's initial weights come from.
pub trait WeightSource {
    /// The values of the weight `name` in row-major order. The token embedding is asked for
    /// without its padding.
    ///
    /// # Errors
    /// Where the weight is missing, has another shape or cannot be read.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError>;
}

#[derive(Module, Debug)]
struct Embedding {
    weight: Param<Tensor<2>>,
}

/// The token embedding, in as many shards as the device needs.
#[derive(Module, Debug)]
struct TokenEmbedding {
    weight: Vec<Param<Tensor<2>>>,
}

/// GPT-2 (Radford et al. 2019). The output head is the token embedding itself: the same [`Param`]s,
/// because two clones of one would drift apart.
#[derive(Module, Debug)]
pub struct Gpt {
    wte: TokenEmbedding,
    wpe: Embedding,
    h: Vec<Block>,
    ln_f: Norm,
    #[module(skip)]
    architecture: Architecture,
}

/// Which elements one micro-batch of a training step drops out.
#[derive(Clone, Copy, Debug)]
pub struct StepDropout {
    /// The share that is dropped.
    pub rate: f32,
    /// The run's seed.
    pub seed: u64,
    /// Updates made before.
    pub step: u64,
    /// The number of the micro-batch's first sequence in the global batch.
    pub first_sequence: u32,
}

/// How a forward pass runs.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Which implementation of the ops.
    pub mode: OpsMode,
    /// Dropout, in training.
    pub dropout: Option<StepDropout>,
}

/// Token ids and what follows each of them, on the host: `[sequences * time]` both.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Input ids, all below the vocabulary.
    pub tokens: Arc<[u32]>,
    /// The id after each.
    pub targets: Arc<[u32]>,
    /// Sequences.
    pub sequences: usize,
}

/// Places in the model that drop out, numbered so that each has its own mask.
mod site {
    pub const EMBEDDING: u32 = 0;

    pub fn attention(block: usize) -> u32 {
        1 + 3 * block as u32
    }

    pub fn attention_projection(block: usize) -> u32 {
        2 + 3 * block as u32
    }

    pub fn mlp_projection(block: usize) -> u32 {
        3 + 3 * block as u32
    }
}

impl Pass {
    fn dropout(&self, site: u32) -> Option<Dropout> {
        let at = self.dropout?;
        Some(Dropout::new(at.rate, at.seed, at.step, site, at.first_sequence))
    }
}

impl Gpt {
    /// Builds a model on `device` with the weights of `source`.
    ///
    /// # Errors
    /// Where `source` fails.
    pub fn new(
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
    ) -> Result<Self, WeightError> {
        let shards = architecture.shards(gpu::largest_tensor(device));
        Self::with_shards(architecture, source, device, shards)
    }

    /// As [`new`](Self::new), with the token embedding in up to `shards` shards.
    ///
    /// # Errors
    /// Where `source` fails.
    ///
    /// # Panics
    /// In a pass, if `shards` is more than [`ops::MAX_SHARDS`].
    pub fn with_shards(
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
        shards: usize,
    ) -> Result<Self, WeightError> {
        let mut build = Builder { architecture, source, device };
        Ok(Self {
            wte: TokenEmbedding { weight: build.token_embedding(shards)? },
            wpe: Embedding {
                weight: build
                    .param("wpe.weight", [architecture.block_size, architecture.n_embd])?,
            },
            h: (0..architecture.n_layer)
                .map(|block| build.block(block))
                .collect::<Result<_, _>>()?,
            ln_f: build.norm("ln_f")?,
            architecture: architecture.clone(),
        })
    }

    /// What the model is.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The loss of a micro-batch as `[1]` on the device: `loss.scale` times the sum over its
    /// tokens, in nats. Logits exist for `loss.chunk` rows at a time.
    pub fn loss(&self, batch: &MicroBatch, loss: CrossEntropy, pass: Pass) -> Tensor<1> {
        let x = self.hidden(batch.tokens.clone(), batch.sequences, pass);
        let (x, _) = self.ln_f.forward(x, pass.mode);
        ops::linear_cross_entropy(x, self.wte.shards(), batch.targets.clone(), loss, pass.mode)
    }

    /// The logits of every position, `[sequences * time, vocab]`: for tests and evaluation of
    /// small inputs, training never holds them.
    pub fn logits(&self, tokens: Arc<[u32]>, sequences: usize, mode: OpsMode) -> Tensor<2> {
        let x = self.hidden(tokens, sequences, Pass { mode, dropout: None });
        self.head(self.ln_f.forward(x, mode).0)
    }

    /// The logits of rows `[n, c]` of the residual stream's end, `[n, vocab]`.
    fn head(&self, x: Tensor<2>) -> Tensor<2> {
        let logits = |shard: Tensor<2>| x.clone().matmul(shard.transpose());
        let logits = Tensor::cat(self.wte.shards().into_iter().map(logits).collect(), 1);
        logits.narrow(1, 0, self.architecture.vocab_size)
    }

    /// The residual stream after the last block, `[sequences * time, c]`.
    fn hidden(&self, tokens: Arc<[u32]>, sequences: usize, pass: Pass) -> Tensor<2> {
        let time = tokens.len() / sequences;
        let embedded = self.embedded(tokens, time, pass);
        let blocks = self.h.iter().enumerate();
        blocks.fold(embedded, |x, (index, block)| {
            block.infer(x, self.block_pass(index, sequences, time, pass))
        })
    }

    /// The residual stream before the first block.
    fn embedded(&self, tokens: Arc<[u32]>, time: usize, pass: Pass) -> Tensor<2> {
        let (wte, wpe) = (self.wte.shards(), self.wpe.weight.val());
        let x = ops::embed(&wte, wpe, tokens, time, pass.mode);
        match pass.dropout(site::EMBEDDING) {
            Some(dropout) => ops::dropout(x, None, time, dropout, pass.mode),
            None => x,
        }
    }
}

impl Gpt {
    /// How block `index` runs.
    fn block_pass(&self, index: usize, sequences: usize, time: usize, pass: Pass) -> BlockPass {
        let Architecture { n_head, gelu, .. } = self.architecture;
        BlockPass { pass, index, sequences, time, heads: n_head, gelu }
    }
}

impl TokenEmbedding {
    fn shards(&self) -> Vec<Tensor<2>> {
        self.weight.iter().map(Param::val).collect()
    }
}

/// Puts a model together from a source, weight by weight.
struct Builder<'a> {
    architecture: &'a Architecture,
    source: &'a mut dyn WeightSource,
    device: &'a Device,
}

impl Builder<'_> {
    fn param<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Param<Tensor<D>>, WeightError> {
        let values = self.source.weight(name, &shape)?;
        Ok(self.tensor(values, shape))
    }

    fn tensor<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<D>> {
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), self.device))
    }

    /// Padding rows are zero and stay zero: their gradient is zero, and so is their decay.
    fn token_embedding(&mut self, shards: usize) -> Result<Vec<Param<Tensor<2>>>, WeightError> {
        let Architecture { vocab_size, n_embd, .. } = *self.architecture;
        let padded = self.architecture.padded_vocab();
        let mut values = self.source.weight("wte.weight", &[vocab_size, n_embd])?;
        values.resize(padded * n_embd, 0.0);
        let mut values = values.into_iter();
        let shard = |rows| {
            let values = values.by_ref().take(rows * n_embd).collect();
            self.tensor(values, [rows, n_embd])
        };
        Ok(self.architecture.shard_rows(shards).into_iter().map(shard).collect())
    }

    fn bias(&mut self, name: &str, out: usize) -> Result<Option<Param<Tensor<1>>>, WeightError> {
        if !self.architecture.bias {
            return Ok(None);
        }
        self.param(&format!("{name}.bias"), [out]).map(Some)
    }

    fn norm(&mut self, name: &str) -> Result<Norm, WeightError> {
        let c = self.architecture.n_embd;
        Ok(Norm { weight: self.param(&format!("{name}.weight"), [c])?, bias: self.bias(name, c)? })
    }

    fn conv1d(&mut self, name: &str, inputs: usize, out: usize) -> Result<Conv1d, WeightError> {
        Ok(Conv1d {
            weight: self.param(&format!("{name}.weight"), [inputs, out])?,
            bias: self.bias(name, out)?,
        })
    }

    fn block(&mut self, index: usize) -> Result<Block, WeightError> {
        let c = self.architecture.n_embd;
        let name = |part: &str| format!("h.{index}.{part}");
        Ok(Block {
            ln_1: self.norm(&name("ln_1"))?,
            attn: SelfAttention {
                c_attn: self.conv1d(&name("attn.c_attn"), c, 3 * c)?,
                c_proj: self.conv1d(&name("attn.c_proj"), c, c)?,
            },
            ln_2: self.norm(&name("ln_2"))?,
            mlp: Mlp {
                c_fc: self.conv1d(&name("mlp.c_fc"), c, 4 * c)?,
                c_proj: self.conv1d(&name("mlp.c_proj"), 4 * c, c)?,
            },
        })
    }
}
