//! The backward pass, block by block.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use super::{Gpt, MicroBatch, Pass};
use crate::ops::{self, CrossEntropy};

/// The gradients of all weights, summed over micro-batches.
#[derive(Default)]
pub struct WeightGradients {
    embeddings: Vec<Tensor<1>>,
    /// Of each block that has any, the first block first.
    blocks: Vec<Vec<Tensor<1>>>,
    ln_f: Vec<Tensor<1>>,
}

impl WeightGradients {
    /// Zeros for the weights of `model`. To begin with them, where several micro-batches follow, puts
    /// the sums beside each other in memory: sums that begin as the first micro-batch's gradients
    /// lie scattered over what its activations leave, and the next one's find no room there.
    pub fn zeros(model: &Gpt) -> Self {
        fn of(module: &impl Module) -> Vec<Tensor<1>> {
            struct Zeros(Vec<Tensor<1>>);

            impl ModuleVisitor for Zeros {
                fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                    let value = param.val().inner();
                    let elements = value.shape().num_elements();
                    self.0.push(Tensor::zeros([elements], &value.device()));
                }
            }

            let mut zeros = Zeros(Vec::new());
            module.visit(&mut zeros);
            zeros.0
        }
        let embeddings = of(&model.wte).into_iter().chain(of(&model.wpe)).collect();
        Self { embeddings, blocks: model.h.iter().map(of).collect(), ln_f: of(&model.ln_f) }
    }

    /// Flat, one for each part of each weight, in the model's order.
    pub fn into_vec(self) -> Vec<Tensor<1>> {
        let blocks = self.blocks.into_iter().flatten();
        self.embeddings.into_iter().chain(blocks).chain(self.ln_f).collect()
    }
}

/// Adds to sums, in place; the first ones become the sums.
fn add(sums: &mut Vec<Tensor<1>>, grads: Vec<Tensor<1>>) {
    let former = std::mem::take(sums);
    *sums = match former.is_empty() {
        true => grads,
        false => former.into_iter().zip(grads).map(|(sum, grad)| sum + grad).collect(),
    };
}

/// What the backward pass of a block begins with.
struct Kept {
    /// The block's input: a leaf of its graph, or, to run it again, without autodiff.
    input: Tensor<2>,
    /// Its output, which holds all that is between.
    graph: Option<Tensor<2>>,
}

impl Gpt {
    /// The loss of a micro-batch as `[1]` without autodiff; its gradients are added to `sums`.
    ///
    /// Each block is a graph of its own, so that its gradients join their sums, and its memory is
    /// free, before the next block's turn. With `checkpoint`, only the input of a block is kept, and
    /// the block is run again (Chen et al. 2016, arXiv:1604.06174): of the activations, one for each
    /// block instead of twelve, for a third more computation. Dropout is a function of its place, so
    /// that the second run drops out the same.
    pub fn add_gradients(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        checkpoint: bool,
        sums: &mut WeightGradients,
    ) -> Tensor<1> {
        let time = batch.tokens.len() / batch.sequences;
        let plain = self.valid();
        let mut x = plain.embedded(batch.tokens.clone(), time, pass);
        let mut blocks = Vec::new();
        for index in 0..self.h.len() {
            if checkpoint {
                blocks.push(Kept { input: x.clone(), graph: None });
                x = plain.block(index, x, batch.sequences, pass);
            } else {
                let input = Tensor::from_inner(x).require_grad();
                let y = self.block(index, input.clone(), batch.sequences, pass);
                x = y.clone().inner();
                blocks.push(Kept { input, graph: Some(y) });
            }
        }
        // The optimizer writes in place what nobody else holds.
        drop(plain);

        let end = Tensor::from_inner(x).require_grad();
        let value = self.loss_of(end.clone(), batch, loss, pass);
        let mut of_head = value.backward();
        let mut dx = taken(&end, &mut of_head);
        drop(end);
        add(&mut sums.ln_f, flat(&self.ln_f, &mut of_head));

        sums.blocks.resize_with(self.h.len(), Vec::new);
        for (index, Kept { input, graph }) in blocks.into_iter().enumerate().rev() {
            let (x, y) = match graph {
                Some(y) => (input, y),
                None => {
                    let x = Tensor::from_inner(input).require_grad();
                    let y = self.block(index, x.clone(), batch.sequences, pass);
                    (x, y)
                }
            };
            // burn begins a backward pass with ones: the gradient of this sum by y is dx.
            let mut gradients = (y * Tensor::from_inner(dx)).sum().backward();
            dx = taken(&x, &mut gradients);
            add(&mut sums.blocks[index], flat(&self.h[index], &mut gradients));
        }

        let of_head = self.wte.tables().iter().map(|table| taken(table, &mut of_head)).collect();
        if let Some(dropout) = pass.dropout(super::site::EMBEDDING) {
            dx = ops::dropout(dx, None, time, dropout, pass.mode);
        }
        let positions = self.wpe.weight.val().dims()[0];
        let (tables, dwpe) =
            ops::embed_gradients(dx, of_head, &batch.tokens, time, positions, pass.mode);
        let embeddings = tables.into_iter().chain([dwpe]).map(|grad| grad.flatten::<1>(0, 1));
        add(&mut sums.embeddings, embeddings.collect());
        value.inner()
    }
}

/// A leaf's gradient. Every leaf takes part in every pass, so there always is one.
fn taken<const D: usize>(leaf: &Tensor<D>, gradients: &mut Gradients) -> Tensor<D> {
    leaf.grad_remove(gradients).unwrap_or_else(|| leaf.clone().inner().zeros_like())
}

/// The gradients of a module's weights, flat, in its order.
fn flat(module: &impl Module, gradients: &mut Gradients) -> Vec<Tensor<1>> {
    struct Collect<'a> {
        gradients: &'a mut Gradients,
        found: Vec<Tensor<1>>,
    }

    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = taken(&param.val(), self.gradients);
            let elements = grad.shape().num_elements();
            self.found.push(grad.reshape([elements]));
        }
    }

    let mut collect = Collect { gradients, found: Vec::new() };
    module.visit(&mut collect);
    collect.found
}
