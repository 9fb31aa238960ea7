//! The table that sizes memory.
//!
//! It lists the live tensors at each point of a run: at the loss, in the backward pass of each
//! block, at the update, in an evaluation, while sampling. The point with the largest sum is the
//! peak, and its tensors are the rows. Gradients, optimizer state and statistics are f32;
//! activations have the dtype of the precision. Weights are f32, except in half precision with the
//! optimizer in host memory: then the master weights are on the host, and the device's matrices and
//! embeddings are half. `host` lists the host's memory.
//!
//! On the CPU each new product counts twice, because memory that an op has freed is kept for the next
//! tensor of its size.

mod blocks;
mod host;

use super::Class::{Activations, Gradients, Logits, Optimizer, Weights, Workspace};
use super::forecast::total;
use super::products::{Tiling, ranges_of_k};
use super::sharding::largest_part;
use super::{CAST_ROWS, Class, Kernels, Limits, MAX_SHARDS, NORM_GROUPS, Plan, Row};
use crate::config::{self, Config, OptimizerKind, Precision};

/// The sizes of a run whose steps are split by `plan`, in elements unless noted.
pub(super) struct Sizes<'a> {
    config: &'a Config,
    limits: &'a Limits,
    plan: &'a Plan,
    precision: Precision,
    layers: u64,
    heads: u64,
    width: u64,
    /// The widths of q, k and v side by side, of attention's output, of the MLP's first product and of the
    /// input of its second one.
    qkv: u64,
    attention: u64,
    up: u64,
    ffn: u64,
    block_size: u64,
    /// Tokens of a training micro-batch and of an evaluation batch.
    tokens: u64,
    eval_tokens: u64,
    /// Rows of the embedding, including padding.
    vocab: u64,
    /// Elements of the embeddings of tokens and positions, and of a head that is neither.
    embeddings: u64,
    matrices: u64,
    parameters: u64,
    /// Weights of Muon and of AdamW whose state is on this rank: all, or the largest shard.
    by_optimizer: [u64; 2],
}

impl<'a> Sizes<'a> {
    pub fn new(config: &'a Config, vocab: u32, limits: &'a Limits, plan: &'a Plan) -> Self {
        let padded = u64::from(config::padded_vocab(vocab));
        let [parameters, muon] = [config.parameters(padded), config.muon_weights()];
        let by_optimizer = if limits.shards_optimizer() {
            largest_part(config, padded, limits.optimizer_shards as usize)
        } else {
            [muon, parameters - muon]
        };
        let block_size = u64::from(config.block_size.get());
        Self {
            config,
            limits,
            plan,
            precision: limits.precision,
            layers: config.n_layer.get().into(),
            heads: config.n_head.get().into(),
            width: config.n_embd.get().into(),
            qkv: config.qkv_width(),
            attention: config.attention_width(),
            up: config.up_width(),
            ffn: config.ffn_size().into(),
            block_size,
            tokens: plan.micro_batch as u64 * block_size,
            eval_tokens: plan.eval_batch_size as u64 * u64::from(config.eval_block_size().get()),
            vocab: padded,
            embeddings: parameters - config.parameters(0) + config.positions(),
            matrices: config.block_matrices(),
            parameters,
            by_optimizer,
        }
    }

    /// Returns true if products are not fused with the ops around them, which then write tensors.
    fn unfused(&self) -> bool {
        self.limits.kernels == Kernels::Cube
    }

    /// Returns true if matrices and embeddings are in half precision, with master weights on the host.
    fn has_half_weights(&self) -> bool {
        self.plan.offload_optimizer && self.precision.is_half()
    }

    /// Returns true if each product casts its weight to the dtype of activations.
    fn casts_weights(&self) -> bool {
        self.unfused()
            && self.precision.is_half()
            && !self.precision.keeps_half_weights()
            && !self.has_half_weights()
    }

    fn cpu(&self) -> bool {
        self.limits.kernels == Kernels::Cpu
    }

    /// Returns the rows of a logits chunk of `n` tokens.
    fn chunk(&self, n: u64) -> u64 {
        n.min(self.plan.loss_chunk as u64)
    }

    /// Returns the size of the embedding in f32, in bytes. An embedding that is larger than the device
    /// binds is split; then this is the size of a shard.
    fn embedding_shard(&self) -> u64 {
        let embedding = 4 * self.vocab * self.width;
        let largest = self.limits.largest_tensor.unwrap_or(u64::MAX);
        embedding.div_ceil(embedding.div_ceil(largest).clamp(1, MAX_SHARDS as u64))
    }

    /// Counts the elements of the partial sums for the weights of a layer norm, over groups of rows.
    fn norm_sums(&self) -> u64 {
        let n = self.tokens;
        let groups = if self.cpu() { 1 } else { n.div_ceil(n.div_ceil(NORM_GROUPS as u64).max(1)) };
        2 * groups * self.width
    }

    /// Counts the elements of the largest matrix of a block, in GPT-2 `[C, 4 C]`.
    fn largest_matrix(&self) -> u64 {
        self.width * self.up.max(self.qkv)
    }

    /// Returns the sizes of the largest tensors in bytes, the largest first.
    pub fn largest_tensors(&self) -> [u64; 4] {
        let rows = self.tokens.max(self.eval_tokens);
        let activation = self.precision.activation_bytes();
        let wide = activation * rows * self.up.max(self.qkv);
        let logits = activation * self.plan.loss_chunk as u64 * self.vocab;
        let mut sizes = [self.embedding_shard(), wide, logits, 4 * self.largest_matrix()];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// A row of elements in the dtype of activations.
    fn row(&self, name: &str, class: Class, elements: u64) -> Row {
        Row::new(name, class, elements.saturating_mul(self.precision.activation_bytes()))
    }

    /// The copy of a weight that a product makes in the dtype of activations, if it does.
    fn cast(&self, name: &str, elements: u64) -> Row {
        let elements = if self.casts_weights() { elements } else { 0 };
        self.row(name, Workspace, elements)
    }

    /// Lists the tensors that are live at the peak of the run.
    pub fn rows(&self) -> Vec<Row> {
        let mut points = vec![
            self.update(),
            self.evaluation(),
            self.sampling(),
            self.loss(),
            self.embedding_backward(),
        ];
        points.extend((0..self.layers).map(|block| self.block_backward(block)));
        points.extend((0..self.layers).map(|block| self.block_end(block)));
        let mut rows = points.into_iter().max_by_key(|rows| total(rows)).unwrap_or_default();
        rows.retain(|row| row.bytes > 0);
        rows
    }

    /// Weights and optimizer state, which live for the whole run.
    fn permanent(&self) -> Vec<Row> {
        if self.plan.offload_optimizer {
            return self.permanent_offloaded();
        }
        let has_copies = self.precision.keeps_half_weights();
        let copied = if has_copies { self.matrices + self.vocab * self.width } else { 0 };
        let [muon, adamw] = self.by_optimizer;
        vec![
            Row::f32("parameters", Weights, self.parameters),
            self.row("half copies of weight matrices", Weights, copied),
            Row::f32("AdamW moments", Optimizer, 2 * adamw),
            Row::f32("Muon momentum", Optimizer, muon),
        ]
    }

    /// What lives from the loss to the end of the last block: also the sums over earlier micro-batches, if
    /// a step has more than one, and the embedding's gradient.
    fn backward(&self) -> Vec<Row> {
        let sums = if self.plan.accumulation > 1 { self.parameters } else { 0 };
        let mut rows = self.permanent();
        rows.push(Row::f32("accumulated gradients", Gradients, sums));
        let of_embedding = self.vocab * self.width - self.summed_head();
        rows.push(Row::f32("embedding gradient", Gradients, of_embedding));
        rows
    }

    /// Counts the elements of a head's gradient that is in the sums from the loss on, because the head is
    /// not the embedding.
    fn summed_head(&self) -> u64 {
        let is_summed = self.plan.accumulation > 1 && !self.config.tie_embeddings;
        if is_summed { self.vocab * self.width } else { 0 }
    }

    /// The loss, with the forward pass saved.
    fn loss(&self) -> Vec<Row> {
        let n = self.tokens;
        let mut rows = self.backward();
        rows.push(Row::f32("output head gradient", Gradients, self.summed_head()));
        rows.extend(self.forward(self.layers));
        rows.push(self.row("final residual", Activations, n * self.width));
        let statistics = self.norm_statistics() * n;
        rows.push(Row::f32("final layer norm statistics", Activations, statistics));
        rows.extend(self.head(n));
        let (width, vocab, chunk) = (self.width, self.vocab, self.chunk(n));
        rows.push(self.row("head input and its gradient", Workspace, 2 * n * width));
        let sizes = [[chunk, vocab, width], [chunk, width, vocab], [vocab, width, chunk]];
        rows.push(self.partial_products(&sizes));
        if self.cpu() {
            // Of the logits, or of the gradient that a chunk adds to the embedding's.
            let of_gradient = vocab * width * if chunk < n { 2 } else { 1 };
            let copies = of_gradient.max(chunk * vocab);
            rows.push(Row::f32("copies of new products", Workspace, copies));
            let joined = if chunk < n { n * width } else { 0 };
            rows.push(self.row("head input gradients of the chunks", Workspace, joined));
        }
        rows
    }

    /// The partial products of the largest of several products `[m, n, k]`: `ops` splits k into ranges
    /// where few tiles would leave a GPU idle. CUDA counts its multiprocessors, which the plan does not
    /// know, so it may take up to 24 MiB more or less.
    fn partial_products(&self, sizes: &[[u64; 3]]) -> Row {
        let elements = |&[m, n, k]: &[u64; 3]| {
            let ranges = match self.precision.matrices() {
                _ if self.limits.kernels == Kernels::Cube => {
                    Tiling::of([m, n, k].map(|size| size as usize), None).ranges as u64
                }
                Some(matrices) => {
                    let side = 4 * u64::from(matrices.side());
                    let tiles = m.div_ceil(side) * n.div_ceil(side);
                    ranges_of_k(tiles as usize, k as usize) as u64
                }
                None => 1,
            };
            if ranges > 1 { ranges * m * n } else { 0 }
        };
        let most = sizes.iter().map(elements).max().unwrap_or(0);
        Row::f32("partial products", Workspace, most)
    }

    /// The logits of the output head and its temporary tensors, for `n` tokens.
    fn head(&self, n: u64) -> Vec<Row> {
        vec![
            self.row("logits chunk", Logits, self.chunk(n) * self.vocab),
            self.cast("embedding in the activation dtype", self.vocab * self.width),
        ]
    }

    fn embedding_backward(&self) -> Vec<Row> {
        let mut rows = self.permanent();
        let of_head = if self.plan.accumulation > 1 { self.vocab * self.width } else { 0 };
        rows.push(Row::f32("gradients of all weights", Gradients, self.parameters));
        rows.push(Row::f32("embedding gradient", Gradients, of_head));
        // Before the gradient of the positions exists, the partial sums of the layer norms do.
        let activation = self.tokens * self.width * self.precision.activation_bytes();
        let sums = 4 * self.sums_of(self.layers);
        let temporary = activation + activation.max(sums);
        rows.push(Row::new("temporary gradients", Workspace, temporary));
        rows
    }

    /// The update, at the largest matrix of Muon or after AdamW.
    fn update(&self) -> Vec<Row> {
        let mut rows = self.permanent();
        rows.push(Row::f32("gradients of all weights", Gradients, self.parameters));
        if self.config.optimizer == OptimizerKind::Muon {
            let matrix = self.largest_matrix();
            rows.push(Row::f32("Newton-Schulz matrices", Workspace, self.newton_schulz()));
            if self.unfused() {
                let (c, wide) = (self.width, self.ffn);
                rows.push(self.partial_products(&[[c, c, wide], [c, wide, c], [c, c, c]]));
            }
            if self.plan.offload_optimizer {
                rows.push(Row::f32("Muon momentum", Optimizer, matrix));
                let master = if self.has_half_weights() { matrix } else { 0 };
                rows.push(Row::f32("master weights", Weights, master));
            }
        }
        rows
    }

    fn evaluation(&self) -> Vec<Row> {
        let n = self.eval_tokens;
        let mut rows = self.permanent();
        rows.push(self.row("activations of a block", Workspace, n * self.inferred()));
        if self.unfused() {
            // The input of the MLP's second layer, which is freed before the logits are computed.
            let activated = (n * self.ffn).saturating_sub(self.chunk(n) * self.vocab);
            rows.push(self.row("MLP activations", Workspace, activated));
        }
        rows.extend(self.head(n));
        if self.unfused() {
            rows.push(self.partial_products(&[[self.chunk(n), self.vocab, self.width]]));
        }
        rows
    }

    /// The KV cache of one sequence, with that of one block twice, and the attention scores of half
    /// a context, which is read at once when the context is full. A half embedding is cast in parts
    /// and, where each product casts its weight, so are the others one by one.
    fn sampling(&self) -> Vec<Row> {
        let cache = self.block_size * (self.qkv - self.attention) * (self.layers + 2);
        let scores = 3 * self.heads * self.block_size.div_ceil(2).pow(2);
        let mut rows = self.permanent();
        rows.push(Row::f32("KV cache of a sample", Workspace, cache + scores));
        if self.has_half_weights() {
            let matrix = if self.unfused() { self.largest_matrix() } else { 0 };
            let bytes = 4 * matrix.max(self.vocab.min(CAST_ROWS as u64) * self.width);
            rows.push(Row::new("weight in float32", Workspace, bytes));
        }
        rows
    }
}
