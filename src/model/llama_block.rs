//! The transformer block of Llama (Touvron et al. 2023, arXiv:2302.13971) and of Qwen3 (arXiv:2505.09388):
//! root mean square norms, rotated queries and keys, heads that share keys and values, and a gated MLP.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::block::{BlockGradients, BlockPass, Conv1d, Norm, SavedAttention, SavedBlock, SavedMlp};
use super::site;
use crate::ops::{self, Activation, HeadNorms, RotaryShape};
use crate::plan::LlamaBlocks;

/// Queries, keys and values side by side are one product, `[in, (heads + 2 kv_heads) size]`.
#[derive(Module, Debug)]
pub(super) struct LlamaAttention {
    pub(super) qkv_proj: Conv1d,
    pub(super) o_proj: Conv1d,
    /// The norms of each head's queries and keys, which only Qwen3 has.
    pub(super) q_norm: Option<Norm>,
    pub(super) k_norm: Option<Norm>,
}

/// Gate and up side by side are one product, `[in, 2 ffn_size]`.
#[derive(Module, Debug)]
pub(super) struct GatedMlp {
    pub(super) gate_up_proj: Conv1d,
    pub(super) down_proj: Conv1d,
}

#[derive(Module, Debug)]
pub(super) struct LlamaBlock {
    pub(super) input_layernorm: Norm,
    pub(super) self_attn: LlamaAttention,
    pub(super) post_attention_layernorm: Norm,
    pub(super) mlp: GatedMlp,
    #[module(skip)]
    pub(super) shape: LlamaBlocks,
}

const SWIGLU: Option<Activation> = Some(Activation::SwiGlu);

impl LlamaBlock {
    pub(super) fn backward(
        &self,
        dy: Tensor<2>,
        saved: SavedBlock,
        at: BlockPass,
    ) -> (Tensor<2>, BlockGradients) {
        let (SavedBlock { attention, mlp }, mode) = (saved, at.pass.mode);
        let SavedMlp { x, ln_2, h, pre_activation } = mlp;
        let d = at.pass.drop_out(dy.clone(), site::mlp_projection(at.index), at.time);
        let (d, down) = self.mlp.down_proj.backward(d, pre_activation, SWIGLU, mode);
        let (dh, gate_up) = self.mlp.gate_up_proj.backward(d, h, None, mode);
        let norm = &self.post_attention_layernorm;
        let (dy, ln_2) = norm.backward(dh, x, ln_2, Some(dy), mode);

        let SavedAttention { x, ln_1, h, qkv, out, log_sum_exp } = attention;
        let d = at.pass.drop_out(dy.clone(), site::attention_projection(at.index), at.time);
        let (dout, o) = self.self_attn.o_proj.backward(d, out.clone(), None, mode);
        let (norms, shape) = (self.head_norms(), at.attention(self.shape.kv_heads));
        let (rotated, qkv) = match norms {
            Some(_) => (self.rotate(qkv.clone(), at), Some(qkv)),
            None => (qkv, None),
        };
        let dqkv = ops::attention_backward(dout, rotated, out, log_sum_exp, shape, mode);
        let (dqkv, head_norms) = ops::rotary_backward(dqkv, qkv, norms, self.rotary(at), mode);
        let (dh, qkv) = self.self_attn.qkv_proj.backward(dqkv, h, None, mode);
        let (dx, ln_1) = self.input_layernorm.backward(dh, x, ln_1, Some(dy), mode);
        let linear = [[qkv, o].concat(), [gate_up, down].concat()];
        (dx, BlockGradients { linear, norms: [ln_1, ln_2], head_norms })
    }

    pub(super) fn forward_attention(
        &self,
        x: Tensor<2>,
        at: BlockPass,
    ) -> (Tensor<2>, SavedAttention) {
        let (h, ln_1) = self.input_layernorm.forward(x.clone(), at.pass.mode);
        let qkv = self.self_attn.qkv_proj.forward(h.clone(), None, None, at.pass.mode);
        // The gradients of norms need their input. Without norms, the rotation is in place.
        let normed = self.shape.has_head_norms.then(|| qkv.clone());
        let rotated = self.rotate(qkv, at);
        let shape = at.attention(self.shape.kv_heads);
        let (out, log_sum_exp) = ops::attention(rotated.clone(), shape, at.pass.mode);
        let qkv = normed.unwrap_or(rotated);
        let site = site::attention_projection(at.index);
        let y = self.self_attn.o_proj.add_to(x.clone(), out.clone(), None, site, at);
        (y, SavedAttention { x, ln_1, h, qkv, out, log_sum_exp })
    }

    pub(super) fn forward_mlp(&self, x: Tensor<2>, at: BlockPass) -> (Tensor<2>, SavedMlp) {
        let (h, ln_2) = self.post_attention_layernorm.forward(x.clone(), at.pass.mode);
        let gate_up = self.mlp.gate_up_proj.forward(h.clone(), None, None, at.pass.mode);
        let site = site::mlp_projection(at.index);
        let y = self.mlp.down_proj.add_to(x.clone(), gate_up.clone(), SWIGLU, site, at);
        (y, SavedMlp { x, ln_2, h, pre_activation: gate_up })
    }

    pub(super) fn linear_layers(&mut self) -> [&mut Conv1d; 4] {
        let LlamaAttention { qkv_proj, o_proj, .. } = &mut self.self_attn;
        let GatedMlp { gate_up_proj, down_proj } = &mut self.mlp;
        [qkv_proj, o_proj, gate_up_proj, down_proj]
    }

    /// Normalises, in Qwen3, and rotates the queries and keys of whole sequences.
    fn rotate(&self, qkv: Tensor<2>, at: BlockPass) -> Tensor<2> {
        ops::rotary(qkv, self.head_norms(), self.rotary(at), at.pass.mode)
    }

    fn head_norms(&self) -> Option<HeadNorms> {
        let LlamaAttention { q_norm, k_norm, .. } = &self.self_attn;
        let weight = |norm: &Norm| Param::val(&norm.weight);
        let norms = q_norm.as_ref().zip(k_norm.as_ref());
        norms.map(|(q, k)| HeadNorms { q: weight(q), k: weight(k) })
    }

    fn rotary(&self, at: BlockPass) -> RotaryShape {
        let LlamaBlocks { kv_heads, rope_theta, norm_eps, .. } = self.shape;
        let [theta, eps] = [rope_theta, norm_eps].map(|number| number as f32);
        RotaryShape { time: at.time, heads: at.heads, kv_heads, theta, eps }
    }
}
