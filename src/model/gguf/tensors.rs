//! The tensors of a GGUF file under llama.cpp's names, and the weights that they are made from.

use std::ops::Range;

use super::{ALIGNMENT, BLOCK, GgufType};
use crate::config::Arch;
use crate::model::folder::{FileTensor, saved_shape, tensors_of};
use crate::model::weights::transpose;
use crate::model::{Architecture, Blocks, LlamaBlocks, WeightError, WeightSource};

pub(super) struct GgufTensor {
    pub name: String,
    /// The name of the weight. `None` for a bias of a model without biases: it is zero.
    pub weight: Option<String>,
    /// The shape of the weight.
    pub shape: Vec<usize>,
    /// The columns of the weight that are the rows of the tensor: the matrices of linear layers are
    /// `[out, in]` in files. `None` for others, which are as in the model.
    pub columns: Option<Range<usize>>,
    /// The size of the heads whose rows are interleaved.
    interleaved: Option<usize>,
    pub dtype: GgufType,
}

impl GgufTensor {
    /// Returns the sizes of the tensor, the fastest dimension first.
    pub fn sizes(&self) -> Vec<usize> {
        match &self.columns {
            Some(columns) => vec![self.shape[0], columns.len()],
            None => self.shape.iter().rev().copied().collect(),
        }
    }

    fn elements(&self) -> usize {
        self.sizes().iter().product()
    }

    /// Reads the values in the order of the file.
    pub fn values(&self, weights: &mut dyn WeightSource) -> Result<Vec<f32>, WeightError> {
        let Some(name) = &self.weight else { return Ok(vec![0.0; self.elements()]) };
        let values = weights.weight(name, &self.shape)?;
        let (Some(columns), &[rows, all]) = (&self.columns, &self.shape[..]) else {
            return Ok(values);
        };
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
pub(super) fn tensors(architecture: &Architecture, dtype: GgufType) -> Vec<GgufTensor> {
    match architecture.blocks {
        Blocks::Gpt2 { bias, .. } => gpt2_tensors(architecture, bias, dtype),
        Blocks::Llama(LlamaBlocks { head_size, .. }) => {
            llama_tensors(architecture, head_size, dtype)
        }
    }
}

/// Returns the type of a matrix whose rows have this many elements in the file.
fn of_rows(row: usize, dtype: GgufType) -> GgufType {
    match dtype {
        GgufType::Q8_0 if !row.is_multiple_of(BLOCK) => GgufType::F16,
        dtype => dtype,
    }
}

fn gpt2_tensors(architecture: &Architecture, bias: bool, dtype: GgufType) -> Vec<GgufTensor> {
    let Architecture { n_embd: c, block_size, vocab_size, .. } = *architecture;
    let mut tensors = Vec::new();
    let mut add = |name: String, weight: Option<String>, shape: Vec<usize>, columns, dtype| {
        tensors.push(GgufTensor { name, weight, shape, columns, interleaved: None, dtype });
    };
    for (layer, rows, dtype) in
        [("wte", vocab_size, of_rows(c, dtype)), ("wpe", block_size, GgufType::F32)]
    {
        let weight = Some(format!("{layer}.weight"));
        add(format!("{}.weight", gguf_name(layer)), weight, vec![rows, c], None, dtype);
    }
    for (layer, shape) in architecture.layers() {
        let name = gguf_name(&layer);
        let is_matrix = shape.len() == 2;
        let out = shape[shape.len() - 1];
        let dtype = if is_matrix { of_rows(shape[0], dtype) } else { GgufType::F32 };
        let weight = Some(format!("{layer}.weight"));
        add(format!("{name}.weight"), weight, shape, is_matrix.then_some(0..out), dtype);
        let bias = bias.then(|| format!("{layer}.bias"));
        add(format!("{name}.bias"), bias, vec![out], None, GgufType::F32);
    }
    tensors
}

/// Lists the tensors of a Llama, or of a Qwen3. In files of the former, llama.cpp rotates neighbouring
/// elements of a head, so the rows of queries and keys are interleaved.
fn llama_tensors(
    architecture: &Architecture,
    head_size: usize,
    dtype: GgufType,
) -> Vec<GgufTensor> {
    let is_llama = architecture.arch() == Arch::Llama;
    let mut tensors = Vec::new();
    for (weight, shape) in architecture.shapes() {
        let shape = saved_shape(architecture, &weight, &shape);
        for FileTensor { name, is_transposed, columns } in tensors_of(architecture, &weight) {
            let dtype = match shape[..] {
                [_, row] if !is_transposed => of_rows(row, dtype),
                [row, _] => of_rows(row, dtype),
                _ => GgufType::F32,
            };
            let is_rotated = name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight");
            tensors.push(GgufTensor {
                name: format!("{}.weight", gguf_name(name.trim_end_matches(".weight"))),
                weight: Some(weight.clone()),
                shape: shape.clone(),
                columns: is_transposed.then_some(columns),
                interleaved: (is_llama && is_rotated).then_some(head_size),
                dtype,
            });
        }
    }
    tensors
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
