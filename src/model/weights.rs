//! Weights in and out of safetensors files, one tensor at a time.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use safetensors::tensor::{Dtype, Metadata, View};
use thiserror::Error;

use super::{Gpt, WeightSource};

/// Why weights could not be read or written.
#[derive(Debug, Error)]
pub enum WeightError {
    /// The file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The file is not what its name says.
    #[error("{}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A weight is not in the file.
    #[error("{}: no tensor `{name}`", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The weight.
        name: String,
    },
    /// A weight has another shape than the model.
    #[error("{}: `{name}` is {have:?}, the model needs {need:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The weight.
        name: String,
        /// Its shape in the file.
        have: Vec<usize>,
        /// Its shape in the model.
        need: Vec<usize>,
    },
}

impl WeightError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        |source| WeightError::Io { path, source }
    }

    pub(super) fn corrupt(path: &Path, reason: impl ToString) -> Self {
        WeightError::Corrupt { path: path.to_path_buf(), reason: reason.to_string() }
    }
}

/// A safetensors file, read tensor by tensor: the header is held, the data is not.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the data begins.
    data_start: u64,
    prefix: &'static str,
}

impl WeightFile {
    /// Opens a file and checks its header. Names may carry Hugging Face's `transformer.` prefix.
    ///
    /// # Errors
    /// If it cannot be read, or is no safetensors file, or is shorter than its header says.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        // The format's own limit on the header; a larger number is not a header.
        const MAX_HEADER: u64 = 100_000_000;
        let mut file = File::open(path).map_err(WeightError::io(path))?;
        let len = file.metadata().map_err(WeightError::io(path))?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size)
            .map_err(|_| WeightError::corrupt(path, "shorter than a safetensors header"))?;
        let header_len = u64::from_le_bytes(size);
        if header_len > MAX_HEADER || header_len + 8 > len {
            return Err(WeightError::corrupt(path, "not a safetensors file, or cut short"));
        }
        let mut header = vec![0u8; header_len as usize];
        file.read_exact(&mut header).map_err(WeightError::io(path))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| WeightError::corrupt(path, format!("bad header: {error}")))?;
        let data_start = 8 + header_len;
        let data_len = metadata.data_len() as u64;
        if data_start + data_len != len {
            let reason = format!(
                "{len} bytes, but its header describes {}: cut short or damaged",
                data_start + data_len
            );
            return Err(WeightError::corrupt(path, reason));
        }
        let prefixed = metadata.tensors().keys().any(|name| name.starts_with("transformer."));
        let prefix = if prefixed { "transformer." } else { "" };
        Ok(Self { path: path.to_path_buf(), file, metadata, data_start, prefix })
    }

    /// Whether any bias is there that is not zero.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn has_biases(&mut self) -> Result<bool, WeightError> {
        let infos = self.metadata.tensors();
        let biases = infos.iter().filter(|(name, _)| {
            // Old files keep the causal mask as `attn.bias`.
            name.ends_with(".bias") && !name.ends_with(".attn.bias")
        });
        let biases: Vec<(String, Vec<usize>)> = biases
            .filter_map(|(name, info)| {
                Some((name.strip_prefix(self.prefix)?.into(), info.shape.clone()))
            })
            .collect();
        for (name, shape) in biases {
            if self.weight(&name, &shape)?.iter().any(|&value| value != 0.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl WeightSource for WeightFile {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let path = &self.path;
        let Some(info) = self.metadata.info(&format!("{}{name}", self.prefix)) else {
            return Err(WeightError::Missing { path: path.clone(), name: name.to_string() });
        };
        if info.shape != shape {
            return Err(WeightError::Shape {
                path: path.clone(),
                name: name.to_string(),
                have: info.shape.clone(),
                need: shape.to_vec(),
            });
        }
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0u8; to - from];
        self.file
            .seek(SeekFrom::Start(self.data_start + from as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(WeightError::io(path))?;
        to_f32(&bytes, info.dtype).ok_or_else(|| {
            let reason = format!("`{name}` is {:?}; f32, f16 and bf16 are read", info.dtype);
            WeightError::corrupt(path, reason)
        })
    }
}

fn to_f32(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect(),
        Dtype::F16 => halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::BF16 => halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        _ => return None,
    })
}

/// One weight or one moment, flat, where it lies.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its Hugging Face name, without prefix.
    pub name: String,
    /// Its shape; its elements may be fewer than those of `parts` where padding is left out.
    pub shape: Vec<usize>,
    /// Its elements in row-major order, without autodiff, in one tensor or several.
    pub parts: Vec<Tensor<1>>,
}

/// The weights of a model in its own order, the embedding's padding included.
pub fn parameters(model: &Gpt) -> Vec<Parameter> {
    let mut collect = Collect { path: Vec::new(), found: Vec::new() };
    model.visit(&mut collect);
    collect.found
}

struct Collect {
    path: Vec<String>,
    found: Vec<Parameter>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val().inner();
        let shape = value.dims().to_vec();
        let elements = shape.iter().product::<usize>();
        let part = value.reshape([elements]);
        // The tables of one embedding are one weight to everybody else.
        let numbered = self.path.last().is_some_and(|last| last.parse::<usize>().is_ok());
        let name = self.path[..self.path.len() - usize::from(numbered)].join(".");
        match self.found.last_mut() {
            Some(former) if former.name == name => {
                former.shape[0] += shape[0];
                former.parts.push(part);
            }
            _ => self.found.push(Parameter { name, shape, parts: vec![part] }),
        }
    }
}

/// Writes tensors as f32 safetensors, reading each off the device only when its turn comes.
///
/// # Errors
/// If the file cannot be written.
pub fn write_tensors(
    path: &Path,
    tensors: &[Parameter],
    metadata: HashMap<String, String>,
) -> Result<(), WeightError> {
    let views = tensors.iter().map(|tensor| (tensor.name.as_str(), Lazy(tensor)));
    safetensors::serialize_to_file(views, Some(metadata), path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => {
            WeightError::Io { path: path.to_path_buf(), source }
        }
        other => WeightError::corrupt(path, other),
    })
}

/// Elements that are read off the device at a time: a copy of a whole embedding, in memory that the
/// host can see, would make a checkpoint the fullest moment of a run.
const READ_ELEMENTS: usize = 1 << 20;

struct Lazy<'a>(&'a Parameter);

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::new();
        for part in &self.0.parts {
            let [elements] = part.dims();
            for first in (0..elements).step_by(READ_ELEMENTS) {
                let slice = part.clone().narrow(0, first, READ_ELEMENTS.min(elements - first));
                bytes.extend_from_slice(slice.into_data().as_bytes());
            }
        }
        bytes.truncate(self.data_len());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        4 * self.0.shape.iter().product::<usize>()
    }
}
