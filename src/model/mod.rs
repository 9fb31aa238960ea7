//! GPT-2 and Llama: weights under their Hugging Face names, both passes, sampling, files of other programs.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::config::{BaseDtype, Precision};
use crate::data::{DataError, Windows};
use crate::gpu;
use crate::ops::{self, CrossEntropy, IGNORED, OpsMode};
use crate::plan::{self, CAST_ROWS};

mod adapter;
mod block;
mod builder;
mod flat_weights;
mod folder;
#[cfg(not(target_arch = "wasm32"))]
mod gguf;
mod gradients;
mod half_weights;
mod host_table;
mod hugging_face;
mod init;
mod layers;
mod loss_scale;
mod nanogpt;
mod odds;
mod pass;
mod peft;
mod pickle;
mod quantized;
mod sample;
mod weights;

pub(crate) use crate::plan::STAGED_ELEMENTS;
pub use crate::plan::{Architecture, Blocks, LlamaBlocks, Lora};
use block::Block;
use builder::Builder;
pub use flat_weights::parameters;
pub(crate) use flat_weights::{FlatWeight, put_weights, take_weights};
pub(crate) use folder::{
    INDEX_FILE, WEIGHTS_FILE, WeightFolder, has_weights, saved_shape, weight_files, write_weights,
};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use gguf::{GgufFile, GgufModel, GgufType};
pub use gradients::{Take, WeightGradients};
use host_table::HostTable;
pub(crate) use hugging_face::{ARCHITECTURE_FILE, read_architecture, write_architecture};
pub(crate) use init::RandomWeights;
use layers::{Norm, WeightMatrix};
pub use loss_scale::LossScale;
pub(crate) use nanogpt::NanoGptCheckpoint;
pub use odds::TokenOdds;
use pass::{BlockPass, site};
pub use pass::{Pass, StepDropout};
pub use peft::AdaptedWeights;
pub(crate) use peft::{
    ADAPTER_CONFIG, ADAPTER_FILE, AdapterConfig, AdapterFolder, MergedWeights, has_adapter,
    write_adapter,
};
pub use sample::{SampleOptions, Sampler};
pub(crate) use weights::{OTHER_MODEL, TensorFile, WeightFile};
pub use weights::{Parameter, WeightError};

/// Reads a tensor from its device, without blocking this thread.
///
/// # Panics
/// If the device fails. Results after a failure are meaningless, and the watchdog of the device ends
/// the process.
pub(crate) async fn values<const D: usize>(tensor: Tensor<D>) -> TensorData {
    tensor.into_data_async().await.expect("the device still works")
}

/// Reads a tensor of one element from its device, without blocking this thread.
///
/// # Panics
/// Like [`values`].
pub(crate) async fn scalar(tensor: Tensor<1>) -> f32 {
    tensor.into_scalar_async::<f32>().await.expect("the device still works")
}

/// A source of the weights that a model starts with.
pub trait WeightSource {
    /// Returns the values of the weight `name` in row-major order. `shape` is the shape in the model,
    /// without the padding of the token embedding.
    ///
    /// # Errors
    /// If the weight is missing, has another shape or cannot be read.
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError>;
}

/// GPT-2 (Radford et al. 2019), or Llama (Touvron et al. 2023), which rotates queries and keys by their
/// positions instead of embedding them.
#[derive(Clone, Debug)]
pub struct Gpt {
    /// The token embedding, split into as many shards as the device needs. Empty if it is in host memory.
    wte: Vec<WeightMatrix>,
    host_wte: Option<HostTable>,
    wpe: Option<WeightMatrix>,
    h: Vec<Block>,
    ln_f: Norm,
    /// `None` if the head is tied to the token embedding.
    lm_head: Option<Vec<WeightMatrix>>,
    architecture: Architecture,
    /// If the model has an adapter, it alone is trained.
    lora: Option<Lora>,
}

/// Token ids and their targets, on the host, both `[sequences * time]`.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Input ids, all below the vocabulary size.
    pub tokens: Arc<[u32]>,
    /// The id after each input id, or [`IGNORED`] where it does not count in the loss.
    pub targets: Arc<[u32]>,
    pub sequences: usize,
}

impl MicroBatch {
    /// Reads the windows with these ranges of tokens.
    pub(crate) fn read(
        windows: &Windows<'_>,
        tokens_of: impl Iterator<Item = Range<u64>>,
    ) -> Result<Self, DataError> {
        let mut tokens = Vec::new();
        let mut targets = Vec::new();
        let mut sequences = 0;
        for window in tokens_of {
            let window = windows.read(window)?;
            tokens.extend(window.tokens);
            targets.extend(window.targets.into_iter().map(|target| target.unwrap_or(IGNORED)));
            sequences += 1;
        }
        Ok(Self { tokens: tokens.into(), targets: targets.into(), sequences })
    }

    /// Returns the number of targets that count in the loss.
    pub(crate) fn counted(&self) -> usize {
        self.targets.iter().filter(|&&target| target != IGNORED).count()
    }
}

impl Gpt {
    /// Builds a model on `device` with the weights of `source`.
    pub fn new(
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
    ) -> Result<Self, WeightError> {
        Self::stored_in(Precision::FLOAT32, architecture, source, device)
    }

    /// Builds a model like [`new`](Self::new), with the token embedding in up to `shards` shards.
    pub fn with_shards(
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
        shards: usize,
    ) -> Result<Self, WeightError> {
        Builder::new(architecture, None, source, device, DType::F32).model(shards)
    }

    /// Builds a model like [`new`](Self::new), with matrices and embeddings in the dtype of the
    /// activations in `precision`. In half precision they take half the memory, and an offloaded
    /// optimizer has the master weights. Biases and layer norms are f32.
    pub fn stored_in(
        precision: Precision,
        architecture: &Architecture,
        source: &mut dyn WeightSource,
        device: &Device,
    ) -> Result<Self, WeightError> {
        let shards = architecture.shards(gpu::largest_tensor(device));
        let matrices = gpu::stored(precision.dtype());
        Builder::new(architecture, None, source, device, matrices).model(shards)
    }

    /// Builds a model whose weights are not trained, like [`stored_in`](Self::stored_in), with an adapter in f32.
    pub fn adapted(
        precision: Precision,
        architecture: &Architecture,
        (lora, base): (&Lora, BaseDtype),
        source: &mut dyn WeightSource,
        device: &Device,
    ) -> Result<Self, WeightError> {
        let largest = plan::largest_frozen_tensor(architecture, gpu::largest_tensor(device));
        let shards = architecture.shards(Some(largest));
        let matrices = gpu::stored(precision.dtype());
        Builder::new(architecture, Some((lora, base)), source, device, matrices).model(shards)
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the loss of a micro-batch as `[1]` on the device, which is `loss.scale` times the sum
    /// over its tokens, in nats. Computes logits in chunks of `loss.chunk` rows.
    pub fn loss(&self, batch: &MicroBatch, loss: CrossEntropy, pass: Pass) -> Tensor<1> {
        let x = self.hidden(batch.tokens.clone(), batch.sequences, pass);
        let head = factors(self.head_weights(), pass.mode);
        ops::linear_cross_entropy(x, head, batch.targets.clone(), loss, pass.mode)
    }

    /// Returns the mean loss of each span of a micro-batch, `[spans]`, in nats per token. A span is a
    /// range of its `[sequences * time]` tokens. Attention is causal, so padding after a span does
    /// not change its loss.
    pub fn span_losses(
        &self,
        batch: &MicroBatch,
        spans: &[Range<usize>],
        chunk: usize,
        pass: Pass,
    ) -> Tensor<1> {
        let x = self.hidden(batch.tokens.clone(), batch.sequences, pass);
        let head = factors(self.head_weights(), pass.mode);
        let vocab = self.architecture.vocab_size;
        let loss = |span: &Range<usize>| {
            let x = x.clone().narrow(0, span.start, span.len());
            let targets = Arc::from(&batch.targets[span.clone()]);
            let loss = CrossEntropy { vocab, chunk, scale: 1.0 / span.len() as f32 };
            ops::linear_cross_entropy(x, head.clone(), targets, loss, pass.mode)
        };
        Tensor::cat(spans.iter().map(loss).collect(), 0)
    }

    /// Returns the logits of every position, `[sequences * time, vocab]`, computed in float32 as in
    /// sampling. This is for small inputs: training never holds all logits.
    pub fn logits(&self, tokens: Arc<[u32]>, sequences: usize, mode: OpsMode) -> Tensor<2> {
        let mode = mode.in_precision(Precision::FLOAT32);
        self.head(self.hidden(tokens, sequences, Pass { mode, dropout: None }))
    }

    /// Returns the logits of one sequence, in float32 as in sampling, in parts of at most `rows` positions,
    /// because the logits of all positions may not fit into memory.
    pub(crate) fn logits_in_parts(
        &self,
        tokens: Arc<[u32]>,
        rows: usize,
        mode: OpsMode,
    ) -> impl Iterator<Item = Tensor<2>> {
        let time = tokens.len();
        let mode = mode.in_precision(Precision::FLOAT32);
        let x = self.hidden(tokens, 1, Pass { mode, dropout: None });
        let part = move |from| self.head(x.clone().narrow(0, from, rows.min(time - from)));
        (0..time).step_by(rows).map(part)
    }

    /// Returns the logits `[n, vocab]` of the final layer norm's output `[n, c]`, in float32.
    fn head(&self, x: Tensor<2>) -> Tensor<2> {
        // Tensor operations do not mix dtypes, so an embedding in half precision is cast in parts.
        let parts = |shard: Tensor<2>| match shard.dtype() {
            DType::F32 => vec![shard],
            _ => shard.split(CAST_ROWS, 0),
        };
        let logits = |part: Tensor<2>| x.clone().matmul(part.cast(FloatDType::F32).transpose());
        let parts = shards(self.head_weights()).into_iter().flat_map(parts);
        let logits = Tensor::cat(parts.map(logits).collect(), 1);
        logits.narrow(1, 0, self.architecture.vocab_size)
    }

    /// Returns the output of the final layer norm, `[sequences * time, c]`.
    fn hidden(&self, tokens: Arc<[u32]>, sequences: usize, pass: Pass) -> Tensor<2> {
        let time = tokens.len() / sequences;
        let x = self.embed(tokens, time, pass);
        let blocks = self.h.iter().enumerate();
        let x = blocks.fold(x, |x, (index, block)| {
            block.infer(x, self.block_pass(index, sequences, time, pass))
        });
        self.ln_f.forward(x, pass.mode).0
    }

    /// Returns the residual stream before the first block, `[sequences * time, c]`.
    fn embed(&self, tokens: Arc<[u32]>, time: usize, pass: Pass) -> Tensor<2> {
        let positions = self.wpe.as_ref().map(|wpe| wpe.weight.clone());
        let x = self.embed_at(positions, tokens, time, pass.mode);
        pass.drop_out(x, site::EMBEDDING, time)
    }

    /// Adds the embeddings of `tokens` to those of their `positions`, `[time or more, c]`, if the model
    /// has any.
    fn embed_at(
        &self,
        positions: Option<Tensor<2>>,
        tokens: Arc<[u32]>,
        time: usize,
        mode: OpsMode,
    ) -> Tensor<2> {
        if let Some(table) = &self.host_wte {
            return table
                .look_up(&tokens)
                .cast(FloatDType::from(gpu::stored(mode.precision.dtype())));
        }
        let wte = shards(&self.wte);
        let (base, period) = match positions {
            Some(positions) => (positions, time),
            None => {
                let device = wte[0].device();
                let dtype = wte[0].dtype();
                (Tensor::zeros([1, self.architecture.n_embd], (&device, dtype)), 1)
            }
        };
        ops::embed(&wte, base, tokens, period, mode)
    }

    /// Returns the weights of the output head.
    fn head_weights(&self) -> &[WeightMatrix] {
        self.lm_head.as_ref().unwrap_or(&self.wte)
    }

    /// Returns the options of block `index` in this pass.
    fn block_pass(&self, index: usize, sequences: usize, time: usize, pass: Pass) -> BlockPass {
        BlockPass { pass, index, sequences, time, heads: self.architecture.n_head }
    }
}

fn shards(embedding: &[WeightMatrix]) -> Vec<Tensor<2>> {
    embedding.iter().map(|shard| shard.weight.clone()).collect()
}

/// Returns the shards that products multiply.
fn factors(embedding: &[WeightMatrix], mode: OpsMode) -> Vec<Tensor<2>> {
    embedding.iter().map(|shard| shard.factor(mode)).collect()
}
