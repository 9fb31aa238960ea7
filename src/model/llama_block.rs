//! The transformer block of Llama (Touvron et al. 2023, arXiv:2302.13971) and of Qwen3 (arXiv:2505.09388):
//! root mean square norms, rotated queries and keys, heads that share keys and values, and a gated MLP.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::block::{BlockPass, Conv1d, Norm};
use crate::ops::{self, HeadNorms, RotaryShape};
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

impl LlamaBlock {
    /// Returns qkv for the backward pass, and the results of attention.
    pub(super) fn attention(
        &self,
        qkv: Tensor<2>,
        at: BlockPass,
    ) -> (Tensor<2>, (Tensor<2>, Tensor<3>)) {
        // The gradients of norms need their input. Without norms, the rotation is in place.
        let normed = self.shape.has_head_norms.then(|| qkv.clone());
        let rotated = self.rotate(qkv, at);
        let shape = at.attention(self.shape.kv_heads);
        let results = ops::attention(rotated.clone(), shape, at.pass.mode);
        (normed.unwrap_or(rotated), results)
    }

    /// Returns the gradient of qkv, and the partial sums of the gradients of the norms of q and k.
    pub(super) fn attention_backward(
        &self,
        dout: Tensor<2>,
        qkv: Tensor<2>,
        out: Tensor<2>,
        log_sum_exp: Tensor<3>,
        at: BlockPass,
    ) -> (Tensor<2>, Option<Tensor<3>>) {
        let norms = self.head_norms();
        let (rotated, qkv) = match norms {
            Some(_) => (self.rotate(qkv.clone(), at), Some(qkv)),
            None => (qkv, None),
        };
        let shape = at.attention(self.shape.kv_heads);
        let dqkv = ops::attention_backward(dout, rotated, out, log_sum_exp, shape, at.pass.mode);
        ops::rotary_backward(dqkv, qkv, norms, self.rotary(at), at.pass.mode)
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
