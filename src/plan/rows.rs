//! The one table that sizes memory.
//!
//! A step is followed from moment to moment: what is alive at the loss, in the backward pass of each
//! block, at the update, in an evaluation. The fullest moment is the step's peak, and its tensors
//! are the rows. Weights, gradients and moments are f32, and what a row keeps of its statistics;
//! activations are of the configuration's dtype.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Plan;
use crate::config::{self, Config};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Parameters.
    Weights,
    /// Their gradients, those summed over micro-batches included.
    Gradients,
    /// AdamW's moments.
    Optimizer,
    /// What the forward pass keeps for the backward pass.
    Activations,
    /// A chunk of logits.
    Logits,
    /// What one op needs in passing.
    Workspace,
    /// What pools hold beyond their tensors, and staging.
    Slack,
}

impl Class {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Class; 7] = [
        Class::Weights,
        Class::Gradients,
        Class::Optimizer,
        Class::Activations,
        Class::Logits,
        Class::Workspace,
        Class::Slack,
    ];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Class::Weights => "weights",
            Class::Gradients => "gradients",
            Class::Optimizer => "optimizer",
            Class::Activations => "activations",
            Class::Logits => "logits",
            Class::Workspace => "workspace",
            Class::Slack => "slack",
        })
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// What it is for.
    pub class: Class,
    /// Bytes.
    pub bytes: u64,
}

/// Sizes of a model and its step, in elements.
pub(super) struct Sizes {
    /// Bytes of an activation.
    activation: u64,
    /// Whether products are a library's.
    cube: bool,
    layers: u64,
    heads: u64,
    width: u64,
    block_size: u64,
    eval_block_size: u64,
    bias: bool,
    dropout: bool,
    /// Rows of the embedding, padding included.
    vocab: u64,
    parameters: u64,
}

/// Tensors that an embedding can be cut into: `ops::MOST_TABLES`.
const TABLES: u64 = 4;

impl Sizes {
    pub fn new(config: &Config, vocab: u32, cube: bool) -> Self {
        let vocab = u64::from(config::padded_vocab(vocab));
        Self {
            activation: config.dtype.bytes(),
            cube,
            layers: config.n_layer.get().into(),
            heads: config.n_head.get().into(),
            width: config.n_embd.get().into(),
            block_size: config.block_size.get().into(),
            eval_block_size: config.eval_block_size().get().into(),
            bias: config.bias,
            dropout: config.dropout > 0.0,
            vocab,
            parameters: config.parameters(vocab),
        }
    }

    /// Rows of a micro-batch.
    fn tokens(&self, sequences: usize) -> u64 {
        sequences as u64 * self.block_size
    }

    /// Rows of an evaluation's micro-batch.
    fn eval_tokens(&self, plan: &Plan) -> u64 {
        plan.eval_batch_size as u64 * self.eval_block_size
    }

    /// Weights of one block.
    fn of_block(&self) -> u64 {
        let (matrices, vectors) = (12 * self.width, if self.bias { 13 } else { 2 });
        (matrices + vectors) * self.width
    }

    /// The largest single tensors, the largest first, in bytes: an embedding over `largest` is cut
    /// into tables.
    pub fn largest_tensors(&self, plan: &Plan, largest: Option<u64>) -> [u64; 4] {
        let embedding = 4 * self.vocab * self.width;
        let table = match largest {
            Some(largest) if embedding > largest => {
                embedding.div_ceil(embedding.div_ceil(largest).min(TABLES))
            }
            _ => embedding,
        };
        let rows = self.tokens(plan.micro_batch).max(self.eval_tokens(plan));
        let wide = self.activation * rows * 4 * self.width;
        let logits = self.activation * plan.loss_chunk as u64 * self.vocab;
        let matrix = 4 * 4 * self.width * self.width;
        let mut sizes = [table, wide, logits, matrix];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// What blocks keep for `n` rows: inputs of the layer norms and of the linear layers, packed
    /// queries, keys and values, means and deviations, and the log-sum-exp.
    fn kept(&self, n: u64, blocks: u64) -> Vec<Row> {
        let wide = n * self.width * blocks;
        let mut rows = vec![
            self.activations("block inputs", wide),
            self.activations("ln_1 outputs", wide),
            self.activations("queries, keys, values", 3 * wide),
            self.activations("attention outputs", wide),
            self.activations("residual after attention", wide),
            self.activations("ln_2 outputs", wide),
            self.activations("pre-activations", 4 * wide),
        ];
        let statistics = n * (4 + self.heads) * blocks;
        rows.push(row("row statistics", Class::Activations, statistics));
        rows
    }

    fn activations(&self, name: &str, elements: u64) -> Row {
        self.narrow(name, Class::Activations, elements)
    }

    /// A row of elements that are as wide as activations.
    fn narrow(&self, name: &str, class: Class, elements: u64) -> Row {
        Row { bytes: elements.saturating_mul(self.activation), ..row(name, class, 0) }
    }

    /// A weight in the numbers that products multiply, where those are not its own.
    fn cast(&self, name: &str, elements: u64) -> Row {
        let elements = if self.activation < 4 { elements } else { 0 };
        self.narrow(name, Class::Workspace, elements)
    }

    /// The fullest moment of a step and of what comes between steps.
    pub fn rows(&self, plan: &Plan) -> Vec<Row> {
        let mut moments = vec![self.update(), self.evaluation(plan), self.sampling()];
        moments.push(self.loss(plan));
        moments.push(self.embedding(plan));
        moments.extend((0..self.layers).map(|block| self.backward(plan, block)));
        let total = |rows: &Vec<Row>| rows.iter().map(|row| row.bytes).sum::<u64>();
        let mut rows = moments.into_iter().max_by_key(total).unwrap_or_default();
        rows.retain(|row| row.bytes > 0);
        rows
    }

    fn always(&self) -> Vec<Row> {
        vec![
            row("weights", Class::Weights, self.parameters),
            row("AdamW's moments", Class::Optimizer, 2 * self.parameters),
        ]
    }

    /// The sums over the micro-batches before, where there are any.
    fn sums(&self, plan: &Plan) -> Row {
        let sums = if plan.accumulation > 1 { self.parameters } else { 0 };
        row("gradient sums", Class::Gradients, sums)
    }

    fn loss(&self, plan: &Plan) -> Vec<Row> {
        let n = self.tokens(plan.micro_batch);
        let mut rows = self.always();
        rows.push(self.sums(plan));
        let embedding = self.vocab * self.width;
        rows.push(row("gradient of the embedding", Class::Gradients, embedding));
        match plan.grad_checkpoint {
            true => rows.push(self.activations("block inputs", n * self.width * self.layers)),
            false => rows.extend(self.kept(n, self.layers)),
        }
        rows.push(self.activations("last residual", n * self.width));
        rows.push(row("its row statistics", Class::Activations, 2 * n));
        rows.extend(self.head(plan, n));
        let of_head = 2 * n * self.width;
        rows.push(self.narrow("head's input and its gradient", Class::Workspace, of_head));
        if self.cube && (plan.loss_chunk as u64) < n {
            let part = "gradient of the embedding by a chunk";
            rows.push(row(part, Class::Workspace, embedding));
        }
        rows
    }

    /// The head's logits and what comes with them, for `n` rows.
    fn head(&self, plan: &Plan, n: u64) -> Vec<Row> {
        let chunk = (plan.loss_chunk as u64).min(n);
        let mut rows = vec![self.narrow("logits of a chunk", Class::Logits, chunk * self.vocab)];
        if self.cube {
            rows.push(self.cast("embedding in the activations' numbers", self.vocab * self.width));
            let copied = if chunk < n { chunk * self.width } else { 0 };
            rows.push(self.narrow("rows of a chunk", Class::Workspace, copied));
        }
        rows
    }

    /// The backward pass of a block, at its widest: in the second layer of the MLP.
    fn backward(&self, plan: &Plan, block: u64) -> Vec<Row> {
        let n = self.tokens(plan.micro_batch);
        let wide = n * self.width;
        let passing = 5 * wide + if self.dropout { wide } else { 0 };
        let matrix = 4 * self.width * self.width;
        // Those of the blocks before are in the sums, where there are sums.
        let before = if plan.accumulation > 1 { 0 } else { self.layers - 1 - block };
        let done = before * self.of_block() + self.width * if self.bias { 2 } else { 1 } + matrix;
        let mut rows = self.always();
        rows.push(self.sums(plan));
        rows.push(row("gradient of the embedding", Class::Gradients, self.vocab * self.width));
        rows.push(row("gradients of blocks", Class::Gradients, done));
        match plan.grad_checkpoint {
            true => {
                rows.push(self.activations("block inputs", wide * block));
                rows.extend(self.kept(n, 1));
            }
            false => rows.extend(self.kept(n, block + 1)),
        }
        rows.push(self.narrow("gradients in passing", Class::Workspace, passing));
        if self.cube {
            rows.push(self.cast("a weight in the activations' numbers", matrix));
            // Run again, the layer has its activated input and its output at once, when the gradient
            // of its weight is not there yet.
            let again = (6 * wide - passing) * self.activation;
            let again = if plan.grad_checkpoint { again.saturating_sub(4 * matrix) } else { 0 };
            rows.push(Row {
                bytes: again,
                ..row("output of a block run again", Class::Workspace, 0)
            });
        }
        rows
    }

    /// The end of the backward pass.
    fn embedding(&self, plan: &Plan) -> Vec<Row> {
        let mut rows = self.always();
        let of_head = if plan.accumulation > 1 { self.vocab * self.width } else { 0 };
        rows.push(row("gradients", Class::Gradients, self.parameters));
        rows.push(row("gradient of the embedding", Class::Gradients, of_head));
        let passing = 2 * self.tokens(plan.micro_batch) * self.width;
        rows.push(self.narrow("gradients in passing", Class::Workspace, passing));
        rows
    }

    fn update(&self) -> Vec<Row> {
        let mut rows = self.always();
        rows.push(row("gradients", Class::Gradients, self.parameters));
        rows
    }

    fn evaluation(&self, plan: &Plan) -> Vec<Row> {
        let n = self.eval_tokens(plan);
        let mut rows = self.always();
        rows.push(self.narrow("a block in passing", Class::Workspace, 7 * n * self.width));
        if self.cube {
            // The activated input of the MLP's second layer, before there are logits.
            let logits = (plan.loss_chunk as u64).min(n) * self.vocab;
            let activated = (4 * n * self.width).saturating_sub(logits);
            rows.push(self.narrow("its activated input", Class::Workspace, activated));
        }
        rows.extend(self.head(plan, n));
        rows
    }

    /// Keys and values of one text, those of one block twice, and the scores of the half window that
    /// is read at once when the window is full.
    fn sampling(&self) -> Vec<Row> {
        let cache = 2 * self.block_size * self.width * (self.layers + 2);
        let scores = 3 * self.heads * self.block_size.div_ceil(2).pow(2);
        let mut rows = self.always();
        rows.push(row("keys and values of a sample", Class::Workspace, cache + scores));
        rows
    }
}

fn row(name: &str, class: Class, elements: u64) -> Row {
    Row { name: name.to_string(), class, bytes: elements.saturating_mul(4) }
}
