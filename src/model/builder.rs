//! Builds the parts of a model from a source of weights.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};

use super::block::{Block, Conv1d, Mlp, Norm, SelfAttention};
use super::{Architecture, Embedding, Gpt, TokenEmbedding, WeightError, WeightSource};

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
        let weight = self.token_embedding(shards)?;
        Ok(Gpt {
            wte: TokenEmbedding { half: vec![None; weight.len()], weight },
            wpe: Embedding { weight: self.param("wpe.weight", [block_size, n_embd])? },
            h: (0..n_layer).map(|block| self.block(block)).collect::<Result<_, _>>()?,
            ln_f: self.norm("ln_f")?,
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
    fn token_embedding(&mut self, shards: usize) -> Result<Vec<Param<Tensor<2>>>, WeightError> {
        let Architecture { vocab_size, n_embd, .. } = *self.architecture;
        let mut values = self.source.weight("wte.weight", &[vocab_size, n_embd])?;
        values.resize(self.architecture.padded_vocab() * n_embd, 0.0);
        let mut values = values.into_iter();
        let shard = |rows| {
            let values = values.by_ref().take(rows * n_embd).collect();
            self.tensor(values, [rows, n_embd])
        };
        Ok(self.architecture.shard_rows(shards).into_iter().map(shard).collect())
    }

    fn bias(&mut self, name: &str, out: usize) -> Result<Option<Param<Tensor<1>>>, WeightError> {
        let bias = self.architecture.bias.then(|| self.param(&format!("{name}.bias"), [out]));
        bias.transpose()
    }

    fn norm(&mut self, name: &str) -> Result<Norm, WeightError> {
        let c = self.architecture.n_embd;
        Ok(Norm { weight: self.param(&format!("{name}.weight"), [c])?, bias: self.bias(name, c)? })
    }

    fn conv1d(&mut self, name: &str, inputs: usize, out: usize) -> Result<Conv1d, WeightError> {
        Ok(Conv1d {
            weight: self.param(&format!("{name}.weight"), [inputs, out])?,
            bias: self.bias(name, out)?,
            half: None,
        })
    }

    fn block(&mut self, index: usize) -> Result<Block, WeightError> {
        let c = self.architecture.n_embd;
        let name = |part: &str| format!("h.{index}.{part}");
        Ok(Block {
            ln_1: self.norm(&name("ln_1"))?,
            attn: SelfAttention {
                c_attn: self.conv1d(&name("attn.c_attn"), c, 3 * c)?,
                c_proj: self.conv1d(&name("attn.c_proj"), c, c)?,
            },
            ln_2: self.norm(&name("ln_2"))?,
            mlp: Mlp {
                c_fc: self.conv1d(&name("mlp.c_fc"), c, 4 * c)?,
                c_proj: self.conv1d(&name("mlp.c_proj"), 4 * c, c)?,
            },
        })
    }
}
