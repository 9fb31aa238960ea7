//! The table that sizes memory.
//!
//! It lists the live tensors at each point of a run: at the loss, in the backward pass of each
//! block, at the update, in an evaluation, while sampling. The point with the largest sum is the
//! peak, and its tensors are the rows. Gradients, optimizer state and statistics are f32;
//! activations have the dtype of the precision. Weights are f32, except in half precision with the
//! optimizer in host memory: then the master weights are on the host, and the device's matrices and
//! embeddings are half.
//!
//! On the CPU each new product counts twice, because memory that an op has freed is kept for the next
//! tensor of its size.

mod backward;
mod block;
mod dimensions;
mod op_memory;
mod weights;

use super::Class::{Gradients, Logits, Optimizer, Weights, Workspace};
use super::row::total;
use super::{CAST_ROWS, Limits, Plan, Row};
use crate::config::{Config, OptimizerKind};
use backward::BackwardPass;
use block::BlockMemory;
use dimensions::Dimensions;
use op_memory::OpMemory;
use weights::WeightMemory;

/// The row of a weight in 8 bits that a product decodes.
const DECODED: &str = "decoded weight";

/// The memory of a run whose steps are split by `plan`.
pub(super) struct RunMemory<'a> {
    plan: &'a Plan,
    model: Dimensions<'a>,
    ops: OpMemory,
    weights: WeightMemory<'a>,
}

impl<'a> RunMemory<'a> {
    pub fn new(config: &'a Config, vocab: u32, limits: &Limits, plan: &'a Plan) -> Self {
        let model = Dimensions::new(config, vocab);
        let ops = OpMemory { kernels: limits.kernels, precision: limits.precision };
        Self { plan, model, ops, weights: WeightMemory::new(model, ops, limits, plan) }
    }

    /// Lists the tensors that are live at the peak of the run.
    pub fn rows(&self) -> Vec<Row> {
        let backward = BackwardPass::new(self);
        let mut points = vec![
            self.update(),
            self.evaluation(),
            self.sampling(),
            backward.loss(),
            backward.embedding(),
        ];
        points.extend((0..self.model.layers).map(|block| backward.block(block)));
        points.extend((0..self.model.layers).map(|block| backward.block_end(block)));
        let mut rows = points.into_iter().max_by_key(|rows| total(rows)).unwrap_or_default();
        rows.retain(|row| row.bytes > 0);
        rows
    }

    /// Lists what the host holds in addition to the program.
    pub fn host_rows(&self) -> Vec<Row> {
        self.weights.on_host()
    }

    /// Returns the sizes of the largest tensors in bytes, the largest first.
    pub fn largest_tensors(&self) -> [u64; 4] {
        let rows = self.tokens().max(self.eval_tokens());
        let activation = self.ops.precision.activation_bytes();
        let wide = activation * rows * self.model.up.max(self.model.qkv);
        let logits = activation * self.plan.loss_chunk as u64 * self.model.vocab;
        let [shard, matrix] = self.weights.largest();
        let mut sizes = [shard, wide, logits, matrix];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// Counts the tokens of a training micro-batch.
    fn tokens(&self) -> u64 {
        self.plan.micro_batch as u64 * u64::from(self.model.config.block_size.get())
    }

    fn eval_tokens(&self) -> u64 {
        self.plan.eval_batch_size as u64 * u64::from(self.model.config.eval_block_size().get())
    }

    /// Returns the rows of a logits chunk of `n` tokens.
    fn chunk(&self, n: u64) -> u64 {
        n.min(self.plan.loss_chunk as u64)
    }

    /// The logits of the output head and its temporary tensors, for `n` tokens.
    fn head(&self, n: u64) -> [Row; 2] {
        [
            self.ops.row("logits chunk", Logits, self.chunk(n) * self.model.vocab),
            self.weights.cast("embedding in the activation dtype", self.model.embedding()),
        ]
    }

    /// The update, at the largest matrix of Muon or after AdamW.
    fn update(&self) -> Vec<Row> {
        let Self { model, ops, .. } = self;
        let mut rows = self.weights.on_device();
        rows.push(Row::f32("gradients of all weights", Gradients, model.trained()));
        if model.config.optimizer == OptimizerKind::Muon {
            let matrix = model.largest_matrix();
            rows.push(Row::f32("Newton-Schulz matrices", Workspace, self.newton_schulz()));
            if ops.are_unfused() {
                let c = model.width;
                let wide = model.ffn;
                rows.push(ops.partial_products(&[[c, c, wide], [c, wide, c], [c, c, c]]));
            }
            if self.plan.offload_optimizer {
                rows.push(Row::f32("Muon momentum", Optimizer, matrix));
                let master = if self.weights.are_half() { matrix } else { 0 };
                rows.push(Row::f32("master weights", Weights, master));
            }
        }
        rows
    }

    /// Counts the elements that Muon's steps take on the largest matrix. X takes the memory of the gradient.
    /// There are also a product of GPT-2's [C, 4 C] or its transpose, and one of [C, C]. The CPU copies
    /// the new product. In other shapes `gate` is finished while `up` is in the memory of neither.
    fn newton_schulz(&self) -> u64 {
        let Dimensions { width, ffn, .. } = self.model;
        let matrix = ffn * width;
        let copied = if self.ops.are_cpu() { matrix } else { 0 };
        let kept = if self.model.is_gpt2() { 0 } else { 2 * matrix };
        kept + matrix + width.min(ffn).pow(2) + copied
    }

    fn evaluation(&self) -> Vec<Row> {
        let Self { model, ops, .. } = self;
        let n = self.eval_tokens();
        let mut rows = self.weights.on_device();
        rows.push(BlockMemory { model: *model, ops: *ops, tokens: n }.inferred());
        if ops.are_unfused() {
            // The input of the MLP's second layer, which is freed before the logits are computed.
            let activated = (n * model.ffn).saturating_sub(self.chunk(n) * model.vocab);
            rows.push(ops.row("MLP activations", Workspace, activated));
        }
        let decoded = model.largest_decoded().saturating_sub(self.chunk(n) * model.vocab);
        rows.push(ops.row(DECODED, Workspace, decoded));
        rows.extend(self.head(n));
        if ops.are_unfused() {
            rows.push(ops.partial_products(&[[self.chunk(n), model.vocab, model.width]]));
        }
        rows
    }

    /// The KV cache of one sequence, with that of one block twice, and the attention scores of half
    /// a context, which is read at once when the context is full. A half embedding is cast in parts
    /// and, where each product casts its weight, so are the others one by one.
    fn sampling(&self) -> Vec<Row> {
        let model = &self.model;
        let block_size = u64::from(model.config.block_size.get());
        let cache = block_size * (model.qkv - model.attention) * (model.layers + 2);
        let scores = 3 * model.heads * block_size.div_ceil(2).pow(2);
        let mut rows = self.weights.on_device();
        rows.push(Row::f32("KV cache of a sample", Workspace, cache + scores));
        rows.push(Row::f32(DECODED, Workspace, model.largest_decoded()));
        if self.weights.are_half() {
            let is_cast = self.ops.are_unfused() && model.quantized() == 0;
            let matrix = if is_cast { model.largest_matrix() } else { 0 };
            let embedding = model.vocab.min(CAST_ROWS as u64) * model.width;
            rows.push(Row::f32("weight in float32", Workspace, matrix.max(embedding)));
        }
        rows
    }
}
