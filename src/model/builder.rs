//! Builds the parts of a model from a source of weights.

use std::collections::HashMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::adapter::{Adapter, mask};
use super::block::Block;
use super::host_table::HostTable;
use super::layers::{Linear, LinearMatrix, Norm, Trained, WeightMatrix};
use super::quantized::QuantizedMatrix;
use super::{Architecture, Gpt, Lora, WeightError, WeightSource};
use crate::config::{Arch, BaseDtype, QUANTIZED_BLOCK};
use crate::ops::NormForm;
use crate::plan::{self, AdaptedLayer, Blocks, LORA_A, LORA_B, LlamaBlocks};

/// An architecture, its weights, and where they go.
pub(super) struct Builder<'a> {
    architecture: &'a Architecture,
    lora: Option<&'a Lora>,
    base: BaseDtype,
    /// The layers with an adapter that are still to come.
    adapted: Peekable<IntoIter<AdaptedLayer>>,
    /// The mask of each kind of layer, by its name in a block: blocks share them.
    masks: HashMap<String, Option<Tensor<2>>>,
    /// The names and shapes of the next weights, in the order of the model.
    next: IntoIter<(String, Vec<usize>)>,
    source: &'a mut dyn WeightSource,
    device: &'a Device,
    /// The dtype of matrices and embeddings.
    matrices: DType,
}

impl<'a> Builder<'a> {
    pub fn new(
        architecture: &'a Architecture,
        lora: Option<(&'a Lora, BaseDtype)>,
        source: &'a mut dyn WeightSource,
        device: &'a Device,
        matrices: DType,
    ) -> Self {
        let next = architecture.shapes().into_iter();
        let (lora, base) = lora.unzip();
        let base = base.unwrap_or_default();
        let adapted = lora.map_or_else(Vec::new, |lora| lora.layers(architecture));
        let adapted = adapted.into_iter().peekable();
        let masks = HashMap::new();
        Self { architecture, lora, base, adapted, masks, next, source, device, matrices }
    }

    /// Builds a model with the token embedding in up to `shards` shards.
    pub fn model(mut self, shards: usize) -> Result<Gpt, WeightError> {
        let architecture = self.architecture;
        let has_positions = architecture.arch() == Arch::Gpt2;
        let has_own_head = architecture.has_own_head();
        let is_on_host = plan::is_on_host(self.base, architecture);
        let host_wte = is_on_host.then(|| self.host_table()).transpose()?;
        Ok(Gpt {
            wte: if is_on_host { Vec::new() } else { self.token_embedding(shards)? },
            host_wte,
            wpe: has_positions.then(|| self.matrix()).transpose()?,
            h: (0..architecture.n_layer).map(|_| self.block()).collect::<Result<_, _>>()?,
            ln_f: self.norm()?,
            lm_head: has_own_head.then(|| self.token_embedding(shards)).transpose()?,
            architecture: architecture.clone(),
            lora: self.lora.cloned(),
        })
    }

    fn named(&mut self) -> (String, Vec<usize>) {
        self.next.next().expect("an architecture lists all weights of its model")
    }

    fn tensor<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        let dtype = if D >= 2 { self.matrices } else { DType::F32 };
        Tensor::from_data(TensorData::new(values, shape), (self.device, dtype))
    }

    /// Builds the shards of a token embedding. Its padding rows start as zero and stay zero, because
    /// their gradients and their weight decay are zero.
    fn token_embedding(&mut self, shards: usize) -> Result<Vec<WeightMatrix>, WeightError> {
        let Architecture { vocab_size, n_embd, .. } = *self.architecture;
        let (name, _) = self.named();
        let mut values = self.source.weight(&name, &[vocab_size, n_embd])?;
        values.resize(self.architecture.padded_vocab() * n_embd, 0.0);
        let mut values = values.into_iter();
        let shard = |rows| {
            let values = values.by_ref().take(rows * n_embd).collect();
            WeightMatrix::new(self.tensor(values, [rows, n_embd]))
        };
        Ok(self.architecture.shard_rows(shards).into_iter().map(shard).collect())
    }

    fn host_table(&mut self) -> Result<HostTable, WeightError> {
        let (name, _) = self.named();
        let shape = [self.architecture.vocab_size, self.architecture.n_embd];
        let values = self.source.weight(&name, &shape)?;
        Ok(HostTable::new(values, shape, self.matrices, self.device))
    }

    fn weight<const D: usize>(&mut self) -> Result<Tensor<D>, WeightError> {
        let (name, shape) = self.named();
        let values = self.source.weight(&name, &shape)?;
        Ok(self.tensor(values, shape.try_into().expect("vectors and matrices in their order")))
    }

    fn matrix(&mut self) -> Result<WeightMatrix, WeightError> {
        Ok(WeightMatrix::new(self.weight()?))
    }

    fn bias(&mut self) -> Result<Option<Tensor<1>>, WeightError> {
        let is_next = self.next_name().is_some_and(|name| name.ends_with(".bias"));
        is_next.then(|| self.weight()).transpose()
    }

    fn next_name(&self) -> Option<&str> {
        self.next.as_slice().first().map(|(name, _)| name.as_str())
    }

    fn norm(&mut self) -> Result<Norm, WeightError> {
        let form = match self.architecture.blocks {
            Blocks::Gpt2 { .. } => NormForm::Layer,
            Blocks::Llama(LlamaBlocks { norm_eps, .. }) => NormForm::Rms { eps: norm_eps as f32 },
        };
        Ok(Norm { weight: self.weight()?, bias: self.bias()?, form })
    }

    /// Builds a block's linear layer number `layer`.
    fn linear(&mut self, layer: u32) -> Result<Linear, WeightError> {
        let name = self.next_name().unwrap_or_default().to_owned();
        let matrix = self.linear_matrix()?;
        let bias = self.bias()?;
        Ok(Linear { matrix, bias, trained: self.trained(name.trim_end_matches(".weight"), layer)? })
    }

    fn linear_matrix(&mut self) -> Result<LinearMatrix, WeightError> {
        let input = self.next.as_slice().first().map_or(1, |(_, shape)| shape[0]);
        if self.base == BaseDtype::Auto || !input.is_multiple_of(QUANTIZED_BLOCK) {
            return Ok(LinearMatrix::Weights(self.matrix()?));
        }
        let (name, shape) = self.named();
        let values = self.source.weight(&name, &shape)?;
        let scales = if self.matrices == DType::F16 { DType::F16 } else { DType::F32 };
        let shape = [shape[0], shape[1]];
        Ok(LinearMatrix::Quantized(QuantizedMatrix::new(&values, shape, self.device, scales)))
    }

    /// Builds what is trained of the layer `name`.
    fn trained(&mut self, name: &str, number: u32) -> Result<Trained, WeightError> {
        let Some(lora) = self.lora else { return Ok(Trained::Weights) };
        let Some(layer) = self.adapted.next_if(|layer| layer.name == name) else {
            return Ok(Trained::Nothing);
        };
        let [of_a, of_b] = layer.shapes(lora.rank);
        let mut matrix = |kind: &str, shape: [usize; 2]| {
            let values = self.source.weight(&format!("{name}.{kind}"), &shape)?;
            let data = TensorData::new(values, shape);
            Ok::<_, WeightError>(Tensor::from_data(data, (self.device, DType::F32)))
        };
        let matrices = [matrix(LORA_A, of_a)?, matrix(LORA_B, of_b)?];
        let kind = name.splitn(3, '.').nth(2).unwrap_or_default().to_owned();
        let new = || mask(&layer, lora.rank, self.device);
        let mask = self.masks.entry(kind).or_insert_with(new).clone();
        Ok(Trained::Adapter(Box::new(Adapter::new(matrices, number, lora.scale() as f32, mask))))
    }

    fn block(&mut self) -> Result<Block, WeightError> {
        let has_head_norms = self.architecture.arch() == Arch::Qwen3;
        Ok(Block {
            attention_norm: self.norm()?,
            qkv: self.linear(0)?,
            attention_output: self.linear(1)?,
            head_norms: if has_head_norms { Some([self.norm()?, self.norm()?]) } else { None },
            mlp_norm: self.norm()?,
            mlp_input: self.linear(2)?,
            mlp_output: self.linear(3)?,
            shape: self.architecture.blocks,
        })
    }
}
