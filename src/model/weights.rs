//! Reads and writes weights in safetensors files, one tensor at a time.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Display};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use thiserror::Error;

use super::WeightSource;
use crate::disk::{self, File};
use crate::plan::STAGED_ELEMENTS;
use crate::protocol::{Exit, Failure};
use crate::text::excerpt;

#[derive(Debug, Error)]
pub enum WeightError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// The content of the file is not valid, or does not fit the model.
    #[error("{}: {reason}", path.display())]
    Corrupt { path: PathBuf, reason: String },
    /// A model that wgpt cannot use, or not like this. Another copy of it would be the same.
    #[error("{}: {reason}", path.display())]
    Unsupported { path: PathBuf, reason: String, hint: &'static str },
    /// The type of a file cannot hold a value of this size.
    #[error("`{name}` has a value of {value:e}, which the type of the file cannot hold")]
    TooLarge { name: String, value: f32 },
    /// A source of weights other than a file failed, like the connection to another process.
    #[error(transparent)]
    Source(Box<Failure>),
}

impl WeightError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        |source| WeightError::Io { path, source }
    }

    pub(crate) fn corrupt(path: &Path, reason: impl Display) -> Self {
        WeightError::Corrupt { path: path.to_path_buf(), reason: excerpt(reason) }
    }

    pub(crate) fn unsupported(path: &Path, reason: impl Display, hint: &'static str) -> Self {
        WeightError::Unsupported { path: path.to_path_buf(), reason: excerpt(reason), hint }
    }

    pub(super) fn missing(path: &Path, name: &str, hint: &'static str) -> Self {
        Self::unsupported(path, format!("tensor `{name}` is missing"), hint)
    }

    /// The shape of a weight differs from the model's.
    pub(super) fn shape(
        path: &Path,
        name: &str,
        [have, need]: [&[usize]; 2],
        hint: &'static str,
    ) -> Self {
        let reason = format!("`{name}` has shape {have:?}, the model needs {need:?}");
        Self::unsupported(path, reason, hint)
    }

    /// A weight is stored as numbers that are no weights.
    pub(super) fn dtype(path: &Path, name: &str, dtype: impl Debug) -> Self {
        let reason = format!("`{name}` is {dtype:?}, not f64, f32, f16 or bf16");
        Self::unsupported(path, reason, NOT_QUANTIZED)
    }
}

/// The advice about weights that differ from their `config.json`.
pub(super) const OTHER_CONFIG: &str =
    "the config.json belongs to another model: take it and the weights from the same place";

/// The advice about weights that are stored with fewer bits.
pub(super) const NOT_QUANTIZED: &str = "give the model that this one was quantized from";

/// The advice about weights that still have the adapter of a fine-tuning in them.
const UNMERGED: &str = "merge the adapter into its model first, in Python with PEFT's merge_and_unload and save_pretrained";

/// The advice about a model that is damaged.
pub(crate) const OTHER_MODEL: &str =
    "download or export the model again, or give another checkpoint if there is one";

impl From<WeightError> for Failure {
    fn from(error: WeightError) -> Self {
        let text = error.to_string();
        match error {
            WeightError::Source(failure) => *failure,
            WeightError::Unsupported { hint, .. } => Self::bad_data(text, hint),
            WeightError::TooLarge { .. } => Self::usage(text, "export with --type=f32"),
            WeightError::Corrupt { .. } => Self::bad_data(text, OTHER_MODEL),
            WeightError::Io { source, .. } => {
                let hint = disk::hint(&source)
                    .unwrap_or("check the path, its permissions and the free space of the disk");
                // A missing file is bad input; any other error is the system's.
                let is_missing = source.kind() == std::io::ErrorKind::NotFound;
                let exit = if is_missing { Exit::BadData } else { Exit::Failure };
                Self::new(text, hint).with_exit(exit)
            }
        }
    }
}

/// A safetensors file, read tensor by tensor: only the header stays in memory.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// The offset of the tensors' values.
    data_start: u64,
    /// The names in the file by their [`plain_name`].
    names: BTreeMap<String, String>,
}

impl WeightFile {
    /// Opens a file and checks its header. Its tensors have [`plain_name`]s from here on.
    ///
    /// # Errors
    /// If the file cannot be read, is not a safetensors file, or is truncated.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        // The limit that the format sets.
        const MAX_HEADER: u64 = 100_000_000;
        let mut file = disk::open_regular(path).map_err(WeightError::io(path))?;
        let len = file.metadata().map_err(WeightError::io(path))?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size)
            .map_err(|_| WeightError::corrupt(path, "shorter than a safetensors header"))?;
        let header_len = u64::from_le_bytes(size);
        if header_len > MAX_HEADER || header_len + 8 > len {
            let mut start = size.to_vec();
            file.take(64).read_to_end(&mut start).map_err(WeightError::io(path))?;
            return Err(if disk::is_lfs_pointer(&start) {
                WeightError::unsupported(path, disk::LFS_POINTER, disk::LFS_HINT)
            } else {
                WeightError::corrupt(path, "not a safetensors file, or cut short")
            });
        }
        let mut header = vec![0u8; header_len as usize];
        file.read_exact(&mut header).map_err(WeightError::io(path))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| WeightError::corrupt(path, format!("bad header: {error}")))?;
        let data_start = 8 + header_len;
        let end = data_start + metadata.data_len() as u64;
        if end != len {
            let reason =
                format!("{len} bytes, but its header describes {end}: cut short or damaged");
            return Err(WeightError::corrupt(path, reason));
        }
        let names = metadata.tensors().into_keys().map(|name| (plain_name(&name), name)).collect();
        Ok(Self { path: path.to_path_buf(), file, metadata, data_start, names })
    }

    /// Returns true if the file has the tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Returns the name and the shape of each tensor.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let shape = |name: &String| self.metadata.info(name).map_or(&[][..], |info| &info.shape);
        self.names.iter().map(move |(plain, name)| (plain.as_str(), shape(name)))
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, WeightError> {
        let info = self.names.get(name).and_then(|name| self.metadata.info(name));
        info.ok_or_else(|| WeightError::missing(&self.path, name, self.missing_hint()))
    }

    /// Returns what to do about a tensor that is missing.
    pub(super) fn missing_hint(&self) -> &'static str {
        let is_adapted = |name: &String| {
            name.starts_with("base_model.")
                || [".base_layer.", ".lora_"].iter().any(|part| name.contains(part))
        };
        if self.names.values().any(is_adapted) { UNMERGED } else { OTHER_CONFIG }
    }

    /// Returns the shape of a tensor, its type, and its bytes.
    pub fn raw(&mut self, name: &str) -> Result<(Vec<usize>, Dtype, Vec<u8>), WeightError> {
        let TensorInfo { shape, dtype, data_offsets: (from, to) } = self.info(name)?.clone();
        let mut bytes = vec![0u8; to - from];
        self.file
            .seek(SeekFrom::Start(self.data_start + from as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(WeightError::io(&self.path))?;
        Ok((shape, dtype, bytes))
    }

    /// Returns true if the file has a bias other than zero.
    pub fn has_biases(&mut self) -> Result<bool, WeightError> {
        // Old files store the causal mask as `attn.bias`.
        let is_bias = |name: &&String| name.ends_with(".bias") && !name.ends_with(".attn.bias");
        let biases: Vec<String> = self.names.keys().filter(is_bias).cloned().collect();
        for name in biases {
            let shape = self.info(&name)?.shape.clone();
            if self.weight(&name, &shape)?.iter().any(|&value| value != 0.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl WeightSource for WeightFile {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let info = self.info(name)?;
        if info.shape != shape {
            let shapes = [&info.shape[..], shape];
            return Err(WeightError::shape(&self.path, name, shapes, OTHER_CONFIG));
        }
        let (_, dtype, bytes) = self.raw(name)?;
        to_f32(&bytes, dtype).ok_or_else(|| WeightError::dtype(&self.path, name, dtype))
    }
}

/// Prefixes that `torch.compile` and DDP add to the names of weights.
const WRAPPERS: [&str; 2] = ["_orig_mod.", "module."];

/// Returns the name that a weight has in GPT-2's files at OpenAI, or in those of `LlamaForCausalLM`:
/// `h.0.attn.c_attn.weight` for `_orig_mod.transformer.h.0.attn.c_attn.weight`, and
/// `model.norm.weight` for `norm.weight`, as `LlamaModel` by itself is saved.
pub(super) fn plain_name(name: &str) -> String {
    let mut name = name;
    while let Some(rest) = WRAPPERS.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        name = rest;
    }
    let name = name.strip_prefix("transformer.").unwrap_or(name);
    let is_bare = ["layers.", "embed_tokens.", "norm."].iter().any(|part| name.starts_with(part));
    if is_bare { format!("model.{name}") } else { name.to_string() }
}

/// Converts little-endian elements to f32; `None` for dtypes that no weight has.
pub(super) fn to_f32(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match dtype {
        Dtype::F64 => {
            bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect()
        }
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect(),
        Dtype::F16 => halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        _ => return None,
    })
}

/// Transposes a matrix `[rows, columns]`.
pub(super) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut transposed = vec![0.0; values.len()];
    for (row, values) in values.chunks(columns).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            transposed[column * rows + row] = value;
        }
    }
    transposed
}

/// A weight, or a moment of a weight, on its device.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The Hugging Face name, without prefix.
    pub name: String,
    /// The shape in files, without the padding at the end of `parts`.
    pub shape: Vec<usize>,
    /// The elements in row-major order, in one tensor, or in several for an embedding in shards.
    pub parts: Vec<Tensor<1>>,
}

/// An f32 safetensors file that is being written.
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
}

impl TensorFile {
    /// Creates a file for these tensors. Write their values next, in the same order.
    pub fn create(
        path: &Path,
        tensors: &[&Parameter],
        metadata: HashMap<String, String>,
    ) -> Result<Self, WeightError> {
        let mut end = 0;
        let infos = tensors.iter().map(|tensor| {
            let start = end;
            end += bytes(tensor);
            let info = TensorInfo {
                dtype: Dtype::F32,
                shape: tensor.shape.clone(),
                data_offsets: (start, end),
            };
            (tensor.name.clone(), info)
        });
        let metadata = Metadata::new(Some(metadata), infos.collect());
        let text = metadata.and_then(|metadata| Ok(serde_json::to_vec(&metadata)?));
        let mut text = text.map_err(|error| WeightError::corrupt(path, error))?;
        // The length of the JSON text comes first. Spaces pad it to a multiple of 8 bytes.
        text.resize(text.len().next_multiple_of(8), b' ');
        let header = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
        let mut file = disk::create_own(path).map_err(WeightError::io(path))?;
        file.write_all(&header).map_err(WeightError::io(path))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Writes the values of a tensor, read from the device in pieces, without blocking this thread.
    pub async fn write(&mut self, tensor: &Parameter) -> Result<(), WeightError> {
        // The padding is at the end, and files do not have it.
        let mut remaining = bytes(tensor);
        for part in &tensor.parts {
            let [elements] = part.dims();
            for first in (0..elements).step_by(STAGED_ELEMENTS) {
                let slice = part.clone().narrow(0, first, STAGED_ELEMENTS.min(elements - first));
                let values = super::values(slice).await;
                let saved = &values.as_bytes()[..remaining.min(values.as_bytes().len())];
                self.append(saved)?;
                remaining -= saved.len();
            }
        }
        Ok(())
    }

    /// Writes the next bytes of a tensor whose values are on another rank.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), WeightError> {
        self.file.write_all(bytes).map_err(WeightError::io(&self.path))
    }
}

/// Returns the size of a tensor in the file.
fn bytes(tensor: &Parameter) -> usize {
    4 * tensor.shape.iter().product::<usize>()
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn written_files_equal_those_of_the_safetensors_crate() {
        let device = burn::tensor::Device::flex();
        let values: Vec<f32> = (0..10).map(|value| value as f32).collect();
        let tensor = |name: &str, count: usize| Parameter {
            name: name.into(),
            shape: vec![2, count / 2],
            parts: vec![
                Tensor::from_floats(&values[..3], &device),
                Tensor::from_floats(&values[3..], &device),
            ],
        };
        let tensors = [tensor("attn", 10), tensor("wte", 8)];
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let all: Vec<&Parameter> = tensors.iter().collect();
        let mut file = TensorFile::create(&path, &all, metadata.clone()).unwrap();
        for tensor in all {
            pollster::block_on(file.write(tensor)).unwrap();
        }
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = |count: usize| {
            TensorView::new(Dtype::F32, vec![2, count / 2], &raw[..4 * count]).unwrap()
        };
        let views = [("wte", view(8)), ("attn", view(10))];
        let expected = safetensors::serialize(views, Some(metadata)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }
}
