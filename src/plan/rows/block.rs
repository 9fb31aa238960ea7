//! The memory of blocks: what they save for the backward pass, and what that pass needs at its peak.
//!
//! With C the model's width and the other widths of [`Dimensions`], a block saves
//! `4 C + qkv + attention + up` elements per token: GPT-2's 12 C.

use super::dimensions::Dimensions;
use super::op_memory::OpMemory;
use crate::plan::Class::{Activations, Workspace};
use crate::plan::Row;

/// The blocks of a model, for `tokens` tokens.
#[derive(Clone, Copy)]
pub(super) struct BlockMemory<'a> {
    pub model: Dimensions<'a>,
    pub ops: OpMemory,
    pub tokens: u64,
}

/// A point of a block's backward pass that may be its peak.
pub(super) struct Peak {
    /// Elements of activations in addition to what blocks have saved.
    pub temporary: u64,
    /// Elements of the gradients of the block's matrices so far.
    pub gradients: u64,
    /// Elements of the partial sums of the block's norms so far.
    pub sums: u64,
    /// Elements of the weight that is cast, if products cast theirs.
    pub cast: u64,
    /// Elements of the weight that is decoded, if it is stored in 8 bits.
    pub decoded: u64,
    /// The partial products of a gradient.
    pub partial: Row,
}

impl BlockMemory<'_> {
    /// Lists what `blocks` blocks save in full: the inputs of the layer norms and linear
    /// layers, qkv, the statistics of the layer norms, and the log-sum-exp of attention.
    pub fn saved(&self, blocks: u64) -> Vec<Row> {
        let Dimensions { width, qkv, attention, up, heads, .. } = self.model;
        let rows = self.tokens * blocks;
        let row = |name, width| self.ops.row(name, Activations, rows * width);
        let statistics = rows * (2 * self.model.norm_statistics() + heads);
        vec![
            row("block inputs", width),
            row("ln_1 outputs", width),
            row("qkv", qkv),
            row("attention outputs", attention),
            row("residuals after attention", width),
            row("ln_2 outputs", width),
            row("MLP pre-activations", up),
            Row::f32("layer norm and softmax statistics", Activations, statistics),
        ]
    }

    /// The activations of a block without a backward pass, at the end of one of its halves. The CPU
    /// copies a new product.
    pub fn inferred(&self) -> Row {
        let Dimensions { width, qkv, attention, up, ffn, .. } = self.model;
        let copied = if self.ops.are_cpu() { ffn } else { 0 };
        let rotated = self.model.rotated().saturating_sub(width);
        let of_token = 3 * width + up.max(qkv + attention + rotated) + copied;
        self.ops.row("activations of a block", Workspace, self.tokens * of_token)
    }

    /// Lists the points that may be the peak of a block's backward pass, in their order.
    pub fn peaks(&self) -> Vec<Peak> {
        let mut peaks = vec![self.second_layer()];
        if self.ops.are_unfused() && self.model.adapter.is_some() {
            peaks.push(self.second_layer_forward());
        }
        if !self.ops.are_cpu() || self.model.quantized() > 0 {
            peaks.push(self.first_layer());
        }
        // In GPT-2 the MLP is always the larger half.
        if !self.model.is_gpt2() {
            peaks.push(self.attention());
        }
        peaks
    }

    /// The second layer of the MLP, when its input gets a gradient. The CPU's products take the activated
    /// input and return its gradient as whole tensors. The new one exists twice. Where products are not
    /// fused, gate and up get their gradients from that of the activated input, when the product is done.
    pub fn second_layer(&self) -> Peak {
        let Dimensions { width, up, ffn, .. } = self.model;
        let is_split = self.ops.are_unfused() && !self.model.is_gpt2();
        let others = if self.ops.are_cpu() {
            ffn + up
        } else if is_split {
            ffn
        } else {
            0
        };
        let has_copy = self.model.config.dropout > 0.0 && !is_split;
        let dropped = if has_copy { width } else { 0 };
        let mut of_token = width + up + others + dropped;
        if self.model.drops_inputs() {
            // The adapter's gradient of the activated input exists next to the base's of the input; then both
            // gradients of the input exist, until they are added.
            of_token = (of_token + ffn).max(width + 2 * up + ffn);
        }
        let partial = self.partial_products_of(ffn, width);
        Peak {
            temporary: self.tokens * of_token,
            gradients: self.model.gradients_of(ffn * width),
            sums: 0,
            cast: if is_split { 0 } else { ffn * width },
            decoded: self.model.decoded(ffn, width),
            partial: if is_split { self.ops.partial_products(&[]) } else { partial },
        }
    }

    /// The second layer of the MLP in the forward pass, whose activated input is a tensor of its own. The gradients of
    /// weights make the backward pass larger, but an adapter has few.
    fn second_layer_forward(&self) -> Peak {
        let Dimensions { width, ffn, .. } = self.model;
        Peak {
            temporary: self.tokens * ffn,
            gradients: 0,
            sums: 0,
            cast: 0,
            decoded: self.model.decoded(ffn, width),
            partial: self.ops.partial_products(&[[self.tokens, width, ffn]]),
        }
    }

    /// The first layer of the MLP. The weight gradient of the second one exists too, and three tensors
    /// take the place of the pre-activations.
    fn first_layer(&self) -> Peak {
        let Dimensions { width, up, ffn, .. } = self.model;
        Peak {
            temporary: self.tokens * 2 * width,
            gradients: self.model.gradients_of((ffn + up) * width),
            sums: 0,
            cast: up * width,
            decoded: self.model.decoded(width, up),
            partial: self.partial_products_of(width, up),
        }
    }

    /// Attention, with the gradients of its output and of q, k and v. What the MLP saved is gone.
    fn attention(&self) -> Peak {
        let Dimensions { width, qkv, attention, up, ffn, .. } = self.model;
        let temporary = width + attention + qkv + self.model.rotated();
        Peak {
            temporary: self.tokens * temporary.saturating_sub(2 * width + up),
            gradients: self.model.gradients_of((ffn + up + attention) * width),
            sums: self.ops.norm_sums(self.tokens, width),
            cast: 0,
            decoded: 0,
            partial: self.ops.partial_products(&[]),
        }
    }

    /// Counts the partial sums of the last norm and of the norms of this many blocks. Qwen3 has two norms
    /// of the size of a head in each block.
    pub fn norm_sums(&self, blocks: u64) -> u64 {
        // An adapter drops them.
        let blocks = if self.model.adapter.is_some() { 0 } else { blocks };
        let of_norm = self.ops.norm_sums(self.tokens, self.model.width);
        let head = u64::from(self.model.config.head_size());
        let of_heads = if self.model.rotated() > 0 { of_norm / self.model.width * head } else { 0 };
        (2 * blocks + 1) * of_norm + blocks * of_heads
    }

    /// The partial products of the gradients of a layer. Unless ops are fused, the weight's are gone when
    /// the memory is fullest, at the gradient of the input.
    fn partial_products_of(&self, from: u64, to: u64) -> Row {
        let of_input = [self.tokens, from, to];
        let of_weight = [from, to, self.tokens];
        let is_trained = self.model.adapter.is_none();
        let has_both = is_trained && self.ops.are_unfused();
        let sizes = if has_both { [of_input, of_weight] } else { [of_input; 2] };
        self.ops.partial_products(&sizes)
    }
}
