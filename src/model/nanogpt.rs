//! nanoGPT's `ckpt.pt`, read as data: nothing in it is executed.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use pytorch_reader::{DType, PickleValue, PytorchReader, Tensor};
use safetensors::tensor::Dtype;
use zip::{CompressionMethod, ZipArchive};

use super::weights::{plain_name, to_f32, transpose};
use super::{Architecture, WeightError, WeightSource};
use crate::config::{GPT2_VOCABULARY, Gelu};
use crate::disk;

/// The largest file that wgpt reads. GPT-2 XL with its optimizer in f32 takes 18.7 GB.
const MAX_BYTES: u64 = 24 << 30;

/// The longest list of tensors. That of GPT-2 XL with its optimizer has 300 kB; it takes much more memory once
/// it is read.
const MAX_PICKLE: u64 = 4 << 20;

#[derive(Debug)]
pub struct NanoGptCheckpoint {
    path: PathBuf,
    /// The weights by their names without prefixes, like `wte.weight`.
    tensors: HashMap<String, Tensor>,
    pub architecture: Architecture,
}

impl NanoGptCheckpoint {
    /// Opens a checkpoint and reads its architecture. nanoGPT's GELU is the exact one, with erf.
    ///
    /// # Errors
    /// If the file cannot be read, is too large, is not as PyTorch writes it, or lacks `model` or
    /// `model_args`.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let wrong = |reason: String| WeightError::corrupt(path, reason);
        let file = disk::open_regular(path).map_err(WeightError::io(path))?;
        let bytes = file.metadata().map_err(WeightError::io(path))?.len();
        if bytes > MAX_BYTES {
            let [size, limit] = [bytes, MAX_BYTES].map(|bytes| bytes >> 30);
            let reason = format!("{size} GiB, but a checkpoint may have at most {limit} GiB");
            return Err(wrong(reason));
        }
        let unsupported = |reason: &str, hint| WeightError::Unsupported {
            path: path.to_owned(),
            reason: reason.to_owned(),
            hint,
        };
        if !starts_as_zip(path)? {
            let hint = "write it anew in Python, with torch.save(torch.load(FILE), FILE)";
            return Err(unsupported("not a zip, as PyTorch writes files since version 1.6", hint));
        }
        check_archive(path)?;
        let not_nanogpt = |error| wrong(format!("not a nanoGPT checkpoint: {error}"));
        let reader = PytorchReader::with_top_level_key(path, "model").map_err(not_nanogpt)?;
        let root = PytorchReader::read_pickle_data(path, None).map_err(not_nanogpt)?;
        let PickleValue::Dict(root) = root else {
            return Err(wrong("not a nanoGPT checkpoint: its content is not a dictionary".into()));
        };
        let Some(PickleValue::Dict(args)) = root.get("model_args") else {
            let reason = "no `model_args`, and weights alone do not tell the number of heads";
            let hint = "save {'model': weights, 'model_args': sizes}, as nanoGPT does";
            return Err(unsupported(reason, hint));
        };
        let tensors = reader
            .into_tensors()
            .into_iter()
            .map(|(name, tensor)| (plain_name(&name), tensor))
            .collect();
        let architecture = architecture(args).map_err(wrong)?;
        Ok(Self { path: path.to_path_buf(), tensors, architecture })
    }
}

fn starts_as_zip(path: &Path) -> Result<bool, WeightError> {
    let mut start = Vec::new();
    let file = disk::open_regular(path).map_err(WeightError::io(path))?;
    file.take(4).read_to_end(&mut start).map_err(WeightError::io(path))?;
    Ok(start == b"PK\x03\x04")
}

/// Refuses archives that PyTorch does not write. It compresses nothing, so that no entry is larger than the
/// file, and its list of tensors is short.
fn check_archive(path: &Path) -> Result<(), WeightError> {
    let wrong = |reason: &dyn Display| {
        WeightError::corrupt(path, format!("not a nanoGPT checkpoint: {reason}"))
    };
    let file = disk::File::open(path).map_err(WeightError::io(path))?;
    let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|error| wrong(&error))?;
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(|error| wrong(&error))?;
        let name = entry.name().map_err(|error| wrong(&error))?;
        let is_long = name.ends_with(".pkl") && entry.size() > MAX_PICKLE;
        if is_long || entry.compression() != CompressionMethod::Stored {
            let what = if is_long { "too long" } else { "compressed" };
            return Err(wrong(&format!("its {name} is {what}")));
        }
    }
    Ok(())
}

fn architecture(args: &HashMap<String, PickleValue>) -> Result<Architecture, String> {
    let size = |key: &str, max: usize| match args.get(key) {
        Some(PickleValue::Int(value)) if (1..=max as i64).contains(value) => Ok(*value as usize),
        other => Err(format!("model_args[`{key}`] is {other:?}, not an integer from 1 to {max}")),
    };
    let bias = match args.get("bias") {
        Some(PickleValue::Bool(bias)) => *bias,
        // Checkpoints from before this option have biases.
        None => true,
        other => return Err(format!("model_args[`bias`] is {other:?}, not True or False")),
    };
    let mut architecture = Architecture::stated("block_size", bias, Gelu::Erf, size)?;
    if architecture.vocab_size == 50_304 {
        // nanoGPT pads GPT-2's vocabulary. No target is ever in the padding.
        architecture.vocab_size = GPT2_VOCABULARY as usize;
    }
    Ok(architecture)
}

impl WeightSource for NanoGptCheckpoint {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let path = &self.path;
        let tensor = self.tensors.get(name).ok_or_else(|| WeightError::missing(path, name))?;
        // nn.Linear stores [out, in]. If a square matrix were not transposed, its shape would still fit.
        let transposed = shape.len() == 2 && name.starts_with("h.");
        let mut need = shape.to_vec();
        if transposed {
            need.reverse();
        }
        let have = tensor.shape();
        let padded = name == "wte.weight" && have.len() == 2 && have[0] > need[0];
        if have != need && !(padded && have[1] == need[1]) {
            return Err(WeightError::shape(path, name, have, &need));
        }
        let bytes = tensor.read().map_err(|error| WeightError::corrupt(path, error))?;
        // The reader returns the native byte order, which is little-endian on every system of wgpt.
        let values = match tensor.dtype() {
            DType::F64 => to_f32(&bytes, Dtype::F64),
            DType::F32 => to_f32(&bytes, Dtype::F32),
            DType::F16 => to_f32(&bytes, Dtype::F16),
            DType::BF16 => to_f32(&bytes, Dtype::BF16),
            _ => None,
        };
        let mut values = values.ok_or_else(|| {
            let reason = format!("`{name}` is {:?}, not f64, f32, f16 or bf16", tensor.dtype());
            WeightError::corrupt(path, reason)
        })?;
        values.truncate(need.iter().product());
        Ok(if transposed { transpose(&values, shape[1], shape[0]) } else { values })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// Writes the reference checkpoint again, with this method and bytes after its list of tensors.
    fn packed(method: CompressionMethod, more: usize) -> tempfile::NamedTempFile {
        let reference = include_bytes!("../../tests/reference/nanogpt_ckpt.pt");
        let mut from = ZipArchive::new(Cursor::new(reference)).unwrap();
        let file = tempfile::NamedTempFile::with_suffix(".pt").unwrap();
        let mut to = ZipWriter::new(file.as_file());
        let options = SimpleFileOptions::default().compression_method(method);
        for index in 0..from.len() {
            let mut entry = from.by_index(index).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let name = entry.name().unwrap().into_owned();
            if name.ends_with("data.pkl") {
                content.resize(content.len() + more, b'N');
            }
            to.start_file(name, options).unwrap();
            to.write_all(&content).unwrap();
        }
        to.finish().unwrap();
        file
    }

    #[test]
    fn only_archives_of_pytorch_are_read() {
        let open = |file: tempfile::NamedTempFile| {
            NanoGptCheckpoint::open(file.path()).map_err(|error| error.to_string())
        };
        open(packed(CompressionMethod::Stored, 0)).unwrap();
        for (file, part) in [
            (packed(CompressionMethod::Deflated, 0), "is compressed"),
            (packed(CompressionMethod::Stored, MAX_PICKLE as usize), "data.pkl is too long"),
        ] {
            let error = open(file).unwrap_err();
            assert!(error.ends_with(part), "{error}");
        }
    }
}
