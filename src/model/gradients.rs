//! The backward pass of the model, block by block.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::block::{BlockGradients, Saved};
use super::{Gpt, MicroBatch, Pass, site};
use crate::ops::{self, CrossEntropy, HeadGradients};

/// The gradients of all weights, summed over micro-batches.
#[derive(Default)]
pub struct WeightGradients {
    /// The state of loss scaling `[4]`, whose first element the gradients are multiplied by, if the
    /// loss is scaled.
    loss_scale: Option<Tensor<1>>,
    embeddings: Vec<Tensor<1>>,
    /// Of the linear layers, by block, the first block first; empty before the first micro-batch.
    linear: Vec<Vec<Tensor<1>>>,
    /// Of the layer norms: both of each block, then the last one.
    norms: Vec<Tensor<1>>,
}

impl WeightGradients {
    /// Zeros for the weights of `model`. Where several micro-batches follow, starting with zeros
    /// puts the sums beside each other in memory: sums that start as the first micro-batch's
    /// gradients are scattered over the memory of its activations, and the next ones find no room
    /// there.
    pub fn zeros(model: &Gpt) -> Self {
        fn of(module: &impl Module) -> Vec<Tensor<1>> {
            struct Zeros(Vec<Tensor<1>>);

            impl ModuleVisitor for Zeros {
                fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                    let value = param.val();
                    let elements = value.shape().num_elements();
                    self.0.push(Tensor::zeros([elements], &value.device()));
                }
            }

            let mut zeros = Zeros(Vec::new());
            module.visit(&mut zeros);
            zeros.0
        }
        let embeddings = of(&model.wte).into_iter().chain(of(&model.wpe)).collect();
        let linear = model.h.iter().map(|block| [of(&block.attn), of(&block.mlp)].concat());
        let norms = model.h.iter().flat_map(|block| [&block.ln_1, &block.ln_2]);
        let norms = norms.chain([&model.ln_f]).flat_map(of).collect();
        Self { loss_scale: None, embeddings, linear: linear.collect(), norms }
    }

    /// Scales the gradients that are added from here on. With `loss_scale`, the state of loss scaling
    /// `[4]`, they are multiplied by its first element and not by the scale of the loss.
    pub fn scaled(self, loss_scale: Option<Tensor<1>>) -> Self {
        Self { loss_scale, ..self }
    }

    /// Returns the gradients that [`Gpt::last_gradients`] has given away, in the model's order.
    pub fn in_model_order(given: Vec<Tensor<1>>, model: &Gpt) -> Vec<Tensor<1>> {
        let blocks = model.h.len();
        let of_layer = if model.ln_f.bias.is_some() { 2 } else { 1 };
        let mut given = given.into_iter();
        let mut block = || given.by_ref().take(LINEAR_LAYERS * of_layer).collect();
        let mut linear: Vec<Vec<_>> = (0..blocks).map(|_| block()).collect();
        linear.reverse();
        let norms = given.by_ref().take((2 * blocks + 1) * of_layer).collect();
        Self { loss_scale: None, embeddings: given.collect(), linear, norms }.into_vec()
    }

    /// Flat, one tensor for each shard of each weight, in the model's order.
    pub fn into_vec(self) -> Vec<Tensor<1>> {
        let mut all = self.embeddings;
        // One for each layer, or two with a bias.
        let of_layer = self.norms.len() / (2 * self.linear.len() + 1);
        let mut norms = self.norms.into_iter();
        for linear in self.linear {
            let mut linear = linear.into_iter();
            // A layer norm and two linear layers, twice.
            for _ in 0..2 {
                all.extend(norms.by_ref().take(of_layer));
                all.extend(linear.by_ref().take(2 * of_layer));
            }
        }
        all.extend(norms);
        all
    }
}

/// The linear layers of a block.
const LINEAR_LAYERS: usize = 4;

/// Takes a gradient to which nothing more is added.
pub type Take<'a> = &'a mut dyn FnMut(Tensor<1>);

/// Adds to sums, in place; the first gradients become the sums.
fn add(sums: &mut Vec<Tensor<1>>, grads: Vec<Tensor<1>>) {
    let before = std::mem::take(sums);
    *sums = match before.is_empty() {
        true => grads,
        false => before.into_iter().zip(grads).map(|(sum, grad)| sum + grad).collect(),
    };
}

/// The start of a block's backward pass. A tensor takes 640 bytes on the host: both are boxed.
enum Checkpoint {
    /// All that the block saved.
    Saved(Box<Saved>),
    /// Only the block's input: the block is recomputed in the backward pass.
    Input(Box<Tensor<2>>),
}

impl Gpt {
    /// Returns the loss of a micro-batch as `[1]`, and adds its gradients to `sums`.
    ///
    /// With `checkpoint`, only the input of each block is saved, and the block is recomputed in the
    /// backward pass (activation checkpointing, Chen et al. 2016, arXiv:1604.06174): one activation
    /// per block instead of twelve, for a third more computation. Dropout is a function of its
    /// place, so both passes drop out the same elements.
    pub fn add_gradients(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        checkpoint: bool,
        sums: &mut WeightGradients,
    ) -> Tensor<1> {
        self.gradients(batch, loss, pass, checkpoint, sums, None)
    }

    /// As [`add_gradients`](Self::add_gradients), for the last micro-batch of an update: gives each sum
    /// to `take` as soon as it is final, while the backward pass goes on. Those of the linear
    /// layers come block by block, the last block first, then those of the layer norms and of the
    /// embeddings, of which a part is known only at the end of the pass.
    pub fn last_gradients(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        checkpoint: bool,
        mut sums: WeightGradients,
        take: Take<'_>,
    ) -> Tensor<1> {
        let value = self.gradients(batch, loss, pass, checkpoint, &mut sums, Some(&mut *take));
        let WeightGradients { norms, embeddings, .. } = sums;
        norms.into_iter().chain(embeddings).for_each(take);
        value
    }

    fn gradients(
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
        let mut blocks = Vec::with_capacity(self.h.len());
        for (index, block) in self.h.iter().enumerate() {
            let at = self.block_pass(index, sequences, time, pass);
            if checkpoint {
                blocks.push(Checkpoint::Input(Box::new(x.clone())));
                x = block.infer(x, at);
            } else {
                let (y, saved) = block.forward(x, at);
                blocks.push(Checkpoint::Saved(Box::new(saved)));
                x = y;
            }
        }

        let (value, mut dx, dwte, ln_f) = self.backward_head(x, batch, loss, pass, sums);

        // The last layer first.
        let mut norms = vec![ln_f];
        sums.linear.resize_with(self.h.len(), Vec::new);
        for (index, block) in self.h.iter().enumerate().rev() {
            let at = self.block_pass(index, sequences, time, pass);
            let saved = match blocks.pop() {
                Some(Checkpoint::Saved(saved)) => *saved,
                Some(Checkpoint::Input(x)) => block.forward(*x, at).1,
                None => break,
            };
            let (before, grads) = block.backward(dx, saved, at);
            let BlockGradients { linear, norms: [ln_1, ln_2] } = grads;
            dx = before;
            add(&mut sums.linear[index], linear);
            if let Some(take) = &mut take {
                std::mem::take(&mut sums.linear[index]).into_iter().for_each(&mut **take);
            }
            norms.extend([ln_2, ln_1]);
        }
        norms.reverse();
        let norms = ops::layer_norm_weight_gradients(norms, pass.mode);
        let weights = if self.ln_f.bias.is_some() { 2 } else { 1 };
        let norms = norms.into_iter().flat_map(|both| both.into_iter().take(weights));
        add(&mut sums.norms, norms.collect());

        if let Some(dropout) = pass.dropout(site::EMBEDDING) {
            dx = ops::dropout(dx, None, time, dropout, pass.mode);
        }
        let positions = self.wpe.weight.val().dims()[0];
        let (shards, dwpe) =
            ops::embed_backward(dx, dwte, &batch.tokens, time, positions, pass.mode);
        let embeddings = shards.into_iter().chain([dwpe]).map(|grad| grad.flatten::<1>(0, 1));
        add(&mut sums.embeddings, embeddings.collect());
        value
    }

    /// Returns the loss, the gradient of the last block's output `x`, the output head's gradient of
    /// the token embedding, and the partial sums of the gradients of the last layer norm.
    fn backward_head(
        &self,
        x: Tensor<2>,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        sums: &WeightGradients,
    ) -> (Tensor<1>, Tensor<2>, Vec<Tensor<2>>, Tensor<3>) {
        let (h, statistics) = self.ln_f.forward(x.clone(), pass.mode);
        let (value, HeadGradients { x: dh, wte }) = ops::linear_cross_entropy_gradients(
            h,
            self.wte.factors(pass.mode),
            batch.targets.clone(),
            loss,
            sums.loss_scale.clone(),
            pass.mode,
        );
        let (dx, ln_f) = self.ln_f.backward(dh, x, statistics, None, pass.mode);
        (value, dx, wte, ln_f)
    }
}
