//! The one table that sizes memory.
//!
//! A step is followed from moment to moment: what is alive at the loss, in the backward pass of each
//! block, at the update, in an evaluation. The fullest moment is the step's peak, and its tensors
//! are the rows. All is f32.

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
    pub fn new(config: &Config, vocab: u32) -> Self {
        let vocab = u64::from(config::padded_vocab(vocab));
        Self {
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
        let wide = 4 * rows * 4 * self.width;
        let logits = 4 * plan.loss_chunk as u64 * self.vocab;
        let matrix = 4 * 4 * self.width * self.width;
        let mut sizes = [table, wide, logits, matrix];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// What a block keeps for `n` rows: inputs of the layer norms and of the linear layers, packed
    /// queries, keys and values, means and deviations, and the log-sum-exp.
    fn kept(&self, n: u64, names: &mut Vec<(&'static str, u64)>, blocks: u64) {
        let wide = n * self.width * blocks;
        names.extend([
            ("block inputs", wide),
            ("ln_1 outputs", wide),
            ("queries, keys, values", 3 * wide),
            ("attention outputs", wide),
            ("residual after attention", wide),
            ("ln_2 outputs", wide),
            ("pre-activations", 4 * wide),
            ("row statistics", n * (4 + self.heads) * blocks),
        ]);
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
        let mut kept = Vec::new();
        match plan.grad_checkpoint {
            true => kept.push(("block inputs", n * self.width * self.layers)),
            false => self.kept(n, &mut kept, self.layers),
        }
        kept.push(("last residual", n * (self.width + 2)));
        let mut rows = self.always();
        rows.push(self.sums(plan));
        rows.push(row("gradient of the embedding", Class::Gradients, self.vocab * self.width));
        rows.extend(kept.into_iter().map(|(name, size)| row(name, Class::Activations, size)));
        let logits = (plan.loss_chunk as u64).min(n) * self.vocab;
        rows.push(row("logits of a chunk", Class::Logits, logits));
        rows.push(row("head's input and its gradient", Class::Workspace, 2 * n * self.width));
        rows
    }

    /// The backward pass of a block, at its widest: in the second layer of the MLP.
    fn backward(&self, plan: &Plan, block: u64) -> Vec<Row> {
        let n = self.tokens(plan.micro_batch);
        let wide = n * self.width;
        let mut kept = Vec::new();
        let passing = 5 * wide + if self.dropout { wide } else { 0 };
        match plan.grad_checkpoint {
            true => {
                kept.push(("block inputs", wide * block));
                self.kept(n, &mut kept, 1);
            }
            false => self.kept(n, &mut kept, block + 1),
        }
        // Those of the blocks before are in the sums, where there are sums.
        let before = if plan.accumulation > 1 { 0 } else { self.layers - 1 - block };
        let done = before * self.of_block()
            + self.width * if self.bias { 2 } else { 1 }
            + 4 * self.width * self.width;
        let mut rows = self.always();
        rows.push(self.sums(plan));
        rows.push(row("gradient of the embedding", Class::Gradients, self.vocab * self.width));
        rows.push(row("gradients of blocks", Class::Gradients, done));
        rows.extend(kept.into_iter().map(|(name, size)| row(name, Class::Activations, size)));
        rows.push(row("gradients in passing", Class::Workspace, passing));
        rows
    }

    /// The end of the backward pass.
    fn embedding(&self, plan: &Plan) -> Vec<Row> {
        let mut rows = self.always();
        let of_head = if plan.accumulation > 1 { self.vocab * self.width } else { 0 };
        rows.push(row("gradients", Class::Gradients, self.parameters));
        rows.push(row("gradient of the embedding", Class::Gradients, of_head));
        let passing = 2 * self.tokens(plan.micro_batch) * self.width;
        rows.push(row("gradients in passing", Class::Workspace, passing));
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
        rows.push(row("a block in passing", Class::Workspace, 7 * n * self.width));
        let logits = (plan.loss_chunk as u64).min(n) * self.vocab;
        rows.push(row("logits of a chunk", Class::Logits, logits));
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
