//! The backward pass: of a whole forward pass, or block by block.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use super::{Gpt, MicroBatch, Pass};
use crate::ops::{self, CrossEntropy};

impl Gpt {
    /// The loss of a micro-batch as `[1]` without autodiff, and the gradients of all weights: flat,
    /// one for each part of each weight, in the model's order.
    ///
    /// With `checkpoint`, only the input of each block is kept, and the block is run again for its
    /// gradients (Chen et al. 2016, arXiv:1604.06174): of the activations, one for each block
    /// instead of twelve, for a third more computation. Dropout is a function of its place, so that
    /// the second run drops out the same, and the gradients are the same.
    pub fn gradients(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
        checkpoint: bool,
    ) -> (Tensor<1>, Vec<Tensor<1>>) {
        if checkpoint {
            return self.gradients_by_block(batch, loss, pass);
        }
        let value = self.loss(batch, loss, pass);
        let mut gradients = value.backward();
        (value.inner(), flat(self, &mut gradients))
    }

    fn gradients_by_block(
        &self,
        batch: &MicroBatch,
        loss: CrossEntropy,
        pass: Pass,
    ) -> (Tensor<1>, Vec<Tensor<1>>) {
        let time = batch.tokens.len() / batch.sequences;
        let plain = self.valid();
        let mut x = plain.embedded(batch.tokens.clone(), time, pass);
        let mut inputs = Vec::new();
        for index in 0..self.h.len() {
            inputs.push(x.clone());
            x = plain.block(index, x, batch.sequences, pass);
        }
        drop(plain);

        let end = Tensor::from_inner(x).require_grad();
        let value = self.loss_of(end.clone(), batch, loss, pass);
        let mut of_head = value.backward();
        let mut dx = taken(&end, &mut of_head);
        drop(end);
        let of_ln_f = flat(&self.ln_f, &mut of_head);

        let mut of_blocks = Vec::new();
        for (index, input) in inputs.into_iter().enumerate().rev() {
            let input = Tensor::from_inner(input).require_grad();
            let y = self.block(index, input.clone(), batch.sequences, pass);
            // burn begins a backward pass with ones: the gradient of this sum by y is dx.
            let mut gradients = (y * Tensor::from_inner(dx)).sum().backward();
            dx = taken(&input, &mut gradients);
            of_blocks.push(flat(&self.h[index], &mut gradients));
        }

        let of_head: Vec<Tensor<2>> =
            self.wte.tables().iter().map(|table| taken(table, &mut of_head)).collect();
        let dx = match pass.dropout(super::site::EMBEDDING) {
            Some(dropout) => ops::dropout(dx, None, time, dropout, pass.mode),
            None => dx,
        };
        let positions = self.wpe.weight.val().dims()[0];
        let (tables, dwpe) =
            ops::embed_gradients(dx, of_head, &batch.tokens, time, positions, pass.mode);
        let embeddings = tables.into_iter().chain([dwpe]).map(|grad| grad.flatten::<1>(0, 1));
        let blocks = of_blocks.into_iter().rev().flatten();
        (value.inner(), embeddings.chain(blocks).chain(of_ln_f).collect())
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
