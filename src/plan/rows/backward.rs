//! The points of the backward pass: the loss, the blocks from the last to the first, the embedding.

use super::block::{BlockMemory, Peak};
use super::dimensions::Dimensions;
use super::{DECODED, Row, RunMemory};
use crate::plan::Class::{Activations, Gradients, Workspace};

pub(super) struct BackwardPass<'a> {
    run: &'a RunMemory<'a>,
    blocks: BlockMemory<'a>,
    /// True if a step has several micro-batches, whose gradients are added to sums.
    has_sums: bool,
}

impl<'a> BackwardPass<'a> {
    pub fn new(run: &'a RunMemory<'a>) -> Self {
        let blocks = BlockMemory { model: run.model, ops: run.ops, tokens: run.tokens() };
        Self { run, blocks, has_sums: run.plan.accumulation > 1 }
    }

    /// Lists what lives from the loss to the end of the last block: also the sums over earlier
    /// micro-batches, if a step has more than one, and the embedding's gradient.
    fn throughout(&self) -> Vec<Row> {
        let sums = if self.has_sums { self.run.model.trained() } else { 0 };
        let of_embedding = self.run.model.embedding_gradient() - self.summed_head();
        let mut rows = self.run.weights.on_device();
        rows.push(Row::f32("accumulated gradients", Gradients, sums));
        rows.push(Row::f32("embedding gradient", Gradients, of_embedding));
        rows
    }

    /// Counts the elements of a head's gradient that is in the sums from the loss on, because the head is
    /// not the embedding.
    fn summed_head(&self) -> u64 {
        let is_summed = self.has_sums && !self.run.model.config.tie_embeddings;
        if is_summed { self.run.model.embedding_gradient() } else { 0 }
    }

    /// Lists what `count` blocks have saved in the forward pass.
    fn saved(&self, count: u64) -> Vec<Row> {
        if self.run.plan.grad_checkpoint {
            let inputs = self.blocks.tokens * self.run.model.width * count;
            vec![self.run.ops.row("checkpointed block inputs", Activations, inputs)]
        } else {
            self.blocks.saved(count)
        }
    }

    /// The loss, with the forward pass saved.
    pub fn loss(&self) -> Vec<Row> {
        let RunMemory { model, ops, .. } = self.run;
        let Dimensions { width, vocab, .. } = *model;
        let tokens = self.blocks.tokens;
        let chunk = self.run.chunk(tokens);
        let mut rows = self.throughout();
        rows.push(Row::f32("output head gradient", Gradients, self.summed_head()));
        rows.extend(self.saved(model.layers));
        rows.push(ops.row("final residual", Activations, tokens * width));
        let statistics = model.norm_statistics() * tokens;
        rows.push(Row::f32("final layer norm statistics", Activations, statistics));
        rows.extend(self.run.head(tokens));
        rows.push(ops.row("head input and its gradient", Workspace, 2 * tokens * width));
        let sizes = [[chunk, vocab, width], [chunk, width, vocab], [vocab, width, chunk]];
        let products = if model.adapter.is_some() { 2 } else { 3 };
        rows.push(ops.partial_products(&sizes[..products]));
        if ops.are_cpu() {
            // Of the logits, or of the gradient that a chunk adds to the embedding's.
            let of_gradient = model.embedding_gradient() * if chunk < tokens { 2 } else { 1 };
            let copies = of_gradient.max(chunk * vocab);
            rows.push(Row::f32("copies of new products", Workspace, copies));
            let joined = if chunk < tokens { tokens * width } else { 0 };
            rows.push(ops.row("head input gradients of the chunks", Workspace, joined));
        }
        rows
    }

    /// The backward pass of a block at its peak.
    pub fn block(&self, block: u64) -> Vec<Row> {
        let RunMemory { plan, model, ops, weights } = self.run;
        let activation = ops.precision.activation_bytes();
        let bytes = |peak: &Peak| {
            (peak.temporary + peak.decoded) * activation
                + 4 * (peak.gradients + peak.sums)
                + weights.cast("", peak.cast).bytes
                + peak.partial.bytes
        };
        // Of equal peaks, the earlier one.
        let peaks = self.blocks.peaks().into_iter().rev();
        let Some(peak) = peaks.max_by_key(bytes) else { return Vec::new() };
        // With accumulation, the gradients of finished blocks are already in the sums.
        let later = model.layers - 1 - block;
        let finished = if self.has_sums { 0 } else { later };
        let gradients =
            finished * model.block_parameters() + model.norm_gradient() + peak.gradients;
        let sums = peak.sums + self.blocks.norm_sums(later);
        let mut rows = self.throughout();
        rows.push(Row::f32("block gradients", Gradients, gradients));
        rows.push(Row::f32("layer norm gradients, partial sums", Workspace, sums));
        if plan.grad_checkpoint {
            rows.extend(self.saved(block));
            rows.extend(self.blocks.saved(1));
        } else {
            rows.extend(self.saved(block + 1));
        }
        rows.push(ops.row("temporary gradients", Workspace, peak.temporary));
        rows.push(peak.partial);
        rows.push(weights.cast("weight in the activation dtype", peak.cast));
        rows.push(ops.row(DECODED, Workspace, peak.decoded));
        if ops.are_unfused() && plan.grad_checkpoint {
            // A recomputed layer holds its activated input and its output at once, before the
            // gradient of its weight exists.
            let second = self.blocks.second_layer();
            let output = self.blocks.tokens * (2 * model.width + model.ffn);
            let bytes = activation * output.saturating_sub(second.temporary);
            let bytes = bytes.saturating_sub(4 * second.gradients);
            rows.push(Row::new("recomputed block output", Workspace, bytes));
        }
        rows
    }

    /// The end of a block's backward pass, in its first layer norm: with the gradients of all its
    /// matrices, and nothing of what it saved but its input.
    pub fn block_end(&self, block: u64) -> Vec<Row> {
        let RunMemory { model, ops, .. } = self.run;
        let finished = if self.has_sums { 1 } else { model.layers - block };
        let gradients = finished * model.block_parameters();
        let sums = self.blocks.norm_sums(model.layers - block);
        let mut rows = self.throughout();
        rows.push(Row::f32("block gradients", Gradients, gradients));
        rows.push(Row::f32("layer norm gradients, partial sums", Workspace, sums));
        rows.extend(self.saved(block));
        // The input, the gradient of the output, that of the residual, and the sum of both.
        let temporary = 4 * self.blocks.tokens * model.width;
        rows.push(ops.row("temporary gradients", Workspace, temporary));
        rows
    }

    /// The end of the backward pass, at the embedding.
    pub fn embedding(&self) -> Vec<Row> {
        let RunMemory { model, ops, weights, .. } = self.run;
        if model.adapter.is_some() {
            return weights.on_device();
        }
        let of_head = if self.has_sums { model.embedding() } else { 0 };
        // Before the gradient of the positions exists, the partial sums of the layer norms do.
        let activation = self.blocks.tokens * model.width * ops.precision.activation_bytes();
        let sums = 4 * self.blocks.norm_sums(model.layers);
        let temporary = activation + activation.max(sums);
        let mut rows = weights.on_device();
        rows.push(Row::f32("gradients of all weights", Gradients, model.parameters));
        rows.push(Row::f32("embedding gradient", Gradients, of_head));
        rows.push(Row::new("temporary gradients", Workspace, temporary));
        rows
    }
}
