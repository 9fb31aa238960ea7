//! The backward pass of the model, block by block.

use burn::tensor::Tensor;

use super::block::{BlockGradients, SavedBlock};
use super::{Gpt, MicroBatch, Pass, factors, parameters, shards, site};
use crate::config::Arch;
use crate::ops::{self, CrossEntropy, HeadGradients};

/// The gradients of all weights, summed over micro-batches.
#[derive(Default)]
pub struct WeightGradients {
    /// The state of loss scaling `[4]`, if any, whose first element multiplies the gradients.
    loss_scale: Option<Tensor<1>>,
    /// Flat sums, one for each shard of each weight, in the model's order. `None` before the first
    /// micro-batch, and once a sum was given away.
    sums: Vec<Option<Tensor<1>>>,
}

impl WeightGradients {
    /// Returns zeros for the weights of `model`. If several micro-batches follow, sums that start as
    /// zeros lie next to each other in memory. Sums that start as the first micro-batch's gradients
    /// would lie between its activations, and the next activations would find no room there.
    pub fn zeros(model: &Gpt) -> Self {
        let parts = parameters(model).into_iter().flat_map(|parameter| parameter.parts);
        let zeros = |part: Tensor<1>| Some(Tensor::zeros(part.dims(), &part.device()));
        Self { loss_scale: None, sums: parts.map(zeros).collect() }
    }

    /// Scales the gradients that are added from now on. With `loss_scale`, the state of loss scaling
    /// `[4]`, its first element multiplies them instead of the scale of the loss.
    pub fn scaled(self, loss_scale: Option<Tensor<1>>) -> Self {
        Self { loss_scale, ..self }
    }

    /// Returns flat gradients, one for each shard of each weight, in the model's order.
    pub fn into_vec(self) -> Vec<Tensor<1>> {
        self.sums.into_iter().flatten().collect()
    }

    /// Adds gradients to the sums from index `first` on, in place; the first gradients become the sums.
    /// `take` gets the sums.
    fn add(
        &mut self,
        first: usize,
        grads: impl IntoIterator<Item = Tensor<1>>,
        take: &mut Option<Take<'_>>,
    ) {
        for (index, grad) in (first..).zip(grads) {
            let sum = match self.sums[index].take() {
                Some(before) => before + grad,
                None => grad,
            };
            match take {
                Some(take) => take(index, sum),
                None => self.sums[index] = Some(sum),
            }
        }
    }
}

/// Returns what a block saved, or recomputes it.
type Saved<'a> = Box<dyn FnOnce() -> SavedBlock + 'a>;

/// Takes a gradient to which nothing more is added, and its index in the model's order.
pub type Take<'a> = &'a mut dyn FnMut(usize, Tensor<1>);

impl Gpt {
    /// Returns the loss of a micro-batch as `[1]`, and adds its gradients to `sums`.
    ///
    /// With `checkpoint`, each block saves only its input, and the backward pass recomputes the block
    /// (activation checkpointing, Chen et al. 2016, arXiv:1604.06174). That is one activation per block
    /// instead of twelve, for a third more computation. Dropout is a function of its place, so both
    /// passes drop the same elements.
    ///
    /// In the last micro-batch of an update, `take` gets each sum as soon as it is final, while the
    /// backward pass continues. The linear layers come block by block, the last block first. The layer
    /// norms and the embeddings come last, because they are only complete at the end of the pass.
    pub fn add_gradients(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        checkpoint: bool,
        sums: &mut WeightGradients,
        mut take: Option<Take<'_>>,
    ) -> Tensor<1> {
        let sequences = batch.sequences;
        let time = batch.tokens.len() / batch.sequences;
        let mut x = self.embed(batch.tokens.clone(), time, pass);
        let mut saved: Vec<Saved> = Vec::new();
        for (index, block) in self.h.iter().enumerate() {
            let at = self.block_pass(index, sequences, time, pass);
            if checkpoint {
                let input = x.clone();
                x = block.infer(x, at);
                saved.push(Box::new(move || block.forward(input, at).1));
            } else {
                let (y, values) = block.forward(x, at);
                x = y;
                saved.push(Box::new(move || values));
            }
        }

        let (h, statistics) = self.ln_f.forward(x.clone(), pass.mode);
        let (value, HeadGradients { x: dh, wte: dhead }) = ops::linear_cross_entropy_gradients(
            h,
            factors(self.head_weights(), pass.mode),
            sums.loss_scale.clone(),
            batch.targets.clone(),
            loss,
            self.lora.is_none(),
            pass.mode,
        );
        let (mut dx, ln_f) = self.ln_f.backward(dh, x, statistics, None, pass.mode);

        if self.lora.is_some() {
            self.add_adapter_gradients(dx, saved, [sequences, time], pass, sums, &mut take);
            return value;
        }

        // Each layer has one weight, or two with a bias. A half of a block is a norm and two linear layers.
        // Qwen2's first half has a bias, and Qwen3's ends with the norms of q and k.
        let of_layer = if self.ln_f.bias.is_some() { 2 } else { 1 };
        let has_head_norms = self.architecture.arch() == Arch::Qwen3;
        let of_heads = if has_head_norms { 2 } else { 0 };
        let of_qkv = usize::from(self.architecture.arch() == Arch::Qwen2);
        let embeddings = self.wte.len() + usize::from(self.wpe.is_some());
        // The norm of each half, and the last one.
        let norm_at =
            |half: usize| embeddings + 3 * of_layer * half + (of_heads + of_qkv) * half.div_ceil(2);
        let head = norm_at(2 * self.h.len()) + of_layer;
        let own = self.lm_head.as_ref().map_or(0, Vec::len);
        sums.sums.resize_with(head + own, || None);
        let flat = |grad: Tensor<2>| grad.flatten::<1>(0, 1);
        // The gradient of the tokens is added to that of a tied head.
        let of_tied_head = if self.lm_head.is_some() {
            sums.add(head, dhead.into_iter().map(flat), &mut take);
            None
        } else {
            Some(dhead)
        };
        // The last layer first.
        let mut norms = vec![ln_f];
        let mut head_norms = Vec::new();
        for (index, (block, saved)) in self.h.iter().zip(saved).enumerate().rev() {
            let at = self.block_pass(index, sequences, time, pass);
            let (before, BlockGradients { linear, norms: [ln_1, ln_2], head_norms: of_heads }) =
                block.backward(dx, saved(), at);
            dx = before;
            for (half, grads) in linear.into_iter().enumerate() {
                sums.add(norm_at(2 * index + half) + of_layer, grads, &mut take);
            }
            norms.extend([ln_2, ln_1]);
            head_norms.extend(of_heads);
        }
        norms.reverse();
        let norms = ops::layer_norm_weight_gradients(norms, pass.mode);
        for (half, (gamma, beta)) in norms.into_iter().enumerate() {
            sums.add(norm_at(half), [gamma, beta].into_iter().take(of_layer), &mut take);
        }
        if has_head_norms {
            head_norms.reverse();
            let norms = ops::layer_norm_weight_gradients(head_norms, pass.mode);
            for (index, (q, k)) in norms.into_iter().enumerate() {
                sums.add(norm_at(2 * index) + 3 * of_layer, [q, k], &mut take);
            }
        }

        let dx = pass.drop_out(dx, site::EMBEDDING, time);
        let tokens = &batch.tokens;
        let zeros = |shard: Tensor<2>| Tensor::zeros(shard.dims(), &shard.device());
        let into =
            of_tied_head.unwrap_or_else(|| shards(&self.wte).into_iter().map(zeros).collect());
        let embeddings = match &self.wpe {
            Some(wpe) => {
                let positions = wpe.weight.dims()[0];
                let (shards, dwpe) =
                    ops::embed_backward(dx, into, tokens, time, positions, pass.mode);
                [shards, vec![dwpe]].concat()
            }
            None => ops::embed_tokens_backward(dx, into, tokens, pass.mode),
        };
        sums.add(0, embeddings.into_iter().map(flat), &mut take);
        value
    }

    /// Runs the backward pass of the blocks from `dx`, the gradient of the last one's output, and adds the
    /// gradients of the adapters to `sums`. Nothing before the first block is trained.
    fn add_adapter_gradients(
        &self,
        mut dx: Tensor<2>,
        saved: Vec<Saved<'_>>,
        [sequences, time]: [usize; 2],
        pass: Pass,
        sums: &mut WeightGradients,
        take: &mut Option<Take<'_>>,
    ) {
        for (index, (block, saved)) in self.h.iter().zip(saved).enumerate().rev() {
            let at = self.block_pass(index, sequences, time, pass);
            let (before, BlockGradients { linear, .. }) = block.backward(dx, saved(), at);
            dx = before;
            let grads = linear.concat();
            let first = index * grads.len();
            let all = sums.sums.len().max(first + grads.len());
            sums.sums.resize_with(all, || None);
            sums.add(first, grads, take);
        }
    }
}
