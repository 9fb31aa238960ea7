//! The backward pass of the model, block by block.

use burn::tensor::Tensor;

use super::block::{BlockGradients, SavedBlock};
use super::{Gpt, MicroBatch, Pass, parameters, site};
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
        let (sequences, time) = (batch.sequences, batch.tokens.len() / batch.sequences);
        let mut x = self.embed(batch.tokens.clone(), time, pass);
        // Each returns what its block saved, or recomputes it.
        let mut saved: Vec<Box<dyn FnOnce() -> SavedBlock + '_>> = Vec::new();
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
        let (value, HeadGradients { x: dh, wte: dwte }) = ops::linear_cross_entropy_gradients(
            h,
            self.wte.factors(pass.mode),
            sums.loss_scale.clone(),
            batch.targets.clone(),
            loss,
            pass.mode,
        );
        let (mut dx, ln_f) = self.ln_f.backward(dh, x, statistics, None, pass.mode);

        // Each layer has one weight, or two with a bias. A block has a layer norm and two linear layers,
        // twice.
        let of_layer = if self.ln_f.bias.is_some() { 2 } else { 1 };
        let half_block = |number| self.wte.weight.len() + 1 + 3 * of_layer * number;
        let halves = 2 * self.h.len();
        sums.sums.resize_with(half_block(halves) + of_layer, || None);
        // The last layer first.
        let mut norms = vec![ln_f];
        for (index, (block, saved)) in self.h.iter().zip(saved).enumerate().rev() {
            let at = self.block_pass(index, sequences, time, pass);
            let (before, BlockGradients { linear, norms: [ln_1, ln_2] }) =
                block.backward(dx, saved(), at);
            dx = before;
            for (half, grads) in linear.into_iter().enumerate() {
                sums.add(half_block(2 * index + half) + of_layer, grads, &mut take);
            }
            norms.extend([ln_2, ln_1]);
        }
        norms.reverse();
        let norms = ops::layer_norm_weight_gradients(norms, pass.mode);
        for (number, (gamma, beta)) in norms.into_iter().enumerate() {
            sums.add(half_block(number), [gamma, beta].into_iter().take(of_layer), &mut take);
        }

        let dx = pass.drop_out(dx, site::EMBEDDING, time);
        let positions = self.wpe.weight.val().dims()[0];
        let (shards, dwpe) =
            ops::embed_backward(dx, dwte, &batch.tokens, time, positions, pass.mode);
        let embeddings = shards.into_iter().chain([dwpe]).map(|grad| grad.flatten::<1>(0, 1));
        sums.add(0, embeddings, &mut take);
        value
    }
}
