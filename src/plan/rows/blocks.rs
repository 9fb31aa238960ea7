//! The memory of blocks: what they save for the backward pass, and what that pass takes at its peak.
//!
//! With C the model's width and the other widths of [`Sizes`], a block saves
//! `4 C + qkv + attention + up` elements per token: GPT-2's 12 C.

use super::Class::{Activations, Gradients, Workspace};
use super::{Row, Sizes};
use crate::config::Arch;

/// A point of a block's backward pass that may be its peak.
struct Peak {
    /// Elements of activations in addition to what blocks have saved.
    temporary: u64,
    /// Elements of the gradients of the block's matrices so far.
    gradients: u64,
    /// Elements of the partial sums of the block's norms so far.
    sums: u64,
    /// Elements of the weight that is cast, if products cast theirs.
    cast: u64,
    /// The partial products of a gradient.
    partial: Row,
}

impl Sizes<'_> {
    fn is_gpt2(&self) -> bool {
        self.config.arch == Arch::Gpt2
    }

    /// Counts the values that a norm saves of a row: RMSNorm has no mean.
    pub(super) fn norm_statistics(&self) -> u64 {
        if self.is_gpt2() { 2 } else { 1 }
    }

    /// Counts the parameters of a block without its layer norms, whose gradients are partial sums.
    fn block_parameters(&self) -> u64 {
        let norms = self.width * if self.config.bias { 4 } else { 2 };
        self.matrices / self.layers + self.config.block_vectors() - norms
    }

    /// Lists what `blocks` blocks save in full: the inputs of the layer norms and linear
    /// layers, qkv, the statistics of the layer norms, and the log-sum-exp of attention.
    fn saved(&self, blocks: u64) -> Vec<Row> {
        let rows = self.tokens * blocks;
        let wide = rows * self.width;
        let statistics = rows * (2 * self.norm_statistics() + self.heads);
        vec![
            self.row("block inputs", Activations, wide),
            self.row("ln_1 outputs", Activations, wide),
            self.row("qkv", Activations, rows * self.qkv),
            self.row("attention outputs", Activations, rows * self.attention),
            self.row("residuals after attention", Activations, wide),
            self.row("ln_2 outputs", Activations, wide),
            self.row("MLP pre-activations", Activations, rows * self.up),
            Row::f32("layer norm and softmax statistics", Activations, statistics),
        ]
    }

    /// Lists what `blocks` blocks save in the forward pass of a training micro-batch.
    pub(super) fn forward(&self, blocks: u64) -> Vec<Row> {
        if self.plan.grad_checkpoint {
            let inputs = self.tokens * self.width * blocks;
            vec![self.row("checkpointed block inputs", Activations, inputs)]
        } else {
            self.saved(blocks)
        }
    }

    /// Counts the activations per token of a block whose output alone is wanted, at the end of one of its
    /// halves. The CPU copies a new product.
    pub(super) fn inferred(&self) -> u64 {
        let copied = if self.cpu() { self.ffn } else { 0 };
        let rotated = self.rotated().saturating_sub(self.width);
        3 * self.width + self.up.max(self.qkv + self.attention + rotated) + copied
    }

    /// Counts the elements per token of the copy of q, k and v that Qwen3 rotates, because it saves them as
    /// they were before their norms.
    fn rotated(&self) -> u64 {
        if self.config.arch == Arch::Qwen3 { self.qkv } else { 0 }
    }

    /// The backward pass of a block at its peak.
    pub(super) fn block_backward(&self, block: u64) -> Vec<Row> {
        let bytes = |peak: &Peak| {
            peak.temporary * self.precision.activation_bytes()
                + 4 * (peak.gradients + peak.sums)
                + self.cast("", peak.cast).bytes
                + peak.partial.bytes
        };
        let mut peaks = vec![self.second_layer()];
        peaks.extend((!self.cpu()).then(|| self.first_layer()));
        // In GPT-2 the MLP is always the larger half.
        peaks.extend((!self.is_gpt2()).then(|| self.attention_half()));
        // Of equal peaks, the earlier one.
        let largest = peaks.iter().map(bytes).max();
        let peak = peaks.into_iter().find(|peak| Some(bytes(peak)) == largest);
        let Some(Peak { temporary, gradients, sums, cast, partial }) = peak else {
            return Vec::new();
        };
        // With accumulation, the gradients of finished blocks are already in the sums.
        let finished = if self.plan.accumulation > 1 { 0 } else { self.layers - 1 - block };
        let of_norm = self.width * if self.config.bias { 2 } else { 1 };
        let gradients = finished * self.block_parameters() + of_norm + gradients;
        let sums = sums + self.sums_of(self.layers - 1 - block);
        let mut rows = self.backward();
        rows.push(Row::f32("block gradients", Gradients, gradients));
        rows.push(Row::f32("layer norm gradients, partial sums", Workspace, sums));
        if self.plan.grad_checkpoint {
            rows.extend(self.forward(block));
            rows.extend(self.saved(1));
        } else {
            rows.extend(self.forward(block + 1));
        }
        rows.push(self.row("temporary gradients", Workspace, temporary));
        rows.push(partial);
        rows.push(self.cast("weight in the activation dtype", cast));
        if self.unfused() && self.plan.grad_checkpoint {
            // A recomputed layer holds its activated input and its output at once, before the
            // gradient of its weight exists.
            let second = self.second_layer();
            let output = self.tokens * (2 * self.width + self.ffn);
            let output = output.saturating_sub(second.temporary);
            let bytes = output * self.precision.activation_bytes();
            let bytes = bytes.saturating_sub(4 * second.gradients);
            rows.push(Row::new("recomputed block output", Workspace, bytes));
        }
        rows
    }

    /// The second layer of the MLP, whose input gets a gradient. The CPU's products take the activated
    /// input and return its gradient as whole tensors. The new one exists twice. Where products are not
    /// fused, gate and up get their gradients from that of the activated input, when the product is done.
    fn second_layer(&self) -> Peak {
        let is_split = self.unfused() && !self.is_gpt2();
        let others = if self.cpu() {
            self.ffn + self.up
        } else if is_split {
            self.ffn
        } else {
            0
        };
        let has_copy = self.config.dropout > 0.0 && !is_split;
        let dropped = if has_copy { self.width } else { 0 };
        let partial = self.partial_products_of(self.ffn, self.width);
        Peak {
            temporary: self.tokens * (self.width + self.up + others + dropped),
            gradients: self.ffn * self.width,
            sums: 0,
            cast: if is_split { 0 } else { self.ffn * self.width },
            partial: if is_split { self.partial_products(&[]) } else { partial },
        }
    }

    /// The first layer of the MLP. The weight gradient of the second one exists too, and three tensors
    /// take the place of the pre-activations.
    fn first_layer(&self) -> Peak {
        Peak {
            temporary: self.tokens * 2 * self.width,
            gradients: (self.ffn + self.up) * self.width,
            sums: 0,
            cast: self.up * self.width,
            partial: self.partial_products_of(self.width, self.up),
        }
    }

    /// Attention, with the gradients of its output and of q, k and v. What the MLP saved is gone.
    fn attention_half(&self) -> Peak {
        let temporary = self.width + self.attention + self.qkv + self.rotated();
        Peak {
            temporary: self.tokens * temporary.saturating_sub(2 * self.width + self.up),
            gradients: (self.ffn + self.up + self.attention) * self.width,
            sums: self.norm_sums(),
            cast: 0,
            partial: self.partial_products(&[]),
        }
    }

    /// Counts the partial sums of the last norm and of the norms of this many blocks. Qwen3 has two norms
    /// of the size of a head in each block.
    pub(super) fn sums_of(&self, blocks: u64) -> u64 {
        let head = u64::from(self.config.head_size());
        let of_heads = if self.rotated() > 0 { self.norm_sums() / self.width * head } else { 0 };
        (2 * blocks + 1) * self.norm_sums() + blocks * of_heads
    }

    /// The partial products of the gradients of a layer. Unless ops are fused, the weight's are gone when
    /// the memory is fullest, at the gradient of the input.
    fn partial_products_of(&self, from: u64, to: u64) -> Row {
        let [of_input, of_weight] = [[self.tokens, from, to], [from, to, self.tokens]];
        let of_weight = if self.unfused() { of_weight } else { of_input };
        self.partial_products(&[of_input, of_weight])
    }

    /// The end of a block's backward pass, in its first layer norm: with the gradients of all its
    /// matrices, and nothing of what it saved but its input.
    pub(super) fn block_end(&self, block: u64) -> Vec<Row> {
        let wide = self.tokens * self.width;
        let finished = if self.plan.accumulation > 1 { 1 } else { self.layers - block };
        let sums = self.sums_of(self.layers - block);
        let mut rows = self.backward();
        rows.push(Row::f32("block gradients", Gradients, finished * self.block_parameters()));
        rows.push(Row::f32("layer norm gradients, partial sums", Workspace, sums));
        rows.extend(self.forward(block));
        // The input, the gradient of the output, that of the residual, and the sum of both.
        rows.push(self.row("temporary gradients", Workspace, 4 * wide));
        rows
    }

    /// Counts the elements that Muon's steps take on the largest matrix. X takes the memory of the gradient.
    /// There are also a product of GPT-2's [C, 4 C] or its transpose, and one of [C, C]. The CPU copies
    /// the new product. In other shapes `gate` is finished while `up` is in the memory of neither.
    pub(super) fn newton_schulz(&self) -> u64 {
        let matrix = self.ffn * self.width;
        let copied = if self.cpu() { matrix } else { 0 };
        let kept = if self.is_gpt2() { 0 } else { 2 * matrix };
        kept + matrix + self.width.min(self.ffn).pow(2) + copied
    }
}
