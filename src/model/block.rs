//! One transformer block: its layers, its forward pass, and its backward pass written by hand.
//! `llama_block.rs` has Llama's and Qwen3's.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::half_weights::factor;
use super::llama_block::{GatedMlp, LlamaBlock};
use super::{Pass, site};
use crate::config::Gelu;
use crate::ops::{
    self, Activation, AttentionShape, LayerNormStatistics, LinearGradients, NormForm, OpsMode,
};

/// Weights of a linear layer in Hugging Face's Conv1D layout, `[in, out]`.
#[derive(Module, Debug)]
pub(super) struct Conv1d {
    pub(super) weight: Param<Tensor<2>>,
    pub(super) bias: Option<Param<Tensor<1>>>,
    /// The copy of `weight` in half precision, if the model keeps one.
    #[module(skip)]
    pub(super) half: Option<Tensor<2>>,
}

#[derive(Module, Debug)]
pub(super) struct Norm {
    pub(super) weight: Param<Tensor<1>>,
    pub(super) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(super) form: NormForm,
}

#[derive(Module, Debug)]
pub(super) struct SelfAttention {
    pub(super) c_attn: Conv1d,
    pub(super) c_proj: Conv1d,
}

#[derive(Module, Debug)]
pub(super) struct Mlp {
    pub(super) c_fc: Conv1d,
    pub(super) c_proj: Conv1d,
}

/// A block in the shape of its model.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "all blocks of a model are of one shape")]
pub(super) enum Block {
    Gpt2(Gpt2Block),
    Llama(LlamaBlock),
}

/// One pre-norm transformer block. Its fields have the names and the order of Hugging Face's GPT-2, so
/// a visitor's path is the name of the weight.
#[derive(Module, Debug)]
pub(super) struct Gpt2Block {
    pub(super) ln_1: Norm,
    pub(super) attn: SelfAttention,
    pub(super) ln_2: Norm,
    pub(super) mlp: Mlp,
    #[module(skip)]
    pub(super) gelu: Gelu,
}

/// The options of a pass through one block.
#[derive(Clone, Copy)]
pub(super) struct BlockPass {
    pub pass: Pass,
    /// The block's number, from 0.
    pub index: usize,
    pub sequences: usize,
    /// The positions of a sequence.
    pub time: usize,
    pub heads: usize,
}

/// The values of a block's forward pass that its backward pass needs: in GPT-2 12 activations of `[n, c]`,
/// and the layer norm and softmax statistics.
pub(super) struct SavedBlock {
    pub attention: SavedAttention,
    pub mlp: SavedMlp,
}

/// The values that the attention half of a block saves.
pub(super) struct SavedAttention {
    /// The block's input.
    pub x: Tensor<2>,
    pub ln_1: LayerNormStatistics,
    /// The output of `ln_1`.
    pub h: Tensor<2>,
    pub qkv: Tensor<2>,
    pub out: Tensor<2>,
    pub log_sum_exp: Tensor<3>,
}

/// The values that the MLP half of a block saves.
pub(super) struct SavedMlp {
    /// The residual stream between the halves.
    pub x: Tensor<2>,
    pub ln_2: LayerNormStatistics,
    /// The output of `ln_2`.
    pub h: Tensor<2>,
    /// The input of the activation, in GPT-2 `[n, 4c]`.
    pub pre_activation: Tensor<2>,
}

pub(super) struct BlockGradients {
    /// The gradients of the linear layers of attention and MLP, flat, in the order of their fields.
    pub linear: [Vec<Tensor<1>>; 2],
    /// The partial sums of the gradients of `ln_1` and `ln_2`.
    pub norms: [Tensor<3>; 2],
    /// The partial sums of the gradients of the norms of q and k, if the block has them.
    pub head_norms: Option<Tensor<3>>,
}

impl Block {
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
        let (norm, c_fc, c_proj, activation) = self.mlp_layers();
        let SavedMlp { x, ln_2, h, pre_activation } = mlp;
        let d = at.pass.drop_out(dy.clone(), site::mlp_projection(at.index), at.time);
        let (d, mlp_proj) = c_proj.backward(d, pre_activation, activation, mode);
        let (dh, c_fc) = c_fc.backward(d, h, None, mode);
        let (dy, ln_2) = norm.backward(dh, x, ln_2, Some(dy), mode);

        let (norm, c_attn, c_proj) = self.attention_layers();
        let SavedAttention { x, ln_1, h, qkv, out, log_sum_exp } = attention;
        let d = at.pass.drop_out(dy.clone(), site::attention_projection(at.index), at.time);
        let (dout, c_proj) = c_proj.backward(d, out.clone(), None, mode);
        let (dqkv, head_norms) = match self {
            Self::Gpt2(_) => {
                let shape = at.attention(at.heads);
                (ops::attention_backward(dout, qkv, out, log_sum_exp, shape, mode), None)
            }
            Self::Llama(block) => block.attention_backward(dout, qkv, out, log_sum_exp, at),
        };
        let (dh, c_attn) = c_attn.backward(dqkv, h, None, mode);
        let (dx, ln_1) = norm.backward(dh, x, ln_1, Some(dy), mode);
        let linear = [[c_attn, c_proj].concat(), [c_fc, mlp_proj].concat()];
        (dx, BlockGradients { linear, norms: [ln_1, ln_2], head_norms })
    }

    fn forward_attention(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedAttention) {
        let mode = at.pass.mode;
        let (norm, c_attn, c_proj) = self.attention_layers();
        let (h, ln_1) = norm.forward(x.clone(), mode);
        let qkv = c_attn.forward(h.clone(), None, None, mode);
        let (qkv, (out, log_sum_exp)) = match self {
            Self::Gpt2(_) => (qkv.clone(), ops::attention(qkv, at.attention(at.heads), mode)),
            Self::Llama(block) => block.attention(qkv, at),
        };
        let site = site::attention_projection(at.index);
        let y = c_proj.add_to(x.clone(), out.clone(), None, site, at);
        (y, SavedAttention { x, ln_1, h, qkv, out, log_sum_exp })
    }

    pub(super) fn forward_mlp(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedMlp) {
        let (norm, c_fc, c_proj, activation) = self.mlp_layers();
        let (h, ln_2) = norm.forward(x.clone(), at.pass.mode);
        let pre_activation = c_fc.forward(h.clone(), None, None, at.pass.mode);
        let site = site::mlp_projection(at.index);
        let y = c_proj.add_to(x.clone(), pre_activation.clone(), activation, site, at);
        (y, SavedMlp { x, ln_2, h, pre_activation })
    }

    /// Returns the layers of the MLP: the norm before it, its first product, and the projection of the
    /// activation's output.
    fn mlp_layers(&self) -> (&Norm, &Conv1d, &Conv1d, Option<Activation>) {
        match self {
            Self::Gpt2(Gpt2Block { ln_2, mlp, gelu, .. }) => {
                (ln_2, &mlp.c_fc, &mlp.c_proj, Some((*gelu).into()))
            }
            Self::Llama(LlamaBlock { post_attention_layernorm, mlp, .. }) => {
                let GatedMlp { gate_up_proj, down_proj } = mlp;
                (post_attention_layernorm, gate_up_proj, down_proj, Some(Activation::SwiGlu))
            }
        }
    }

    /// Returns the layers around attention: the norm before it, the product that gives q, k and v, and
    /// the projection of its output.
    pub(super) fn attention_layers(&self) -> (&Norm, &Conv1d, &Conv1d) {
        match self {
            Self::Gpt2(Gpt2Block { ln_1, attn, .. }) => (ln_1, &attn.c_attn, &attn.c_proj),
            Self::Llama(LlamaBlock { input_layernorm, self_attn, .. }) => {
                (input_layernorm, &self_attn.qkv_proj, &self_attn.o_proj)
            }
        }
    }

    /// Returns the norms of each head's queries and keys, if the block has them.
    pub(super) fn head_norms(&self) -> [Option<&Norm>; 2] {
        match self {
            Self::Gpt2(_) => [None, None],
            Self::Llama(LlamaBlock { self_attn, .. }) => {
                [self_attn.q_norm.as_ref(), self_attn.k_norm.as_ref()]
            }
        }
    }

    /// Returns the linear layers, in the order of the model.
    pub(super) fn linear_layers(&mut self) -> [&mut Conv1d; 4] {
        match self {
            Self::Gpt2(Gpt2Block { attn, mlp, .. }) => {
                [&mut attn.c_attn, &mut attn.c_proj, &mut mlp.c_fc, &mut mlp.c_proj]
            }
            Self::Llama(LlamaBlock { self_attn, mlp, .. }) => [
                &mut self_attn.qkv_proj,
                &mut self_attn.o_proj,
                &mut mlp.gate_up_proj,
                &mut mlp.down_proj,
            ],
        }
    }
}

impl BlockPass {
    /// Returns the shape of attention with this number of heads of keys and values.
    pub fn attention(&self, kv_heads: usize) -> AttentionShape {
        AttentionShape {
            batch: self.sequences,
            time: self.time,
            heads: self.heads,
            kv_heads,
            dropout: self.pass.dropout(site::attention(self.index)),
        }
    }
}

impl Conv1d {
    pub fn forward(
        &self,
        x: Tensor<2>,
        residual: Option<Tensor<2>>,
        activation: Option<Activation>,
        mode: OpsMode,
    ) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        let weight = factor(&self.weight, &self.half, mode);
        ops::linear(x, weight, bias, residual, activation, mode)
    }

    /// `residual + dropout(self(activation(x)))`.
    pub fn add_to(
        &self,
        residual: Tensor<2>,
        x: Tensor<2>,
        activation: Option<Activation>,
        site: u32,
        at: BlockPass,
    ) -> Tensor<2> {
        match at.pass.dropout(site) {
            Some(dropout) => {
                let y = self.forward(x, None, activation, at.pass.mode);
                ops::dropout(y, Some(residual), at.time, dropout, at.pass.mode)
            }
            None => self.forward(x, Some(residual), activation, at.pass.mode),
        }
    }

    /// Returns the gradients of the input `x` and of the weights, flat, from `dy`.
    pub fn backward(
        &self,
        dy: Tensor<2>,
        x: Tensor<2>,
        activation: Option<Activation>,
        mode: OpsMode,
    ) -> (Tensor<2>, Vec<Tensor<1>>) {
        let has_bias = self.bias.is_some();
        let weight = factor(&self.weight, &self.half, mode);
        let LinearGradients { x, w, b } =
            ops::linear_backward(dy, x, weight, activation, has_bias, mode);
        (x, [w.flatten(0, 1)].into_iter().chain(b).collect())
    }
}

impl Norm {
    /// Returns the output, and the statistics for the backward pass.
    pub fn forward(&self, x: Tensor<2>, mode: OpsMode) -> (Tensor<2>, LayerNormStatistics) {
        let bias = self.bias.as_ref().map(Param::val);
        ops::layer_norm(x, self.weight.val(), bias, self.form, mode)
    }

    /// Returns the gradient of the input `x`, with `residual` added, and the partial sums of the
    /// weights' gradients, from `dy`.
    pub fn backward(
        &self,
        dy: Tensor<2>,
        x: Tensor<2>,
        statistics: LayerNormStatistics,
        residual: Option<Tensor<2>>,
        mode: OpsMode,
    ) -> (Tensor<2>, Tensor<3>) {
        let weight = self.weight.val();
        ops::layer_norm_backward(dy, x, weight, statistics, residual, self.form, mode)
    }
}
