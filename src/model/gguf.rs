//! Writes and reads GGUF files, llama.cpp's. The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! The crates for GGUF only read it, or hold all tensors in memory. Here one is in memory at a time.

use std::io::{BufWriter, Write};
use std::path::Path;

use half::f16;

use self::tensors::{GgufTensor, tensors};
use super::quantized::code;
use super::{Architecture, Blocks, LlamaBlocks, WeightError, WeightSource};
use crate::config::QUANTIZED_BLOCK as BLOCK;
use crate::config::RopeScaling;
use crate::data::Vocabulary;
use crate::disk::{self, File};

mod reader;
mod tensors;

pub use reader::GgufModel;

const VERSION: u32 = 3;
/// Tensors begin at multiples of this many bytes.
const ALIGNMENT: usize = 32;
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
    /// Returns the ids of a tensor of this type, and of a file with such matrices.
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

    /// Returns the largest magnitude of a weight. The scales of `q8_0` are f16.
    fn most(self) -> f32 {
        match self {
            Self::F32 => f32::MAX,
            Self::F16 => f16::MAX.to_f32(),
            Self::Q8_0 => f16::MAX.to_f32() * 127.0,
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

/// Appends a block of `q8_0`: the scale, then its rounded multiples.
fn quantize(block: &[f32], bytes: &mut Vec<u8>) {
    let scale = block.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
    bytes.extend(f16::from_f32(scale).to_le_bytes());
    bytes.extend(block.iter().map(|x| code(*x, scale).to_le_bytes()[0]));
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
            .and_then(|()| disk::publish(&partial, path).map_err(WeightError::io(path)));
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
            let values = tensor.values(weights)?;
            if let Some(value) = values.iter().find(|value| value.abs() > tensor.dtype.most()) {
                let name = tensor.name.clone();
                return Err(WeightError::TooLarge { name, value: *value });
            }
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
            let sizes = tensor.sizes();
            bytes.extend((sizes.len() as u32).to_le_bytes());
            sizes.iter().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
            bytes.extend(tensor.dtype.ids()[0].to_le_bytes());
            bytes.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes();
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    fn entries(&self) -> Entries {
        let Self { name, vocabulary, dtype, .. } = *self;
        let Architecture { n_layer, n_head, n_embd, .. } = *self.architecture;
        let [kv_heads, head_size] = self.architecture.kv_heads();
        let arch = self.architecture.arch();
        let mut entries = Entries::default();
        entries.text("general.architecture", &arch.to_string());
        entries.text("general.name", name);
        entries.number("general.file_type", dtype.ids()[1]);
        if dtype == GgufType::Q8_0 {
            entries.number("general.quantization_version", QUANTIZATION);
        }
        let ffn_size = match self.architecture.blocks {
            Blocks::Gpt2 { .. } => 4 * n_embd,
            Blocks::Llama(LlamaBlocks { ffn_size, .. }) => ffn_size,
        };
        for (key, value) in [
            ("context_length", self.architecture.positions()),
            ("embedding_length", n_embd),
            ("feed_forward_length", ffn_size),
            ("block_count", n_layer),
            ("attention.head_count", n_head),
        ] {
            entries.number(&format!("{arch}.{key}"), value as u32);
        }
        match self.architecture.blocks {
            Blocks::Gpt2 { .. } => {
                entries.fraction("gpt2.attention.layer_norm_epsilon", 1e-5);
            }
            Blocks::Llama(LlamaBlocks { norm_eps, rope_theta, rope_scaling, .. }) => {
                for (key, value) in [
                    ("attention.head_count_kv", kv_heads),
                    ("attention.key_length", head_size),
                    ("attention.value_length", head_size),
                    ("rope.dimension_count", head_size),
                ] {
                    entries.number(&format!("{arch}.{key}"), value as u32);
                }
                let key = format!("{arch}.attention.layer_norm_rms_epsilon");
                entries.fraction(&key, norm_eps as f32);
                entries.fraction(&format!("{arch}.rope.freq_base"), rope_theta as f32);
                // Llama 3.1's is a tensor.
                if let RopeScaling::Linear { factor } = rope_scaling {
                    entries.text(&format!("{arch}.rope.scaling.type"), "linear");
                    entries.fraction(&format!("{arch}.rope.scaling.factor"), factor as f32);
                }
            }
        }
        entries.text("tokenizer.ggml.model", "gpt2");
        entries.text("tokenizer.ggml.pre", vocabulary.words);
        let Vocabulary { tokens, merges, .. } = vocabulary;
        let bytes = entries.array("tokenizer.ggml.tokens", STRING, tokens.len());
        tokens.iter().for_each(|(text, _)| put_text(bytes, text));
        let bytes = entries.array("tokenizer.ggml.token_type", I32, tokens.len());
        tokens.iter().for_each(|(_, kind)| bytes.extend((*kind as i32).to_le_bytes()));
        let bytes = entries.array("tokenizer.ggml.merges", STRING, merges.len());
        merges.iter().for_each(|merge| put_text(bytes, merge));
        for (key, token) in [
            ("bos", vocabulary.begin),
            ("eos", vocabulary.end),
            ("padding", vocabulary.padding),
            ("unknown", vocabulary.unknown),
        ] {
            if let Some(token) = token {
                entries.number(&format!("tokenizer.ggml.{key}_token_id"), token);
            }
        }
        if let Some(template) = &vocabulary.chat_template {
            entries.text("tokenizer.chat_template", template);
        }
        entries.key("tokenizer.ggml.add_bos_token", BOOL).push(vocabulary.adds_begin.into());
        entries
    }
}

/// The ids of types of values.
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

    fn fraction(&mut self, key: &str, value: f32) {
        self.key(key, F32).extend(value.to_le_bytes());
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
    use crate::config::{Arch, Gelu};
    use crate::data::TokenKind;
    use crate::disk::recorder::{Call, record};
    use crate::model::weights::transpose;

    /// Every weight has the numbers of its elements as values.
    struct Numbered;

    impl WeightSource for Numbered {
        fn weight(&mut self, _: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            Ok((0..shape.iter().product::<usize>()).map(|x| x as f32).collect())
        }
    }

    fn tiny(bias: bool, n_embd: usize) -> Architecture {
        let (n_layer, block_size, vocab_size) = (1, 8, 3);
        let blocks = Blocks::Gpt2 { bias, gelu: Gelu::Tanh };
        Architecture { n_layer, n_embd, block_size, vocab_size, blocks, ..Architecture::tiny() }
    }

    fn vocabulary() -> Vocabulary {
        let tokens = ["a", "b", "c"].map(|text| (text.to_string(), TokenKind::Normal)).into();
        let merges = vec!["a b".into()];
        let (words, begin, end) = ("gpt-2", Some(2), Some(2));
        Vocabulary { tokens, merges, words, begin, end, ..Vocabulary::default() }
    }

    fn file(architecture: &Architecture, dtype: GgufType) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let mut calls = 0;
        let mut count = |_: usize, _: usize| calls += 1;
        let file = GgufFile { name: "tiny", architecture, vocabulary: &vocabulary(), dtype };
        let (written, named) = record(|| file.write(&path, &mut Numbered, &mut count));
        written.unwrap();
        let rename = Call::Rename(path.with_added_extension("part"), path.clone());
        assert_eq!(named, [rename, Call::SyncFolder(folder.path().into())]);
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
                (number(offset), tensor.sizes().iter().product())
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
        let linear = tensors.iter().filter(|tensor| tensor.columns.is_some()).count();
        assert_eq!(linear, 4);
    }

    #[test]
    fn a_llama_has_the_keys_and_tensors_that_llama_cpp_reads() {
        let names = |arch, tied| {
            let architecture = Architecture::tiny_llama(arch, tied);
            let tensors = tensors(&architecture, GgufType::F32);
            let sized = |tensor: &GgufTensor| format!("{} {:?}", tensor.name, tensor.sizes());
            tensors.iter().map(sized).collect::<Vec<_>>()
        };
        let llama = names(Arch::Llama, false);
        assert_eq!(llama.len(), 2 + 2 * 9 + 1);
        for tensor in [
            "token_embd.weight [32, 65]",
            "blk.0.attn_norm.weight [32]",
            "blk.0.attn_q.weight [32, 40]",
            "blk.1.attn_k.weight [32, 20]",
            "blk.1.attn_v.weight [32, 20]",
            "blk.1.attn_output.weight [40, 32]",
            "blk.1.ffn_norm.weight [32]",
            "blk.1.ffn_gate.weight [32, 48]",
            "blk.1.ffn_up.weight [32, 48]",
            "blk.1.ffn_down.weight [48, 32]",
            "output_norm.weight [32]",
            "output.weight [32, 65]",
        ] {
            assert!(llama.contains(&tensor.to_string()), "{tensor}: {llama:?}");
        }
        let mut scaled = Architecture::tiny_llama(Arch::Llama, true);
        let Blocks::Llama(shape) = &mut scaled.blocks else { unreachable!() };
        shape.rope_scaling = "llama3:8,1,4,8".to_string().try_into().unwrap();
        let scaled = tensors(&scaled, GgufType::F16);
        let factors = scaled.last().unwrap().values(&mut Numbered).unwrap();
        assert_eq!(scaled.last().unwrap().name, "rope_freqs.weight");
        // Of heads of 10. Only the first pair turns within 8 positions.
        assert!(factors.len() == 5 && factors[0] > 1.0 && factors[1..] == [8.0; 4], "{factors:?}");
        let qwen2 = names(Arch::Qwen2, true);
        for tensor in ["blk.1.attn_q.bias [40]", "blk.0.attn_k.bias [20]", "blk.1.attn_v.bias [20]"]
        {
            assert!(qwen2.contains(&tensor.to_string()), "{tensor}: {qwen2:?}");
        }
        assert_eq!(qwen2.len(), 1 + 2 * 12 + 1, "tied");
        let qwen3 = names(Arch::Qwen3, true);
        assert!(qwen3.contains(&"blk.0.attn_q_norm.weight [10]".to_string()), "{qwen3:?}");
        assert!(qwen3.contains(&"blk.1.attn_k_norm.weight [10]".to_string()), "{qwen3:?}");
        assert_eq!(qwen3.len(), 1 + 2 * 11 + 1, "tied");

        for arch in [Arch::Llama, Arch::Qwen2, Arch::Qwen3] {
            let architecture = &Architecture::tiny_llama(arch, true);
            let (name, dtype, vocabulary) = ("tiny", GgufType::F16, &vocabulary());
            let entries = GgufFile { name, architecture, vocabulary, dtype }.entries();
            let has = |key: &str, kind: u32, value: [u8; 4]| {
                let mut entry = Vec::new();
                put_text(&mut entry, &format!("{arch}.{key}"));
                entry.extend(kind.to_le_bytes());
                entry.extend(value);
                entries.bytes.windows(entry.len()).any(|window| window == entry)
            };
            for (key, value) in [
                ("context_length", 16_u32),
                ("embedding_length", 32),
                ("block_count", 2),
                ("feed_forward_length", 48),
                ("attention.head_count", 4),
                ("attention.head_count_kv", 2),
                ("attention.key_length", 10),
                ("attention.value_length", 10),
                ("rope.dimension_count", 10),
            ] {
                assert!(has(key, U32, value.to_le_bytes()), "{arch}.{key}");
            }
            for (key, value) in
                [("attention.layer_norm_rms_epsilon", 1e-6_f32), ("rope.freq_base", 1e4)]
            {
                assert!(has(key, F32, value.to_le_bytes()), "{arch}.{key}");
            }
        }
    }

    #[test]
    fn queries_and_keys_are_interleaved_for_llama_alone() {
        let values = |arch, name: &str| {
            let architecture = Architecture::tiny_llama(arch, true);
            let tensors = tensors(&architecture, GgufType::F32);
            let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
            // The first element of each row of the tensor is a column of the packed weight.
            let values = tensor.values(&mut Numbered).unwrap();
            values.chunks(32).map(|row| row[0] as usize).collect::<Vec<_>>()
        };
        let keys = values(Arch::Qwen3, "blk.0.attn_k.weight");
        assert_eq!(keys, (40..60).collect::<Vec<_>>());
        let interleaved = values(Arch::Llama, "blk.0.attn_k.weight");
        assert_eq!(interleaved[..10], [40, 45, 41, 46, 42, 47, 43, 48, 44, 49]);
        assert_eq!(interleaved[10..12], [50, 55]);
        assert_eq!(values(Arch::Llama, "blk.0.attn_v.weight"), (60..80).collect::<Vec<_>>());
        let bias = tensors(&Architecture::tiny_llama(Arch::Qwen2, true), GgufType::F16);
        let bias = bias.iter().find(|tensor| tensor.name == "blk.0.attn_k.bias").unwrap();
        let wanted: Vec<f32> = (40..60).map(|column| column as f32).collect();
        assert_eq!(bias.values(&mut Numbered).unwrap(), wanted);
        assert_eq!(bias.dtype, GgufType::F32);
        assert_eq!(values(Arch::Llama, "blk.1.ffn_up.weight"), (48..96).collect::<Vec<_>>());
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
