//! The backward pass of the model, block by block.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::block::{BlockGradients, SavedBlock};
use super::{Gpt, MicroBatch, Pass, site};
use crate::ops::{self, CrossEntropy, HeadGradients};

/// The gradients of all weights, summed over micro-batches.
#[derive(Default)]
pub struct WeightGradients {
    /// The state of loss scaling `[4]`, if the loss is scaled. Its first element multiplies the
    /// gradients.
    loss_scale: Option<Tensor<1>>,
    embeddings: Vec<Tensor<1>>,
    /// The gradients of the linear layers of each block. Empty before the first micro-batch.
    linear: Vec<Vec<Tensor<1>>>,
    /// The gradients of the layer norms: both of each block, then the last one.
    norms: Vec<Tensor<1>>,
}

impl WeightGradients {
    /// Returns zeros for the weights of `model`. If several micro-batches follow, sums that start as
    /// zeros lie next to each other in memory. Sums that start as the first micro-batch's gradients
    /// would lie between its activations, and the next activations would find no room there.
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

    /// Scales the gradients that are added from now on. With `loss_scale`, the state of loss scaling
    /// `[4]`, its first element multiplies them instead of the scale of the loss.
    pub fn scaled(self, loss_scale: Option<Tensor<1>>) -> Self {
        Self { loss_scale, ..self }
    }

    /// Returns the gradients that [`Gpt::add_gradients`] gave away, in the model's order.
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

    /// Returns flat gradients, one for each shard of each weight, in the model's order.
    pub fn into_vec(self) -> Vec<Tensor<1>> {
        let mut all = self.embeddings;
        // Each layer has one gradient, or two with a bias.
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
    *sums = if before.is_empty() {
        grads
    } else {
        before.into_iter().zip(grads).map(|(sum, grad)| sum + grad).collect()
    };
}

/// The values that the backward pass of a block starts from. They are boxed, because a tensor takes 640
/// bytes on the host.
enum BlockStart {
    Saved(Box<SavedBlock>),
    /// The block's input alone. The backward pass recomputes the block.
    Input(Box<Tensor<2>>),
}

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
        let mut blocks = Vec::with_capacity(self.h.len());
        for (index, block) in self.h.iter().enumerate() {
            let at = self.block_pass(index, sequences, time, pass);
            if checkpoint {
                blocks.push(BlockStart::Input(Box::new(x.clone())));
                x = block.infer(x, at);
            } else {
                let (y, saved) = block.forward(x, at);
                blocks.push(BlockStart::Saved(Box::new(saved)));
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
                Some(BlockStart::Saved(saved)) => *saved,
                Some(BlockStart::Input(x)) => block.forward(*x, at).1,
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
        if let Some(take) = take {
            let norms = std::mem::take(&mut sums.norms);
            norms.into_iter().chain(std::mem::take(&mut sums.embeddings)).for_each(take);
        }
        value
    }

    /// Returns the loss, the gradient of the last block's output `x`, the gradient of the token
    /// embedding as the output head, and the partial sums of the last layer norm's gradients.
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
            sums.loss_scale.clone(),
            batch.targets.clone(),
            loss,
            pass.mode,
        );
        let (dx, ln_f) = self.ln_f.backward(dh, x, statistics, None, pass.mode);
        (value, dx, wte, ln_f)
    }
}
