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

mod host;

use super::products::{Tiling, ranges_of_k};
use super::sharding::largest_part;
use super::{CAST_ROWS, Class, Kernels, Limits, MAX_SHARDS, NORM_GROUPS, Plan, Row};
use crate::config::{self, Config, OptimizerKind, Precision};

/// The sizes of a model, in elements unless noted.
pub(super) struct Sizes {
    precision: Precision,
    optimizer: OptimizerKind,
    /// True if the ranks make local updates and average their weights on the host.
    trains_apart: bool,
    kernels: Kernels,
    layers: u64,
    heads: u64,
    width: u64,
    block_size: u64,
    eval_block_size: u64,
    bias: bool,
    dropout: bool,
    /// Rows of the embedding, including padding.
    vocab: u64,
    matrices: u64,
    parameters: u64,
    /// Weights of Muon and of AdamW whose state is on this rank: all, or the largest shard.
    by_optimizer: [u64; 2],
    /// The largest tensor that the device binds, in bytes.
    largest: Option<u64>,
}

impl Sizes {
    pub fn new(config: &Config, vocab: u32, limits: &Limits) -> Self {
        let vocab = u64::from(config::padded_vocab(vocab));
        let [parameters, muon] = [config.parameters(vocab), config.muon_weights()];
        let by_optimizer = if limits.shards_optimizer() {
            largest_part(config, vocab, limits.optimizer_shards as usize)
        } else {
            [muon, parameters - muon]
        };
        Self {
            precision: limits.precision,
            optimizer: config.optimizer,
            trains_apart: config.trains_apart(),
            kernels: limits.kernels,
            layers: config.n_layer.get().into(),
            heads: config.n_head.get().into(),
            width: config.n_embd.get().into(),
            block_size: config.block_size.get().into(),
            eval_block_size: config.eval_block_size().get().into(),
            bias: config.bias,
            dropout: config.dropout > 0.0,
            vocab,
            matrices: config.block_matrices(),
            parameters,
            by_optimizer,
            largest: limits.largest_tensor,
        }
    }

    /// Returns true if the ops around a product write tensors of their own, because the product's kernel
    /// does not include them.
    fn unfused(&self) -> bool {
        self.kernels == Kernels::Cube
    }

    /// Returns true if the matrices and embeddings on the device are half precision, with master weights
    /// on the host.
    fn has_half_weights(&self, plan: &Plan) -> bool {
        plan.offload_optimizer && self.precision.is_half()
    }

    /// Returns true if each product casts its weight to the dtype of activations.
    fn casts_weights(&self, plan: &Plan) -> bool {
        self.kernels == Kernels::Cube
            && self.precision.is_half()
            && !self.precision.keeps_half_weights()
            && !self.has_half_weights(plan)
    }

    fn cpu(&self) -> bool {
        self.kernels == Kernels::Cpu
    }

    fn tokens(&self, plan: &Plan) -> u64 {
        plan.micro_batch as u64 * self.block_size
    }

    fn eval_tokens(&self, plan: &Plan) -> u64 {
        plan.eval_batch_size as u64 * self.eval_block_size
    }

    /// Counts the parameters of one block, without its layer norms: their gradients are partial sums until
    /// the end of the backward pass.
    fn block_parameters(&self) -> u64 {
        (12 * self.width + if self.bias { 9 } else { 0 }) * self.width
    }

    /// Returns the size of the embedding in f32, in bytes. An embedding that is larger than the device
    /// binds is split; then this is the size of a shard.
    fn embedding_shard(&self) -> u64 {
        let embedding = 4 * self.vocab * self.width;
        match self.largest {
            Some(largest) if embedding > largest => {
                embedding.div_ceil(embedding.div_ceil(largest).min(MAX_SHARDS as u64))
            }
            _ => embedding,
        }
    }

    /// Counts the elements of the partial sums for the weights of a layer norm, over groups of rows.
    fn norm_sums(&self, plan: &Plan) -> u64 {
        let n = self.tokens(plan);
        let groups = if self.cpu() { 1 } else { n.div_ceil(n.div_ceil(NORM_GROUPS as u64).max(1)) };
        2 * groups * self.width
    }

    /// Counts the elements of the largest matrix of a block, [C, 4 C].
    fn largest_matrix(&self) -> u64 {
        4 * self.width * self.width
    }

    /// Returns the sizes of the largest tensors in bytes, the largest first.
    pub fn largest_tensors(&self, plan: &Plan) -> [u64; 4] {
        let rows = self.tokens(plan).max(self.eval_tokens(plan));
        let activation = self.precision.activation_bytes();
        let wide = activation * rows * 4 * self.width;
        let logits = activation * plan.loss_chunk as u64 * self.vocab;
        let matrix = 4 * self.largest_matrix();
        let mut sizes = [self.embedding_shard(), wide, logits, matrix];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// Lists what `blocks` blocks save for `n` tokens: the inputs of the layer norms and linear
    /// layers, qkv, the means and deviations of the layer norms, and the log-sum-exp of attention.
    fn saved(&self, n: u64, blocks: u64) -> Vec<Row> {
        let wide = n * self.width * blocks;
        let statistics = n * (4 + self.heads) * blocks;
        vec![
            self.activations("block inputs", wide),
            self.activations("ln_1 outputs", wide),
            self.activations("qkv", 3 * wide),
            self.activations("attention outputs", wide),
            self.activations("residuals after attention", wide),
            self.activations("ln_2 outputs", wide),
            self.activations("MLP pre-activations", 4 * wide),
            Row::f32("layer norm and softmax statistics", Class::Activations, statistics),
        ]
    }

    /// Lists what `blocks` blocks save in the forward pass of a training micro-batch.
    fn forward(&self, plan: &Plan, blocks: u64) -> Vec<Row> {
        let n = self.tokens(plan);
        if plan.grad_checkpoint {
            vec![self.activations("checkpointed block inputs", n * self.width * blocks)]
        } else {
            self.saved(n, blocks)
        }
    }

    fn activations(&self, name: &str, elements: u64) -> Row {
        self.row(name, Class::Activations, elements)
    }

    /// A row of elements in the dtype of activations.
    fn row(&self, name: &str, class: Class, elements: u64) -> Row {
        Row::new(name, class, elements.saturating_mul(self.precision.activation_bytes()))
    }

    /// The copy of a weight that a product makes in the dtype of activations, if it does.
    fn cast(&self, plan: &Plan, name: &str, elements: u64) -> Row {
        let elements = if self.casts_weights(plan) { elements } else { 0 };
        self.row(name, Class::Workspace, elements)
    }

    /// Lists the tensors that are live at the peak of the run.
    pub fn rows(&self, plan: &Plan) -> Vec<Row> {
        let mut points = vec![
            self.update(plan),
            self.evaluation(plan),
            self.sampling(plan),
            self.loss(plan),
            self.embedding_backward(plan),
        ];
        points.extend((0..self.layers).map(|block| self.block_backward(plan, block)));
        points.extend((0..self.layers).map(|block| self.block_end(plan, block)));
        let total = |rows: &Vec<Row>| rows.iter().map(|row| row.bytes).sum::<u64>();
        let mut rows = points.into_iter().max_by_key(total).unwrap_or_default();
        rows.retain(|row| row.bytes > 0);
        rows
    }

    /// Weights and optimizer state, which live for the whole run.
    fn permanent(&self, plan: &Plan) -> Vec<Row> {
        if plan.offload_optimizer {
            return self.permanent_offloaded();
        }
        let has_copies = self.precision.keeps_half_weights();
        let copied = if has_copies { self.matrices + self.vocab * self.width } else { 0 };
        let [muon, adamw] = self.by_optimizer;
        vec![
            Row::f32("parameters", Class::Weights, self.parameters),
            self.row("half copies of weight matrices", Class::Weights, copied),
            Row::f32("AdamW moments", Class::Optimizer, 2 * adamw),
            Row::f32("Muon momentum", Class::Optimizer, muon),
        ]
    }

    /// What lives from the loss to the end of the last block: also the sums over earlier micro-batches, if
    /// a step has more than one, and the embedding's gradient.
    fn backward(&self, plan: &Plan) -> Vec<Row> {
        let sums = if plan.accumulation > 1 { self.parameters } else { 0 };
        let mut rows = self.permanent(plan);
        rows.push(Row::f32("accumulated gradients", Class::Gradients, sums));
        rows.push(Row::f32("embedding gradient", Class::Gradients, self.vocab * self.width));
        rows
    }

    /// The loss, with the forward pass saved.
    fn loss(&self, plan: &Plan) -> Vec<Row> {
        let n = self.tokens(plan);
        let mut rows = self.backward(plan);
        rows.extend(self.forward(plan, self.layers));
        rows.push(self.activations("final residual", n * self.width));
        rows.push(Row::f32("final layer norm statistics", Class::Activations, 2 * n));
        rows.extend(self.head(plan, n));
        let (width, vocab, chunk) = (self.width, self.vocab, (plan.loss_chunk as u64).min(n));
        rows.push(self.row("head input and its gradient", Class::Workspace, 2 * n * width));
        let sizes = [[chunk, vocab, width], [chunk, width, vocab], [vocab, width, chunk]];
        rows.push(self.partial_products(&sizes));
        if self.cpu() {
            // Of the logits, or of the gradient that a chunk adds to the embedding's.
            let of_gradient = vocab * width * if chunk < n { 2 } else { 1 };
            let copy = of_gradient.max(chunk * vocab);
            rows.push(Row::f32("copies of new products", Class::Workspace, copy));
            let joined = if chunk < n { n * width } else { 0 };
            rows.push(self.row("head input gradients of the chunks", Class::Workspace, joined));
        }
        rows
    }

    /// The partial products of the largest of several products `[m, n, k]`: `ops` splits k into ranges
    /// where few tiles would leave a GPU idle. CUDA counts its multiprocessors, which the plan does not
    /// know, so it may take up to 24 MiB more or less.
    fn partial_products(&self, sizes: &[[u64; 3]]) -> Row {
        let elements = |&[m, n, k]: &[u64; 3]| {
            let ranges = match self.precision.matrices() {
                _ if self.kernels == Kernels::Cube => {
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
        Row::f32("partial products", Class::Workspace, most)
    }

    /// The logits of the output head and its temporary tensors, for `n` tokens.
    fn head(&self, plan: &Plan, n: u64) -> Vec<Row> {
        let chunk = (plan.loss_chunk as u64).min(n);
        vec![
            self.row("logits chunk", Class::Logits, chunk * self.vocab),
            self.cast(plan, "embedding in the activation dtype", self.vocab * self.width),
        ]
    }

    /// The backward pass of a block at its peak, in one of the layers of the MLP.
    fn block_backward(&self, plan: &Plan, block: u64) -> Vec<Row> {
        let n = self.tokens(plan);
        let wide = n * self.width;
        // The CPU's products take the activated input and return its gradient as whole tensors. The new
        // one exists twice.
        let of_mlp = if self.cpu() { 13 * wide } else { 5 * wide };
        let of_second = of_mlp + if self.dropout { wide } else { 0 };
        let matrix = self.largest_matrix();
        // In the first layer, the weight gradient of the second one exists too, and three tensors take
        // the place of the pre-activations.
        let of_first = 2 * wide;
        // Unless ops are fused, the weight's partial products are gone when the memory is fullest, at the
        // gradient of the input.
        let partial = |[from, to]: [u64; 2]| {
            let [of_input, of_weight] = [[n, from, to], [from, to, n]];
            let of_weight = if self.unfused() { of_weight } else { of_input };
            self.partial_products(&[of_input, of_weight])
        };
        let partial_first = partial([self.width, 4 * self.width]);
        let partial_second = partial([4 * self.width, self.width]);
        let size = |activations: u64, matrices: u64, partial: &Row| {
            activations * self.precision.activation_bytes() + 4 * matrices * matrix + partial.bytes
        };
        let first_is_larger =
            !self.cpu() && size(of_first, 2, &partial_first) > size(of_second, 1, &partial_second);
        let (temporary, matrices, partial) = if first_is_larger {
            (of_first, 2, partial_first)
        } else {
            (of_second, 1, partial_second)
        };
        // With accumulation, the gradients of finished blocks are already in the sums.
        let finished = if plan.accumulation > 1 { 0 } else { self.layers - 1 - block };
        let of_norm = self.width * if self.bias { 2 } else { 1 };
        let gradients = finished * self.block_parameters() + of_norm + matrices * matrix;
        let norms = 2 * (self.layers - 1 - block) + 1;
        let mut rows = self.backward(plan);
        rows.push(Row::f32("block gradients", Class::Gradients, gradients));
        let sums = norms * self.norm_sums(plan);
        rows.push(Row::f32("layer norm gradients, partial sums", Class::Workspace, sums));
        if plan.grad_checkpoint {
            rows.extend(self.forward(plan, block));
            rows.extend(self.saved(n, 1));
        } else {
            rows.extend(self.forward(plan, block + 1));
        }
        rows.push(self.row("temporary gradients", Class::Workspace, temporary));
        rows.push(partial);
        rows.push(self.cast(plan, "weight in the activation dtype", matrix));
        if self.unfused() {
            // A recomputed layer holds its activated input and its output at once, before the
            // gradient of its weight exists.
            let output = (6 * wide - of_second) * self.precision.activation_bytes();
            let bytes = if plan.grad_checkpoint { output.saturating_sub(4 * matrix) } else { 0 };
            rows.push(Row::new("recomputed block output", Class::Workspace, bytes));
        }
        rows
    }

    /// The end of a block's backward pass, in its first layer norm: with the gradients of all its
    /// matrices, and nothing of what it saved but its input.
    fn block_end(&self, plan: &Plan, block: u64) -> Vec<Row> {
        let wide = self.tokens(plan) * self.width;
        let finished = if plan.accumulation > 1 { 1 } else { self.layers - block };
        let gradients = finished * self.block_parameters();
        let sums = (2 * (self.layers - block) + 1) * self.norm_sums(plan);
        let mut rows = self.backward(plan);
        rows.push(Row::f32("block gradients", Class::Gradients, gradients));
        rows.push(Row::f32("layer norm gradients, partial sums", Class::Workspace, sums));
        rows.extend(self.forward(plan, block));
        // The input, the gradient of the output, that of the residual, and the sum of both.
        rows.push(self.row("temporary gradients", Class::Workspace, 4 * wide));
        rows
    }

    fn embedding_backward(&self, plan: &Plan) -> Vec<Row> {
        let mut rows = self.permanent(plan);
        let of_head = if plan.accumulation > 1 { self.vocab * self.width } else { 0 };
        rows.push(Row::f32("gradients of all weights", Class::Gradients, self.parameters));
        rows.push(Row::f32("embedding gradient", Class::Gradients, of_head));
        // Before the gradient of the positions exists, the partial sums of the layer norms do.
        let activation = self.tokens(plan) * self.width * self.precision.activation_bytes();
        let sums = 4 * (2 * self.layers + 1) * self.norm_sums(plan);
        let temporary = activation + activation.max(sums);
        rows.push(Row::new("temporary gradients", Class::Workspace, temporary));
        rows
    }

    /// The update, at the largest matrix of Muon or after AdamW.
    fn update(&self, plan: &Plan) -> Vec<Row> {
        let mut rows = self.permanent(plan);
        rows.push(Row::f32("gradients of all weights", Class::Gradients, self.parameters));
        if self.optimizer == OptimizerKind::Muon {
            // X takes the memory of the gradient. There are also a product of [C, 4 C] or its transpose,
            // and one of [C, C]. The CPU copies the new product.
            let matrix = self.largest_matrix();
            let copied = if self.cpu() { matrix } else { 0 };
            let products = matrix + matrix / 4 + copied;
            rows.push(Row::f32("Newton-Schulz matrices", Class::Workspace, products));
            if self.unfused() {
                let (c, wide) = (self.width, 4 * self.width);
                rows.push(self.partial_products(&[[c, c, wide], [c, wide, c], [c, c, c]]));
            }
            if plan.offload_optimizer {
                rows.push(Row::f32("Muon momentum", Class::Optimizer, matrix));
                let master = if self.has_half_weights(plan) { matrix } else { 0 };
                rows.push(Row::f32("master weights", Class::Weights, master));
            }
        }
        rows
    }

    fn evaluation(&self, plan: &Plan) -> Vec<Row> {
        let n = self.eval_tokens(plan);
        let mut rows = self.permanent(plan);
        let wide = if self.cpu() { 11 } else { 7 };
        rows.push(self.row("activations of a block", Class::Workspace, wide * n * self.width));
        if self.unfused() {
            // The input of the MLP's second layer, which is freed before the logits are computed.
            let logits = (plan.loss_chunk as u64).min(n) * self.vocab;
            let activated = (4 * n * self.width).saturating_sub(logits);
            rows.push(self.row("MLP activations", Class::Workspace, activated));
        }
        rows.extend(self.head(plan, n));
        if self.unfused() {
            let chunk = (plan.loss_chunk as u64).min(n);
            rows.push(self.partial_products(&[[chunk, self.vocab, self.width]]));
        }
        rows
    }

    /// The KV cache of one sequence, with that of one block twice, and the attention scores of half
    /// a context, which is read at once when the context is full. A half embedding is cast in parts
    /// and, where each product casts its weight, so are the others one by one.
    fn sampling(&self, plan: &Plan) -> Vec<Row> {
        let cache = 2 * self.block_size * self.width * (self.layers + 2);
        let scores = 3 * self.heads * self.block_size.div_ceil(2).pow(2);
        let mut rows = self.permanent(plan);
        rows.push(Row::f32("KV cache of a sample", Class::Workspace, cache + scores));
        if self.has_half_weights(plan) {
            let matrix = if self.unfused() { self.largest_matrix() } else { 0 };
            let bytes = 4 * matrix.max(self.vocab.min(CAST_ROWS as u64) * self.width);
            rows.push(Row::new("weight in float32", Class::Workspace, bytes));
        }
        rows
    }
}
