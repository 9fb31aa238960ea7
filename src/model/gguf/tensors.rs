//! The tensors of a GGUF file under llama.cpp's names, and the weights that they are made from.

use std::ops::Range;

use super::{ALIGNMENT, BLOCK, GgufType};
use crate::config::{Arch, RopeScaling};
use crate::model::folder::{FileTensor, saved_shape, tensors_of};
use crate::model::weights::transpose;
use crate::model::{Architecture, Blocks, LlamaBlocks, WeightError, WeightSource};

pub(super) struct GgufTensor {
    pub name: String,
    pub source: Source,
    /// The shape of the weight.
    pub shape: Vec<usize>,
    /// The columns of the weight that are the rows of the tensor: the matrices of linear layers are
    /// `[out, in]` in files, and a bias is a row. `None` for others, which are as in the model.
    pub columns: Option<Range<usize>>,
    /// The size of the heads whose rows are interleaved.
    pub interleaved: Option<usize>,
    pub dtype: GgufType,
}

/// The origin of a tensor's values.
pub(super) enum Source {
    /// The weight of this name.
    Weight(String),
    /// Values that are not a weight of the model.
    Values(Vec<f32>),
}

impl GgufTensor {
    /// A vector that is no weight of the model.
    fn vector(name: String, values: Vec<f32>) -> Self {
        let shape = vec![values.len()];
        let source = Source::Values(values);
        Self { name, source, shape, columns: None, interleaved: None, dtype: GgufType::F32 }
    }

    /// Returns the sizes of the tensor, the fastest dimension first.
    pub fn sizes(&self) -> Vec<usize> {
        match &self.columns {
            Some(columns) => [&self.shape[..self.shape.len() - 1], &[columns.len()]].concat(),
            None => self.shape.iter().rev().copied().collect(),
        }
    }

    fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Reads the values in the order of the file.
    pub fn values(&self, weights: &mut dyn WeightSource) -> Result<Vec<f32>, WeightError> {
        let name = match &self.source {
            Source::Weight(name) => name,
            Source::Values(values) => return Ok(values.clone()),
        };
        let values = weights.weight(name, &self.shape)?;
        let Some(columns) = &self.columns else { return Ok(values) };
        let all = self.shape[self.shape.len() - 1];
        let rows = values.len() / all;
        let values = &transpose(&values, rows, all)[columns.start * rows..columns.end * rows];
        Ok(match self.interleaved {
            Some(head) => interleave(values, head, rows),
            None => values.to_vec(),
        })
    }

    /// Returns the size in the file, padding included.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes(self.elements()).next_multiple_of(ALIGNMENT)
    }
}

/// Lists the tensors of a file. Without an output head, llama.cpp uses the embedding.
///
/// In files of a Llama, it rotates neighbouring elements of a head, so the rows of queries and keys are
/// interleaved. A GPT-2 always has biases there.
pub(super) fn tensors(architecture: &Architecture, dtype: GgufType) -> Vec<GgufTensor> {
    let arch = architecture.arch();
    let [_, head_size] = architecture.kv_heads();
    let lacks_biases = arch == Arch::Gpt2 && !architecture.has_biases();
    let mut tensors = Vec::new();
    for (weight, shape) in architecture.shapes() {
        let shape = saved_shape(architecture, &weight, &shape);
        for FileTensor { name, columns } in tensors_of(architecture, &weight) {
            let columns = match shape[..] {
                // As in the model, not as in Hugging Face's files.
                [_, out] if arch == Arch::Gpt2 && weight.starts_with("h.") => Some(0..out),
                _ => columns,
            };
            let dtype = match shape[..] {
                [_, row] if columns.is_none() && weight != "wpe.weight" => of_rows(row, dtype),
                [row, _] if columns.is_some() => of_rows(row, dtype),
                _ => GgufType::F32,
            };
            let is_rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
            let (layer, kind) = name.rsplit_once('.').unwrap_or((&name, ""));
            let is_layer = !layer.starts_with('w');
            let layer = gguf_name(layer);
            let out = shape[shape.len() - 1];
            tensors.push(GgufTensor {
                name: format!("{layer}.{kind}"),
                source: Source::Weight(weight.clone()),
                shape: shape.clone(),
                columns,
                interleaved: (arch == Arch::Llama && is_rotated).then_some(head_size),
                dtype,
            });
            if lacks_biases && is_layer {
                tensors.push(GgufTensor::vector(format!("{layer}.bias"), vec![0.0; out]));
            }
        }
    }
    tensors.extend(rope_factors(architecture));
    tensors
}

/// Returns the numbers by which llama.cpp divides the angles of Llama 3.1's scaling.
fn rope_factors(architecture: &Architecture) -> Option<GgufTensor> {
    let Blocks::Llama(LlamaBlocks { head_size, rope_theta, rope_scaling, .. }) =
        architecture.blocks
    else {
        return None;
    };
    let factor = |pair: usize| {
        let plain = rope_theta.powf(-2.0 * pair as f64 / head_size as f64);
        (plain / rope_scaling.scaled(plain)) as f32
    };
    matches!(rope_scaling, RopeScaling::Llama3 { .. }).then(|| {
        let factors = (0..head_size / 2).map(factor).collect();
        GgufTensor::vector("rope_freqs.weight".into(), factors)
    })
}

/// Returns the type of a matrix whose rows have this many elements in the file.
fn of_rows(row: usize, dtype: GgufType) -> GgufType {
    match dtype {
        GgufType::Q8_0 if !row.is_multiple_of(BLOCK) => GgufType::F16,
        dtype => dtype,
    }
}

/// Interleaves the halves of each head of `head` rows of `row` elements: rows `i` and `head / 2 + i`
/// become rows `2 i` and `2 i + 1`.
fn interleave(values: &[f32], head: usize, row: usize) -> Vec<f32> {
    let mut interleaved = Vec::with_capacity(values.len());
    for head_rows in values.chunks_exact(head * row) {
        let (first, second) = head_rows.split_at(head / 2 * row);
        for (first, second) in first.chunks_exact(row).zip(second.chunks_exact(row)) {
            interleaved.extend(first.iter().chain(second));
        }
    }
    interleaved
}

/// Undoes [`interleave`].
pub(super) fn deinterleave(values: &[f32], head: usize, row: usize) -> Vec<f32> {
    let mut halves = Vec::with_capacity(values.len());
    for head_rows in values.chunks_exact(head * row) {
        for first in [0, row] {
            let pairs = head_rows.chunks_exact(2 * row);
            halves.extend(pairs.flat_map(|pair| &pair[first..first + row]));
        }
    }
    halves
}

/// Returns `blk.0.attn_qkv` for the layer `h.0.attn.c_attn` of GPT-2, `blk.0.attn_q` for Llama's
/// `model.layers.0.self_attn.q_proj`.
fn gguf_name(layer: &str) -> String {
    let rest = layer.strip_prefix("h.").or_else(|| layer.strip_prefix("model.layers."));
    let Some((block, part)) = rest.and_then(|rest| rest.split_once('.')) else {
        return match layer {
            "wte" | "model.embed_tokens" => "token_embd",
            "wpe" => "position_embd",
            "lm_head" => "output",
            _ => "output_norm",
        }
        .into();
    };
    let part = match part {
        "ln_1" | "input_layernorm" => "attn_norm",
        "attn.c_attn" => "attn_qkv",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "attn.c_proj" | "self_attn.o_proj" => "attn_output",
        "ln_2" | "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.c_fc" | "mlp.up_proj" => "ffn_up",
        _ => "ffn_down",
    };
    format!("blk.{block}.{part}")
}
