//! Writes GGUF files, which llama.cpp reads. The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! The crates for GGUF only read it, or hold all tensors in memory. This module holds one at a time.

use std::io::{BufWriter, Write};
use std::path::Path;

use half::f16;

use super::weights::transpose;
use super::{Architecture, WeightError, WeightSource};
use crate::data::Vocabulary;
use crate::disk::{self, File};

const VERSION: u32 = 3;
/// Tensors begin at multiples of this many bytes.
const ALIGNMENT: usize = 32;
/// The number of weights that share a scale in `q8_0`.
const BLOCK: usize = 32;
const QUANTIZATION: u32 = 2;

/// The type that matrices are stored in. Biases, layer norms and positions are f32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    F32,
    F16,
    /// 8 bits per weight, and a scale of 2 bytes for each 32 weights. Matrices whose rows are not
    /// multiples of 32 are f16.
    Q8_0,
}

impl GgufType {
    /// Returns the numbers that mean a tensor of this type, and a file with matrices of this type.
    fn ids(self) -> [u32; 2] {
        match self {
            Self::F32 => [0, 0],
            Self::F16 => [1, 1],
            Self::Q8_0 => [8, 7],
        }
    }

    fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => 4 * elements,
            Self::F16 => 2 * elements,
            Self::Q8_0 => elements / BLOCK * (BLOCK + 2),
        }
    }

    fn encode(self, values: &[f32], bytes: &mut Vec<u8>) {
        match self {
            Self::F32 => values.iter().for_each(|x| bytes.extend(x.to_le_bytes())),
            Self::F16 => values.iter().for_each(|x| bytes.extend(f16::from_f32(*x).to_le_bytes())),
            Self::Q8_0 => values.chunks_exact(BLOCK).for_each(|block| quantize(block, bytes)),
        }
    }
}

/// Appends a block of `q8_0`: the scale, then the rounded multiples of it.
fn quantize(block: &[f32], bytes: &mut Vec<u8>) {
    let scale = block.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    bytes.extend(f16::from_f32(scale).to_le_bytes());
    bytes.extend(block.iter().map(|x| ((x * inverse).round() as i8).to_le_bytes()[0]));
}

struct GgufTensor {
    name: String,
    /// The name of the weight. `None` for a bias of a model without biases: it is zero.
    weight: Option<String>,
    shape: Vec<usize>,
    /// True for the matrices of linear layers, which files have as `[out, in]`.
    transposed: bool,
    dtype: GgufType,
}

impl GgufTensor {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the size in the file, padding included.
    fn bytes(&self) -> usize {
        self.dtype.bytes(self.elements()).next_multiple_of(ALIGNMENT)
    }
}

pub struct GgufFile<'a> {
    pub name: &'a str,
    pub architecture: &'a Architecture,
    pub vocabulary: &'a Vocabulary,
    pub dtype: GgufType,
}

impl GgufFile<'_> {
    /// Writes a new file. Calls `progress` with the number of tensors written so far and their total.
    pub fn write(
        &self,
        path: &Path,
        weights: &mut dyn WeightSource,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WeightError> {
        let partial = path.with_added_extension("part");
        let written = self
            .write_part(&partial, weights, progress)
            .and_then(|()| disk::rename(&partial, path).map_err(WeightError::io(path)));
        if written.is_err() {
            let _ = disk::remove_file(&partial);
        }
        written
    }

    fn write_part(
        &self,
        path: &Path,
        weights: &mut dyn WeightSource,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), WeightError> {
        let tensors = tensors(self.architecture, self.dtype);
        let mut file = BufWriter::new(File::create(path).map_err(WeightError::io(path))?);
        let mut put = |bytes: &[u8]| file.write_all(bytes).map_err(WeightError::io(path));
        put(&self.header(&tensors))?;
        for (index, tensor) in tensors.iter().enumerate() {
            progress(index, tensors.len());
            let values = match &tensor.weight {
                Some(name) => weights.weight(name, &tensor.shape)?,
                None => vec![0.0; tensor.elements()],
            };
            let values = match (tensor.transposed, &tensor.shape[..]) {
                (true, &[rows, columns]) => transpose(&values, rows, columns),
                _ => values,
            };
            let mut bytes = Vec::with_capacity(tensor.bytes());
            tensor.dtype.encode(&values, &mut bytes);
            bytes.resize(tensor.bytes(), 0);
            put(&bytes)?;
        }
        let file = file.into_inner().map_err(|error| WeightError::io(path)(error.into_error()))?;
        file.sync_all().map_err(WeightError::io(path))
    }

    /// Returns everything before the tensors' values.
    fn header(&self, tensors: &[GgufTensor]) -> Vec<u8> {
        let entries = self.entries();
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((tensors.len() as u64).to_le_bytes());
        bytes.extend((entries.count as u64).to_le_bytes());
        bytes.extend(entries.bytes);
        let mut offset = 0;
        for tensor in tensors {
            put_text(&mut bytes, &tensor.name);
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            // The fastest dimension comes first. For a transposed matrix that is the weight's own order.
            let mut shape = tensor.shape.clone();
            if !tensor.transposed {
                shape.reverse();
            }
            shape.iter().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
            bytes.extend(tensor.dtype.ids()[0].to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes();
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    fn entries(&self) -> Entries {
        let Self { name, vocabulary, dtype, .. } = *self;
        let Architecture { n_layer, n_head, n_embd, block_size, .. } = *self.architecture;
        let mut entries = Entries::default();
        entries.text("general.architecture", "gpt2");
        entries.text("general.name", name);
        entries.number("general.file_type", dtype.ids()[1]);
        if dtype == GgufType::Q8_0 {
            entries.number("general.quantization_version", QUANTIZATION);
        }
        for (key, value) in [
            ("gpt2.context_length", block_size),
            ("gpt2.embedding_length", n_embd),
            ("gpt2.feed_forward_length", 4 * n_embd),
            ("gpt2.block_count", n_layer),
            ("gpt2.attention.head_count", n_head),
        ] {
            entries.number(key, value as u32);
        }
        entries.key("gpt2.attention.layer_norm_epsilon", F32).extend(1e-5_f32.to_le_bytes());
        entries.text("tokenizer.ggml.model", "gpt2");
        entries.text("tokenizer.ggml.pre", vocabulary.words);
        let Vocabulary { tokens, merges, .. } = vocabulary;
        let bytes = entries.array("tokenizer.ggml.tokens", STRING, tokens.len());
        tokens.iter().for_each(|(text, _)| put_text(bytes, text));
        let bytes = entries.array("tokenizer.ggml.token_type", I32, tokens.len());
        tokens.iter().for_each(|(_, kind)| bytes.extend((*kind as i32).to_le_bytes()));
        let bytes = entries.array("tokenizer.ggml.merges", STRING, merges.len());
        merges.iter().for_each(|merge| put_text(bytes, merge));
        for (key, token) in [("bos", vocabulary.begin), ("eos", vocabulary.end)] {
            if let Some(token) = token {
                entries.number(&format!("tokenizer.ggml.{key}_token_id"), token);
            }
        }
        if let Some(template) = &vocabulary.chat_template {
            entries.text("tokenizer.chat_template", template);
        }
        entries.key("tokenizer.ggml.add_bos_token", BOOL).push(u8::from(false));
        entries
    }
}

/// Lists the tensors of a file. It has no output head: llama.cpp then uses the embedding.
fn tensors(architecture: &Architecture, dtype: GgufType) -> Vec<GgufTensor> {
    let Architecture { n_embd: c, block_size, vocab_size, bias, .. } = *architecture;
    let of_rows = |row: usize| match dtype {
        GgufType::Q8_0 if !row.is_multiple_of(BLOCK) => GgufType::F16,
        dtype => dtype,
    };
    let mut tensors = Vec::new();
    let mut add = |name: String, weight: Option<String>, shape, transposed, dtype| {
        tensors.push(GgufTensor { name, weight, shape, transposed, dtype });
    };
    for (name, weight, rows, dtype) in [
        ("token_embd.weight", "wte.weight", vocab_size, of_rows(c)),
        ("position_embd.weight", "wpe.weight", block_size, GgufType::F32),
    ] {
        add(name.into(), Some(weight.into()), vec![rows, c], false, dtype);
    }
    for (layer, shape) in architecture.layers() {
        let name = gguf_name(&layer);
        let (is_matrix, out) = (shape.len() == 2, shape[shape.len() - 1]);
        let dtype = if is_matrix { of_rows(shape[0]) } else { GgufType::F32 };
        let weight = Some(format!("{layer}.weight"));
        add(format!("{name}.weight"), weight, shape, is_matrix, dtype);
        let bias = bias.then(|| format!("{layer}.bias"));
        add(format!("{name}.bias"), bias, vec![out], false, GgufType::F32);
    }
    tensors
}

/// Returns `blk.0.attn_qkv` for the layer `h.0.attn.c_attn`.
fn gguf_name(layer: &str) -> String {
    let Some((block, part)) = layer.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
        return "output_norm".into();
    };
    let part = match part {
        "ln_1" => "attn_norm",
        "attn.c_attn" => "attn_qkv",
        "attn.c_proj" => "attn_output",
        "ln_2" => "ffn_norm",
        "mlp.c_fc" => "ffn_up",
        _ => "ffn_down",
    };
    format!("blk.{block}.{part}")
}

/// The numbers that mean the types of values.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The description of a file: keys and values.
#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    count: usize,
}

impl Entries {
    /// Begins an entry. `kind` is the type of its value.
    fn key(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.count += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        &mut self.bytes
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, U32).extend(value.to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        put_text(self.key(key, STRING), value);
    }

    /// Begins an array. `kind` is the type of its values.
    fn array(&mut self, key: &str, kind: u32, length: usize) -> &mut Vec<u8> {
        let bytes = self.key(key, ARRAY);
        bytes.extend(kind.to_le_bytes());
        bytes.extend((length as u64).to_le_bytes());
        bytes
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::TokenKind;

    /// Every weight has the numbers of its elements as values.
    struct Numbered;

    impl WeightSource for Numbered {
        fn weight(&mut self, _: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            Ok((0..shape.iter().product::<usize>()).map(|x| x as f32).collect())
        }
    }

    fn tiny(bias: bool, n_embd: usize) -> Architecture {
        let (n_layer, block_size, vocab_size) = (1, 8, 3);
        Architecture { n_layer, n_embd, block_size, vocab_size, bias, ..Architecture::tiny() }
    }

    fn vocabulary() -> Vocabulary {
        let tokens = ["a", "b", "c"].map(|text| (text.to_string(), TokenKind::Normal)).into();
        let merges = vec!["a b".into()];
        let (words, begin, end) = ("gpt-2", Some(2), Some(2));
        Vocabulary { tokens, merges, words, begin, end, chat_template: None }
    }

    fn file(architecture: &Architecture, dtype: GgufType) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let mut calls = 0;
        let mut count = |_: usize, _: usize| calls += 1;
        GgufFile { name: "tiny", architecture, vocabulary: &vocabulary(), dtype }
            .write(&path, &mut Numbered, &mut count)
            .unwrap();
        assert_eq!(calls, 2 + 6 * 2 + 2);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file");
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_file_has_the_size_of_its_parts() {
        let architecture = tiny(true, 32);
        for dtype in [GgufType::F32, GgufType::F16, GgufType::Q8_0] {
            let bytes = file(&architecture, dtype);
            assert_eq!(&bytes[..8], b"GGUF\x03\0\0\0");
            let tensors = tensors(&architecture, dtype);
            let (architecture, vocabulary) = (&architecture, &vocabulary());
            let header =
                GgufFile { name: "tiny", architecture, vocabulary, dtype }.header(&tensors).len();
            let values: usize = tensors.iter().map(GgufTensor::bytes).sum();
            assert_eq!(bytes.len(), header + values);
        }
    }

    /// Readers take 32 where a file does not name its alignment.
    #[test]
    fn tensors_begin_at_multiples_of_32_bytes() {
        // Sizes of which few are multiples of 32: a layer norm has 40 bytes.
        let architecture = tiny(true, 10);
        let bytes = file(&architecture, GgufType::F32);
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
        let mut end_of_header = 0;
        let infos: Vec<(usize, usize)> = tensors(&architecture, GgufType::F32)
            .iter()
            .map(|tensor| {
                let mut name = Vec::new();
                put_text(&mut name, &tensor.name);
                let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
                // The number of dimensions, the dimensions, the type, the offset.
                let offset = at + name.len() + 4 + 8 * tensor.shape.len() + 4;
                end_of_header = offset + 8;
                (number(offset), tensor.elements())
            })
            .collect();
        let start = end_of_header.next_multiple_of(32);
        for (offset, elements) in infos {
            assert!(offset.is_multiple_of(32), "{offset}");
            let values = &bytes[start + offset..][..4 * elements];
            let values: Vec<f32> =
                values.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect();
            // Matrices are transposed.
            assert_eq!(values[0], 0.0);
            assert_eq!(values[elements - 1], (elements - 1) as f32);
        }
    }

    #[test]
    fn linear_layers_are_transposed() {
        assert_eq!(
            transpose(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3),
            [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
        );
        let tensors = tensors(&tiny(true, 32), GgufType::F32);
        let linear = tensors.iter().filter(|tensor| tensor.transposed).count();
        assert_eq!(linear, 4);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_are_halves() {
        let dtype_of = |n_embd: usize, name: &str| {
            let tensors = tensors(&tiny(false, n_embd), GgufType::Q8_0);
            tensors.iter().find(|tensor| tensor.name == name).unwrap().dtype
        };
        assert_eq!(dtype_of(32, "token_embd.weight"), GgufType::Q8_0);
        assert_eq!(dtype_of(24, "token_embd.weight"), GgufType::F16);
        // The rows of this one have 4 * 24 elements.
        assert_eq!(dtype_of(24, "blk.0.ffn_down.weight"), GgufType::Q8_0);
        assert_eq!(dtype_of(32, "position_embd.weight"), GgufType::F32);
        assert_eq!(dtype_of(32, "blk.0.attn_qkv.bias"), GgufType::F32);
    }

    #[test]
    fn a_block_is_rounded_to_a_scale() {
        let mut block = [0.0; BLOCK];
        (block[0], block[1], block[2]) = (-254.0, 127.0, 1.0);
        let mut bytes = Vec::new();
        quantize(&block, &mut bytes);
        assert_eq!(bytes.len(), BLOCK + 2);
        assert_eq!(f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 2.0);
        // 63.5 and 0.5 are rounded away from zero.
        assert_eq!(bytes[2..6], [-127_i8 as u8, 64, 1, 0]);
        let mut bytes = Vec::new();
        quantize(&[0.0; BLOCK], &mut bytes);
        assert_eq!(bytes, [0; BLOCK + 2]);
    }
}
