//! Builds the parts of a model from a source of weights.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::block::{Block, Conv1d, Gpt2Block, Mlp, Norm, SelfAttention};
use super::llama_block::{GatedMlp, LlamaAttention, LlamaBlock};
use super::{Architecture, Embedding, Gpt, TokenEmbedding, WeightError, WeightSource};
use crate::config::{Arch, Gelu};
use crate::ops::NormForm;
use crate::plan::{Blocks, HEAD, LlamaBlocks};

/// An architecture, its weights, and where they go.
pub(super) struct Builder<'a> {
    pub architecture: &'a Architecture,
    pub source: &'a mut dyn WeightSource,
    pub device: &'a Device,
    /// The dtype of matrices and embeddings.
    pub matrices: DType,
}

impl Builder<'_> {
    /// Builds a model with the token embedding in up to `shards` shards.
    pub fn model(mut self, shards: usize) -> Result<Gpt, WeightError> {
        let Architecture { n_layer, n_embd, block_size, .. } = *self.architecture;
        let is_gpt2 = self.architecture.arch() == Arch::Gpt2;
        let has_own_head = self.architecture.has_own_head();
        let positions = |builder: &mut Self| {
            let weight = builder.param("wpe.weight", [block_size, n_embd]);
            weight.map(|weight| Embedding { weight })
        };
        Ok(Gpt {
            wte: self.token_embedding("wte.weight", shards)?,
            wpe: is_gpt2.then(|| positions(&mut self)).transpose()?,
            h: (0..n_layer).map(|block| self.block(block)).collect::<Result<_, _>>()?,
            ln_f: self.norm("ln_f", n_embd)?,
            lm_head: has_own_head.then(|| self.token_embedding(HEAD, shards)).transpose()?,
            architecture: self.architecture.clone(),
        })
    }

    fn param<const D: usize>(
        &mut self,
        name: &str,
        shape: [usize; D],
    ) -> Result<Param<Tensor<D>>, WeightError> {
        let values = self.source.weight(name, &shape)?;
        Ok(self.tensor(values, shape))
    }

    fn tensor<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<D>> {
        let dtype = if D >= 2 { self.matrices } else { DType::F32 };
        Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), (self.device, dtype)))
    }

    /// Builds the shards of the token embedding. Its padding rows start as zero and stay zero, because
    /// their gradients and their weight decay are zero.
    fn token_embedding(
        &mut self,
        name: &str,
        shards: usize,
    ) -> Result<TokenEmbedding, WeightError> {
        let Architecture { vocab_size, n_embd, .. } = *self.architecture;
        let mut values = self.source.weight(name, &[vocab_size, n_embd])?;
        values.resize(self.architecture.padded_vocab() * n_embd, 0.0);
        let mut values = values.into_iter();
        let shard = |rows| {
            let values = values.by_ref().take(rows * n_embd).collect();
            self.tensor(values, [rows, n_embd])
        };
        let weight: Vec<_> = self.architecture.shard_rows(shards).into_iter().map(shard).collect();
        Ok(TokenEmbedding { half: vec![None; weight.len()], weight })
    }

    fn bias(&mut self, name: &str, out: usize) -> Result<Option<Param<Tensor<1>>>, WeightError> {
        let bias =
            self.architecture.has_biases().then(|| self.param(&format!("{name}.bias"), [out]));
        bias.transpose()
    }

    fn norm(&mut self, name: &str, size: usize) -> Result<Norm, WeightError> {
        let form = match self.architecture.blocks {
            Blocks::Gpt2 { .. } => NormForm::Layer,
            Blocks::Llama(LlamaBlocks { norm_eps, .. }) => NormForm::Rms { eps: norm_eps as f32 },
        };
        let weight = self.param(&format!("{name}.weight"), [size])?;
        Ok(Norm { weight, bias: self.bias(name, size)?, form })
    }

    fn conv1d(&mut self, name: &str, inputs: usize, out: usize) -> Result<Conv1d, WeightError> {
        Ok(Conv1d {
            weight: self.param(&format!("{name}.weight"), [inputs, out])?,
            bias: self.bias(name, out)?,
            half: None,
        })
    }

    fn block(&mut self, index: usize) -> Result<Block, WeightError> {
        Ok(match self.architecture.blocks {
            Blocks::Gpt2 { gelu, .. } => Block::Gpt2(self.gpt2_block(index, gelu)?),
            Blocks::Llama(shape) => Block::Llama(self.llama_block(index, shape)?),
        })
    }

    fn gpt2_block(&mut self, index: usize, gelu: Gelu) -> Result<Gpt2Block, WeightError> {
        let c = self.architecture.n_embd;
        let name = |part: &str| format!("h.{index}.{part}");
        Ok(Gpt2Block {
            ln_1: self.norm(&name("ln_1"), c)?,
            attn: SelfAttention {
                c_attn: self.conv1d(&name("attn.c_attn"), c, 3 * c)?,
                c_proj: self.conv1d(&name("attn.c_proj"), c, c)?,
            },
            ln_2: self.norm(&name("ln_2"), c)?,
            mlp: Mlp {
                c_fc: self.conv1d(&name("mlp.c_fc"), c, 4 * c)?,
                c_proj: self.conv1d(&name("mlp.c_proj"), 4 * c, c)?,
            },
            gelu,
        })
    }

    fn llama_block(&mut self, index: usize, shape: LlamaBlocks) -> Result<LlamaBlock, WeightError> {
        let Architecture { n_embd: c, n_head, .. } = *self.architecture;
        let LlamaBlocks { kv_heads, head_size, ffn_size, has_head_norms, .. } = shape;
        let name = |part: &str| format!("h.{index}.{part}");
        let qkv = (n_head + 2 * kv_heads) * head_size;
        let head_norm = |builder: &mut Self, part: &str| {
            has_head_norms.then(|| builder.norm(&name(part), head_size)).transpose()
        };
        Ok(LlamaBlock {
            input_layernorm: self.norm(&name("input_layernorm"), c)?,
            self_attn: LlamaAttention {
                qkv_proj: self.conv1d(&name("self_attn.qkv_proj"), c, qkv)?,
                o_proj: self.conv1d(&name("self_attn.o_proj"), n_head * head_size, c)?,
                q_norm: head_norm(self, "self_attn.q_norm")?,
                k_norm: head_norm(self, "self_attn.k_norm")?,
            },
            post_attention_layernorm: self.norm(&name("post_attention_layernorm"), c)?,
            mlp: GatedMlp {
                gate_up_proj: self.conv1d(&name("mlp.gate_up_proj"), c, 2 * ffn_size)?,
                down_proj: self.conv1d(&name("mlp.down_proj"), ffn_size, c)?,
            },
            shape,
        })
    }
}
