//! One transformer block: its layers, its forward pass, and its backward pass written by hand.

use burn::tensor::Tensor;

use super::layers::{Linear, Norm, WeightMut};
use super::pass::{BlockPass, site};
use crate::ops::{self, Activation, AttentionShape, HeadNorms, LayerNormStatistics, RotaryShape};
use crate::plan::{Blocks, LlamaBlocks};

/// A pre-norm transformer block of GPT-2, of Llama (Touvron et al. 2023, arXiv:2302.13971), of Qwen2
/// (arXiv:2412.15115) or of Qwen3 (arXiv:2505.09388). All but GPT-2 have root mean square norms, rotated queries and
/// keys, heads that share keys and values, and a gated MLP.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub attention_norm: Norm,
    /// Queries, keys and values side by side, `[in, (heads + 2 kv_heads) size]`.
    pub qkv: Linear,
    pub attention_output: Linear,
    /// The norms of each head's queries and keys, which only Qwen3 has.
    pub head_norms: Option<[Norm; 2]>,
    pub mlp_norm: Norm,
    /// In Llama gate and up side by side, `[in, 2 ffn_size]`.
    pub mlp_input: Linear,
    pub mlp_output: Linear,
    pub shape: Blocks,
}

/// The values of a block's forward pass that its backward pass needs: in GPT-2 12 activations of `[n, c]`,
/// and the layer norm and softmax statistics.
pub(super) struct SavedBlock {
    attention: SavedAttention,
    mlp: SavedMlp,
}

struct SavedAttention {
    /// The block's input.
    x: Tensor<2>,
    statistics: LayerNormStatistics,
    /// The output of the norm.
    h: Tensor<2>,
    qkv: Tensor<2>,
    out: Tensor<2>,
    log_sum_exp: Tensor<3>,
}

pub(super) struct SavedMlp {
    /// The residual stream after attention.
    x: Tensor<2>,
    statistics: LayerNormStatistics,
    /// The output of the norm.
    h: Tensor<2>,
    /// The input of the activation, in GPT-2 `[n, 4c]`.
    pre_activation: Tensor<2>,
}

pub(super) struct BlockGradients {
    /// The gradients of what is trained of the linear layers of attention and MLP, flat, in the order of the
    /// model.
    pub linear: [Vec<Tensor<1>>; 2],
    /// The partial sums of the gradients of the norms of attention and MLP.
    pub norms: [Tensor<3>; 2],
    /// The partial sums of the gradients of the norms of q and k, if the block has them.
    pub head_norms: Option<Tensor<3>>,
}

impl Block {
    /// Lists the weights, in the order of the model.
    pub fn weights(&mut self) -> impl Iterator<Item = WeightMut<'_>> {
        let of_heads = self.head_norms.iter_mut().flatten().flat_map(Norm::weights);
        let attention = self.attention_norm.weights().chain(self.qkv.weights());
        let attention = attention.chain(self.attention_output.weights()).chain(of_heads);
        let mlp = self.mlp_norm.weights().chain(self.mlp_input.weights());
        attention.chain(mlp).chain(self.mlp_output.weights())
    }

    /// Lists the matrices of the adapters, in the order of the model.
    pub fn adapters(&mut self) -> impl Iterator<Item = WeightMut<'_>> {
        self.linear().into_iter().flat_map(Linear::adapter)
    }

    /// Returns the linear layers, in the order of the model.
    pub fn linear(&mut self) -> [&mut Linear; 4] {
        let Self { qkv, attention_output, mlp_input, mlp_output, .. } = self;
        [qkv, attention_output, mlp_input, mlp_output]
    }

    /// Returns the residual stream `[n, c]` after the block, and what `backward` needs.
    pub fn forward(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedBlock) {
        let (x, attention) = self.forward_attention(x, at);
        let (y, mlp) = self.forward_mlp(x, at);
        (y, SavedBlock { attention, mlp })
    }

    /// Returns only the residual stream after the block. At most 7 activations of GPT-2 are alive at a
    /// time, because each half frees its own at its end.
    pub fn infer(&self, x: Tensor<2>, at: BlockPass) -> Tensor<2> {
        let x = self.forward_attention(x, at).0;
        self.forward_mlp(x, at).0
    }

    /// Returns the gradients of the block's input and weights from `dy`, the gradient of its output.
    pub fn backward(
        &self,
        dy: Tensor<2>,
        saved: SavedBlock,
        at: BlockPass,
    ) -> (Tensor<2>, BlockGradients) {
        let SavedBlock { attention, mlp } = saved;
        let mode = at.pass.mode;
        let SavedMlp { x, statistics, h, pre_activation } = mlp;
        let d = at.drop_out(dy.clone(), site::MLP_OUTPUT);
        let (d, of_output) = self.mlp_output.backward(d, pre_activation, self.activation(), at);
        let (dh, of_input) = self.mlp_input.backward(d, h, None, at);
        let (dy, mlp_norm) = self.mlp_norm.backward(dh, x, statistics, Some(dy), mode);
        let of_mlp = [of_input, of_output].concat();

        let SavedAttention { x, statistics, h, qkv, out, log_sum_exp } = attention;
        let d = at.drop_out(dy.clone(), site::ATTENTION_OUTPUT);
        let (dout, of_output) = self.attention_output.backward(d, out.clone(), None, at);
        let (dqkv, head_norms) = self.attention_backward(dout, qkv, out, log_sum_exp, at);
        let (dh, of_input) = self.qkv.backward(dqkv, h, None, at);
        let (dx, attention_norm) = self.attention_norm.backward(dh, x, statistics, Some(dy), mode);
        let linear = [[of_input, of_output].concat(), of_mlp];
        (dx, BlockGradients { linear, norms: [attention_norm, mlp_norm], head_norms })
    }

    fn forward_attention(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedAttention) {
        let mode = at.pass.mode;
        let (h, statistics) = self.attention_norm.forward(x.clone(), mode);
        let qkv = self.qkv.forward(h.clone(), None, None, at);
        // The gradients of head norms need their input. Without norms, the rotation is in place.
        let normed = self.head_norms.as_ref().map(|_| qkv.clone());
        let rotated = self.rotate(qkv, at);
        let (out, log_sum_exp) = ops::attention(rotated.clone(), self.attention(at), mode);
        let qkv = normed.unwrap_or(rotated);
        let site = site::ATTENTION_OUTPUT;
        let y = self.attention_output.add_to(x.clone(), out.clone(), None, site, at);
        (y, SavedAttention { x, statistics, h, qkv, out, log_sum_exp })
    }

    /// Returns the gradient of qkv, and the partial sums of the gradients of the norms of q and k.
    fn attention_backward(
        &self,
        dout: Tensor<2>,
        qkv: Tensor<2>,
        out: Tensor<2>,
        log_sum_exp: Tensor<3>,
        at: BlockPass,
    ) -> (Tensor<2>, Option<Tensor<3>>) {
        let mode = at.pass.mode;
        let norms = self.head_norm_weights();
        let (rotated, qkv) = match norms {
            Some(_) => (self.rotate(qkv.clone(), at), Some(qkv)),
            None => (qkv, None),
        };
        let shape = self.attention(at);
        let dqkv = ops::attention_backward(dout, rotated, out, log_sum_exp, shape, mode);
        match self.rotary(at) {
            Some(rotary) => ops::rotary_backward(dqkv, qkv, norms, rotary, mode),
            None => (dqkv, None),
        }
    }

    pub fn forward_mlp(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedMlp) {
        let (h, statistics) = self.mlp_norm.forward(x.clone(), at.pass.mode);
        let pre_activation = self.mlp_input.forward(h.clone(), None, None, at);
        let activation = self.activation();
        let site = site::MLP_OUTPUT;
        let y = self.mlp_output.add_to(x.clone(), pre_activation.clone(), activation, site, at);
        (y, SavedMlp { x, statistics, h, pre_activation })
    }

    fn activation(&self) -> Option<Activation> {
        Some(match self.shape {
            Blocks::Gpt2 { gelu, .. } => gelu.into(),
            Blocks::Llama(_) => Activation::SwiGlu,
        })
    }

    fn attention(&self, at: BlockPass) -> AttentionShape {
        AttentionShape {
            batch: at.sequences,
            time: at.time,
            heads: at.heads,
            kv_heads: match self.shape {
                Blocks::Gpt2 { .. } => at.heads,
                Blocks::Llama(LlamaBlocks { kv_heads, .. }) => kv_heads,
            },
            dropout: at.dropout(site::ATTENTION),
        }
    }

    /// Normalises, in Qwen3, and rotates the queries and keys of whole sequences, if the model does.
    fn rotate(&self, qkv: Tensor<2>, at: BlockPass) -> Tensor<2> {
        match self.rotary(at) {
            Some(rotary) => ops::rotary(qkv, self.head_norm_weights(), rotary, at.pass.mode),
            None => qkv,
        }
    }

    fn head_norm_weights(&self) -> Option<HeadNorms> {
        let [q, k] = self.head_norms.as_ref()?.each_ref().map(|norm| norm.weight.clone());
        Some(HeadNorms { q, k })
    }

    fn rotary(&self, at: BlockPass) -> Option<RotaryShape> {
        let Blocks::Llama(shape) = self.shape else { return None };
        let LlamaBlocks { kv_heads, rope_theta, rope_scaling: scaling, norm_eps, .. } = shape;
        let [theta, eps] = [rope_theta, norm_eps].map(|number| number as f32);
        Some(RotaryShape { time: at.time, heads: at.heads, kv_heads, theta, scaling, eps })
    }
}
