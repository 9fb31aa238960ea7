//! Reads GGUF files: their header into memory, their tensors one at a time.

use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::{Value, json};

use super::tensors::{GgufTensor, Source, deinterleave, tensors};
use super::{ALIGNMENT, ARRAY, BLOCK, BOOL, F32, GgufType, I32, STRING, U32};
use crate::config::{Gelu, RopeScaling};
use crate::data::{TokenKind, Vocabulary};
use crate::disk::{self, File};
use crate::model::folder::{FileTensor, pack};
use crate::model::hugging_face::architecture;
use crate::model::weights::NOT_QUANTIZED;
use crate::model::{Architecture, Blocks, WeightError, WeightSource};

/// The most bytes of a header, and entries or tensors in it. A vocabulary of 256 thousand tokens with its merges takes
/// 12 MB.
const MAX_HEADER: u64 = 64 << 20;
const MOST: u64 = 1 << 16;

/// Other types of values and of tensors than those that wgpt writes.
const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;
const BF16_TENSOR: u32 = 30;

/// The names of the types of tensors that wgpt does not decode, by their numbers.
const QUANTIZED: [(u32, &str); 12] = [
    (2, "Q4_0"),
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (20, "IQ4_NL"),
];

/// A model in a GGUF file.
#[derive(Debug)]
pub struct GgufModel {
    file: OpenGguf,
    pub architecture: Architecture,
}

/// A file with its header read. The values of a tensor are read when they are asked for.
#[derive(Debug)]
struct OpenGguf {
    path: PathBuf,
    file: File,
    entries: HashMap<String, Value>,
    stored: HashMap<String, Stored>,
    /// The offset of the tensors' values.
    start: u64,
}

/// A tensor of the file.
#[derive(Clone, Debug)]
struct Stored {
    /// The fastest dimension first.
    sizes: Vec<usize>,
    kind: u32,
    offset: u64,
}

impl GgufModel {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has another model than wgpt's.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let mut file = OpenGguf::open(path)?;
        let architecture = file.architecture()?;
        Ok(Self { file, architecture })
    }

    /// Returns the tokenizer, or a clause that says why wgpt cannot use it.
    pub fn vocabulary(&self) -> Result<Vocabulary, String> {
        self.file.vocabulary()
    }
}

impl OpenGguf {
    fn open(path: &Path) -> Result<Self, WeightError> {
        let file = disk::open_regular(path).map_err(WeightError::io(path))?;
        let length = file.metadata().map_err(WeightError::io(path))?.len();
        let mut header =
            Header { from: BufReader::new(file.take(MAX_HEADER.min(length))), read: 0 };
        let (entries, stored) = header.read().map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => WeightError::corrupt(path, "cut short"),
            io::ErrorKind::InvalidData => WeightError::corrupt(path, error),
            _ => WeightError::io(path)(error),
        })?;
        let alignment = entries.get("general.alignment").and_then(Value::as_u64);
        let alignment = alignment.unwrap_or(ALIGNMENT as u64);
        if !alignment.is_power_of_two() || alignment > 1 << 20 {
            return Err(WeightError::corrupt(path, format!("an alignment of {alignment}")));
        }
        let start = header.read.next_multiple_of(alignment);
        let file = header.from.into_inner().into_inner();
        let is_outside = |tensor: &Stored| {
            let end = tensor
                .bytes()
                .and_then(|bytes| start.checked_add(tensor.offset)?.checked_add(bytes));
            tensor.is_known() && end.is_none_or(|end| end > length)
        };
        if let Some((name, _)) = stored.iter().find(|(_, tensor)| is_outside(tensor)) {
            let reason = format!("`{name}` ends behind the file: cut short or damaged");
            return Err(WeightError::corrupt(path, reason));
        }
        Ok(Self { path: path.to_path_buf(), file, entries, stored, start })
    }

    fn unsupported(&self, reason: impl std::fmt::Display) -> WeightError {
        let hint = "give a GPT-2, a Llama or a Qwen as f32, f16, bf16 or q8_0, or the folder that the file was made \
                    from";
        WeightError::unsupported(&self.path, reason, hint)
    }

    fn entry(&self, key: &str) -> &Value {
        self.entries.get(key).unwrap_or(&Value::Null)
    }

    /// Returns an entry of this architecture.
    fn of(&self, arch: &str, key: &str) -> Value {
        self.entry(&format!("{arch}.{key}")).clone()
    }

    fn architecture(&mut self) -> Result<Architecture, WeightError> {
        let arch = self.entry("general.architecture").as_str().unwrap_or_default().to_owned();
        let vocab_size = match self.stored.get("token_embd.weight").map(|it| &it.sizes[..]) {
            Some(&[_, rows]) => rows,
            _ => return Err(self.unsupported("it has no embedding of tokens")),
        };
        if arch == "gpt2" {
            let size = |key: &str, most: usize| {
                let (name, value) = match key {
                    "vocab_size" => (key, json!(vocab_size)),
                    "n_layer" => ("gpt2.block_count", self.of(&arch, "block_count")),
                    "n_head" => {
                        ("gpt2.attention.head_count", self.of(&arch, "attention.head_count"))
                    }
                    "n_embd" => ("gpt2.embedding_length", self.of(&arch, "embedding_length")),
                    _ => ("gpt2.context_length", self.of(&arch, "context_length")),
                };
                let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.filter(|size| (1..=most).contains(size));
                size.ok_or_else(|| format!("`{name}` is {value}, not a number from 1 to {most}"))
            };
            let stated = Architecture::stated("block_size", true, Gelu::Tanh, size);
            let mut stated = stated.map_err(|reason| self.unsupported(reason))?;
            // Files of models without biases have zeros.
            stated.blocks = Blocks::Gpt2 { bias: self.has_biases()?, gelu: Gelu::Tanh };
            return Ok(stated);
        }
        if !matches!(&*arch, "llama" | "qwen2" | "qwen3") {
            let reason = format!("`general.architecture` is `{arch}`");
            return Err(self.unsupported(reason));
        }
        let mut config = json!({
            "model_type": arch,
            "num_hidden_layers": self.of(&arch, "block_count"),
            "num_attention_heads": self.of(&arch, "attention.head_count"),
            "num_key_value_heads": self.of(&arch, "attention.head_count_kv"),
            "hidden_size": self.of(&arch, "embedding_length"),
            "intermediate_size": self.of(&arch, "feed_forward_length"),
            "max_position_embeddings": self.of(&arch, "context_length"),
            "rms_norm_eps": self.of(&arch, "attention.layer_norm_rms_epsilon"),
            "sliding_window": self.of(&arch, "attention.sliding_window"),
            "tie_word_embeddings": !self.stored.contains_key("output.weight"),
            "vocab_size": vocab_size,
        });
        let [width, heads] =
            ["hidden_size", "num_attention_heads"].map(|key| config[key].as_u64().unwrap_or(0));
        let head_size =
            self.of(&arch, "attention.key_length").as_u64().or(width.checked_div(heads));
        config["head_dim"] = json!(head_size);
        let theta = self.of(&arch, "rope.freq_base").as_f64().unwrap_or(10_000.0);
        let mut rope = match self.of(&arch, "rope.scaling.type").as_str() {
            None | Some("none") => json!({}),
            Some(kind) => {
                json!({"rope_type": kind, "factor": self.of(&arch, "rope.scaling.factor")})
            }
        };
        if self.stored.contains_key("rope_freqs.weight") {
            let length = head_size.unwrap_or(0) as usize / 2;
            let factors = self.values("rope_freqs.weight", &[length])?;
            rope = llama3_scaling(theta, &factors).ok_or_else(|| {
                self.unsupported("`rope_freqs.weight` is no scaling of Llama 3.1")
            })?;
        }
        rope["rope_theta"] = json!(theta);
        config["rope_parameters"] = rope;
        let [keys, rotated] =
            ["attention.value_length", "rope.dimension_count"].map(|key| self.of(&arch, key));
        for (key, value) in [("attention.value_length", keys), ("rope.dimension_count", rotated)] {
            if !value.is_null() && value != config["head_dim"] {
                return Err(
                    self.unsupported(format!("`{arch}.{key}` is {value}, not the size of a head"))
                );
            }
        }
        architecture(&config).map_err(|reason| self.unsupported(reason))
    }

    fn has_biases(&mut self) -> Result<bool, WeightError> {
        let biases: Vec<String> =
            self.stored.keys().filter(|name| name.ends_with(".bias")).cloned().collect();
        for name in biases {
            let sizes = self.stored[&name].sizes.clone();
            if self.values(&name, &sizes)?.iter().any(|value| *value != 0.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a tensor of these sizes, the fastest dimension first.
    fn values(&mut self, name: &str, sizes: &[usize]) -> Result<Vec<f32>, WeightError> {
        let stored = self.stored.get(name).cloned();
        let stored = stored.ok_or_else(|| self.unsupported(format!("`{name}` is missing")))?;
        if stored.sizes != sizes {
            let reason =
                format!("`{name}` has shape {:?}, the model needs {sizes:?}", stored.sizes);
            return Err(self.unsupported(reason));
        }
        let Some(bytes) = stored.bytes().filter(|_| stored.is_known()) else {
            let kind = QUANTIZED.iter().find(|(kind, _)| *kind == stored.kind);
            let kind = kind.map_or(format!("type {}", stored.kind), |(_, name)| name.to_string());
            let reason =
                format!("`{name}` is stored as {kind}; f32, f16, bf16 and q8_0 are supported");
            return Err(WeightError::unsupported(&self.path, reason, NOT_QUANTIZED));
        };
        let mut encoded = vec![0u8; bytes as usize];
        self.file
            .seek(SeekFrom::Start(self.start + stored.offset))
            .and_then(|_| self.file.read_exact(&mut encoded))
            .map_err(WeightError::io(&self.path))?;
        Ok(decode(stored.kind, &encoded))
    }

    fn vocabulary(&self) -> Result<Vocabulary, String> {
        let entry = |key: &str| self.entry(&format!("tokenizer.ggml.{key}"));
        let model = entry("model").as_str().unwrap_or("missing");
        if model != "gpt2" {
            return Err(format!("its tokenizer is `{model}`; only BPE on bytes is supported"));
        }
        let words = entry("pre").as_str().unwrap_or("gpt-2");
        let words = Vocabulary::words_named(words)
            .ok_or_else(|| format!("its way to split text into words, `{words}`, is not known"))?;
        let texts = |key: &str| {
            let all = entry(key).as_array().into_iter().flatten();
            all.map(|text| text.as_str().unwrap_or_default().to_owned())
        };
        let kinds = entry("token_type").as_array().map(Vec::as_slice).unwrap_or_default();
        let kind = |index: usize| match kinds.get(index).and_then(Value::as_u64) {
            Some(3) => TokenKind::Control,
            Some(4) => TokenKind::UserDefined,
            Some(5) => TokenKind::Unused,
            _ => TokenKind::Normal,
        };
        let tokens = texts("tokens").enumerate().map(|(index, text)| (text, kind(index)));
        let id = |key: &str| {
            entry(&format!("{key}_token_id")).as_u64().and_then(|id| u32::try_from(id).ok())
        };
        let template = self.entry("tokenizer.chat_template").as_str();
        Ok(Vocabulary {
            tokens: tokens.collect(),
            merges: texts("merges").collect(),
            words,
            begin: id("bos"),
            end: id("eos"),
            padding: id("padding"),
            unknown: id("unknown"),
            adds_begin: entry("add_bos_token") == &Value::Bool(true),
            chat_template: template.map(str::to_owned),
        })
    }
}

impl WeightSource for GgufModel {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let all = tensors(&self.architecture, GgufType::F32);
        let is_own =
            |tensor: &GgufTensor| matches!(&tensor.source, Source::Weight(it) if it == name);
        let own: Vec<GgufTensor> = all.into_iter().filter(is_own).collect();
        let parts = own.iter().map(|tensor| FileTensor {
            name: tensor.name.clone(),
            columns: tensor.columns.clone(),
        });
        pack(parts.collect(), shape, |name, _| {
            let tensor = own.iter().find(|tensor| tensor.name == name);
            let tensor = tensor.expect("`pack` reads what it is given");
            let values = self.file.values(name, &tensor.sizes())?;
            Ok(match tensor.interleaved {
                Some(head) => deinterleave(&values, head, tensor.sizes()[0]),
                None => values,
            })
        })
    }
}

impl Stored {
    fn is_known(&self) -> bool {
        let row = self.sizes.first().copied().unwrap_or(1);
        match self.kind {
            0 | 1 | BF16_TENSOR => true,
            8 => row.is_multiple_of(BLOCK),
            _ => false,
        }
    }

    /// Returns the bytes of the values; `None` if no file has as many.
    fn bytes(&self) -> Option<u64> {
        let elements =
            self.sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size as u64))?;
        match self.kind {
            0 => elements.checked_mul(4),
            8 => (elements / BLOCK as u64).checked_mul(BLOCK as u64 + 2),
            _ => elements.checked_mul(2),
        }
    }
}

/// Decodes the values of a tensor of a known type.
fn decode(kind: u32, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter();
    match kind {
        0 => bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        1 => halves().map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
        BF16_TENSOR => halves().map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
        _ => {
            let blocks = bytes.chunks_exact(BLOCK + 2);
            let weights = |block: &[u8]| {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                block[2..].iter().map(|code| f32::from(*code as i8) * scale).collect::<Vec<_>>()
            };
            blocks.flat_map(weights).collect()
        }
    }
}

/// Returns the scaling of Llama 3.1 that divides the angles by `factors`, as transformers names it. `None` if they are
/// of another scaling.
fn llama3_scaling(theta: f64, factors: &[f32]) -> Option<Value> {
    let largest = f64::from(factors.iter().copied().reduce(f32::max)?);
    let size = 2 * factors.len();
    let angle = |pair: usize| theta.powf(-2.0 * pair as f64 / size as f64);
    // All of these models have 1 and 4. A pair between the two limits tells the original context.
    let (low, high) = (1.0, 4.0);
    let positions = factors.iter().enumerate().find_map(|(pair, factor)| {
        let factor = f64::from(*factor);
        let stays = (1.0 / factor - 1.0 / largest) / (1.0 - 1.0 / largest);
        let turns = low + stays * (high - low);
        let positions = (turns * std::f64::consts::TAU / angle(pair)).round();
        (stays > 1e-3 && stays < 1.0 - 1e-3).then_some(positions)
    });
    let positions = positions.unwrap_or(8192.0);
    let scaling = RopeScaling::Llama3 { factor: largest, low, high, positions };
    let is_of_pair = |(pair, factor): (usize, &f32)| {
        let plain = angle(pair);
        (plain / scaling.scaled(plain) / f64::from(*factor) - 1.0).abs() < 1e-4
    };
    factors.iter().enumerate().all(is_of_pair).then(|| {
        json!({
            "rope_type": "llama3",
            "factor": largest,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": positions,
        })
    })
}

/// The header of a file that is being read.
struct Header<R> {
    from: R,
    /// The bytes that were read.
    read: u64,
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

impl<R: Read> Header<R> {
    fn read(&mut self) -> io::Result<(HashMap<String, Value>, HashMap<String, Stored>)> {
        if &self.bytes::<4>()? != b"GGUF" {
            return Err(invalid("not a GGUF file"));
        }
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            return Err(invalid(format!("version {version} of GGUF; 2 and 3 are supported")));
        }
        let [tensors, entries] = [self.u64()?, self.u64()?];
        if tensors.max(entries) > MOST {
            return Err(invalid("more tensors or entries than any model has"));
        }
        let mut values = HashMap::new();
        for _ in 0..entries {
            let (key, kind) = (self.text()?, self.u32()?);
            values.insert(key, self.value(kind)?);
        }
        let mut stored = HashMap::new();
        for _ in 0..tensors {
            let (name, dimensions) = (self.text()?, self.u32()?);
            if dimensions > 4 {
                return Err(invalid(format!("a tensor of {dimensions} dimensions")));
            }
            let size =
                |size: u64| usize::try_from(size).map_err(|_| invalid("a size beyond 64 bits"));
            let sizes = (0..dimensions).map(|_| size(self.u64()?)).collect::<io::Result<_>>()?;
            let (kind, offset) = (self.u32()?, self.u64()?);
            stored.insert(name, Stored { sizes, kind, offset });
        }
        Ok((values, stored))
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.read += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> io::Result<String> {
        let length = self.u64()?;
        let mut bytes = Vec::new();
        let read = self.from.by_ref().take(length).read_to_end(&mut bytes)? as u64;
        if read < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read += read;
        String::from_utf8(bytes).map_err(|_| invalid("text that is not UTF-8"))
    }

    fn value(&mut self, kind: u32) -> io::Result<Value> {
        Ok(match kind {
            U8 => json!(self.bytes::<1>()?[0]),
            I8 => json!(i8::from_le_bytes(self.bytes()?)),
            BOOL => json!(self.bytes::<1>()?[0] != 0),
            U16 => json!(u16::from_le_bytes(self.bytes()?)),
            I16 => json!(i16::from_le_bytes(self.bytes()?)),
            U32 => json!(self.u32()?),
            I32 => json!(i32::from_le_bytes(self.bytes()?)),
            F32 => {
                // The shortest decimal, which somebody wrote: 1e-6, and not the 64-bit number next to it.
                let text = f32::from_le_bytes(self.bytes()?).to_string();
                json!(text.parse::<f64>().unwrap_or(f64::NAN))
            }
            U64 => json!(self.u64()?),
            I64 => json!(i64::from_le_bytes(self.bytes()?)),
            F64 => json!(f64::from_le_bytes(self.bytes()?)),
            STRING => Value::String(self.text()?),
            ARRAY => {
                let (kind, length) = (self.u32()?, self.u64()?);
                if kind == ARRAY {
                    return Err(invalid("an array of arrays"));
                }
                let mut values = Vec::new();
                for _ in 0..length {
                    let value = self.value(kind)?;
                    // Nothing here needs arrays of others, which could take many times their bytes.
                    if matches!(kind, STRING | I32 | U32) {
                        values.push(value);
                    }
                }
                Value::Array(values)
            }
            kind => return Err(invalid(format!("a value of type {kind}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arch;
    use crate::model::gguf::GgufFile;
    use crate::model::{LlamaBlocks, RandomWeights};

    /// Random weights, also where models begin with zeros and ones.
    struct Everywhere(RandomWeights);

    impl WeightSource for Everywhere {
        fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            let shape = [&[1], shape].concat();
            self.0.weight(&format!("{name}."), &shape)
        }
    }

    fn written(architecture: &Architecture, dtype: GgufType) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let vocabulary = Vocabulary { words: "gpt-2", ..Vocabulary::default() };
        let file = GgufFile { name: "a", architecture, vocabulary: &vocabulary, dtype };
        let mut weights = Everywhere(RandomWeights::new(architecture, 3));
        file.write(&path, &mut weights, &mut |_, _| {}).unwrap();
        (folder, path)
    }

    fn scaled(scaling: &str) -> Architecture {
        let mut scaled = Architecture::tiny_llama(Arch::Llama, true);
        let Blocks::Llama(shape) = &mut scaled.blocks else { unreachable!() };
        *shape = LlamaBlocks {
            head_size: 16,
            rope_scaling: scaling.to_owned().try_into().unwrap(),
            ..*shape
        };
        scaled
    }

    #[test]
    fn files_read_back_as_they_were_written() {
        let plain = Blocks::Gpt2 { bias: false, gelu: Gelu::Tanh };
        for architecture in [
            Architecture::tiny(),
            Architecture { blocks: plain, ..Architecture::tiny() },
            Architecture::tiny_llama(Arch::Llama, true),
            Architecture::tiny_llama(Arch::Llama, false),
            Architecture::tiny_llama(Arch::Qwen2, true),
            Architecture::tiny_llama(Arch::Qwen3, false),
            scaled("linear:4"),
            scaled("llama3:8,1,4,300"),
        ] {
            for (dtype, step) in
                [(GgufType::F32, 0.0), (GgufType::F16, 1e-3), (GgufType::Q8_0, 0.01)]
            {
                let (_folder, path) = written(&architecture, dtype);
                let mut model = GgufModel::open(&path).unwrap();
                assert_eq!(model.architecture, architecture);
                let mut weights = Everywhere(RandomWeights::new(&architecture, 3));
                for (name, mut shape) in architecture.shapes() {
                    if name == "wte.weight" || name == "lm_head.weight" {
                        shape[0] = architecture.vocab_size;
                    }
                    let wanted = weights.weight(&name, &shape).unwrap();
                    let found = model.weight(&name, &shape).unwrap();
                    let largest = wanted.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                    assert_eq!(found.len(), wanted.len());
                    let off = |(a, b): (&f32, &f32)| (a - b).abs();
                    let most = found.iter().zip(&wanted).map(off).fold(0.0, f32::max);
                    assert!(most <= step * largest, "{name}: {most} of {largest}");
                }
            }
        }
    }

    /// Cuts and changed bytes are errors or another model, and never more.
    #[test]
    fn damaged_files_are_refused() {
        let (_folder, path) = written(&scaled("llama3:8,1,4,300"), GgufType::Q8_0);
        let whole = std::fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(97) {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = GgufModel::open(&path).unwrap_err();
            assert!(matches!(error, WeightError::Corrupt { .. }), "{length}: {error}");
        }
        for at in 0..3000 {
            let mut bytes = whole.clone();
            bytes[at] ^= [0x80, 0xff, 1][at % 3];
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(mut model) = GgufModel::open(&path) {
                let _ = model.weight("ln_f.weight", &[32]);
            }
        }
        let named = |from: &str, to: &str| {
            let at = whole.windows(from.len()).position(|it| it == from.as_bytes()).unwrap();
            let mut bytes = whole.clone();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            std::fs::write(&path, bytes).unwrap();
            GgufModel::open(&path).and_then(|mut model| model.weight("ln_f.weight", &[32]))
        };
        let error = named("output_norm", "output_morn").unwrap_err().to_string();
        assert!(error.contains("`output_norm.weight` is missing"), "{error}");
        let error = named("llama", "gemma").unwrap_err().to_string();
        assert!(error.contains("gemma"), "{error}");
    }
}
