//! nanoGPT's `ckpt.pt`, and other weights of a GPT-2 that PyTorch has saved, read as data: nothing in them is
//! executed.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use pytorch_reader::{DType, PickleValue, PytorchReader, Tensor};
use safetensors::tensor::Dtype;
use zip::{CompressionMethod, ZipArchive};

use super::hugging_face::{ARCHITECTURE_FILE, read_architecture};
use super::weights::{OTHER_CONFIG, plain_name, to_f32, transpose};
use super::{Architecture, Blocks, WeightError, WeightSource, pickle};
use crate::config::{GPT2_VOCABULARY, Gelu};
use crate::disk;
use crate::plan::HEAD;

/// The largest file that wgpt reads. GPT-2 XL with its optimizer in f32 takes 18.7 GB.
const MAX_BYTES: u64 = 24 << 30;

/// The longest list of tensors. That of GPT-2 XL with its optimizer has 300 kB; it takes much more memory once
/// it is read.
const MAX_PICKLE: u64 = 4 << 20;

/// What PyTorch's files begin with: a zip, and before version 1.6 a pickle of this number.
const ZIP: &[u8] = b"PK\x03\x04";
const OLD_FORMAT: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";

/// The pickles in the old format before the values: this number, the version, the system, the tensors, and the order
/// of their values.
const OLD_PICKLES: usize = 5;

const WRITE_ANEW: &str = "write it anew in Python, with torch.save(torch.load(FILE), FILE)";
const SAVE: &str = "save it in Python with torch.save";
const WITHOUT_OPTIMIZER: &str = "save it again without its optimizer";
const SAVE_AS_NANOGPT: &str =
    "save {'model': weights, 'model_args': sizes} in Python, as nanoGPT does";
const CHANGED: &str = "wgpt reads the model of nanoGPT's own model.py: give one without changes";

#[derive(Debug)]
pub struct NanoGptCheckpoint {
    path: PathBuf,
    /// The weights by their names without prefixes, like `wte.weight`.
    tensors: HashMap<String, Tensor>,
    pub architecture: Architecture,
    /// True if the architecture is that of a `config.json` in the file's folder.
    pub has_config: bool,
    /// The name of the data that the model was trained on.
    pub dataset: Option<String>,
    /// True if linears are [out, in], as nn.Linear has them; transformers' GPT-2 has them the other way.
    is_transposed: bool,
}

/// Returns the dataset in the configuration that nanoGPT saves with a model: the name of a folder in its folder data.
fn dataset(root: &HashMap<String, PickleValue>) -> Option<String> {
    let PickleValue::Dict(config) = root.get("config")? else { return None };
    let PickleValue::String(name) = config.get("dataset")? else { return None };
    let is_name = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    (!name.is_empty() && name.chars().all(is_name) && !name.starts_with('.')).then(|| name.clone())
}

impl NanoGptCheckpoint {
    /// Opens a checkpoint and reads its architecture. nanoGPT's GELU is the exact one, with erf. Weights without
    /// `model_args` have the architecture of the `config.json` next to them.
    ///
    /// # Errors
    /// If the file cannot be read, is too large, is not as PyTorch writes it, or has no architecture.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let wrong = |reason: String| WeightError::corrupt(path, reason);
        let file = disk::open_regular(path).map_err(WeightError::io(path))?;
        let bytes = file.metadata().map_err(WeightError::io(path))?.len();
        if bytes > MAX_BYTES {
            let [size, limit] = [bytes, MAX_BYTES].map(|bytes| bytes >> 30);
            let reason = format!("{size} GiB, but a checkpoint may have at most {limit} GiB");
            return Err(WeightError::unsupported(path, reason, WITHOUT_OPTIMIZER));
        }
        let unsupported = |reason: &str, hint| WeightError::Unsupported {
            path: path.to_owned(),
            reason: reason.to_owned(),
            hint,
        };
        let mut start = Vec::new();
        file.take(MAX_PICKLE).read_to_end(&mut start).map_err(WeightError::io(path))?;
        if start.starts_with(ZIP) {
            check_archive(path)?;
        } else if disk::is_lfs_pointer(&start) {
            return Err(unsupported(disk::LFS_POINTER, disk::LFS_HINT));
        } else if !is_old_format(&start) {
            let reason = "not a file as torch.save writes it";
            let is_pickle = start.first() == Some(&0x80);
            return Err(if start.starts_with(OLD_FORMAT) && bytes > MAX_PICKLE {
                unsupported("its list of tensors is too long", WITHOUT_OPTIMIZER)
            } else if start.starts_with(OLD_FORMAT) {
                // torch.load may read it.
                unsupported(reason, WRITE_ANEW)
            } else if is_pickle {
                unsupported(reason, SAVE)
            } else {
                wrong(reason.into())
            });
        }
        let not_nanogpt = |error| wrong(format!("not a nanoGPT checkpoint: {error}"));
        let root = PytorchReader::read_pickle_data(path, None).map_err(not_nanogpt)?;
        let PickleValue::Dict(root) = root else {
            return Err(wrong("not a nanoGPT checkpoint: its content is not a dictionary".into()));
        };
        let reader = if root.contains_key("model") {
            PytorchReader::with_top_level_key(path, "model")
        } else {
            PytorchReader::new(path)
        };
        let tensors = reader.map_err(not_nanogpt)?.into_tensors().into_iter();
        let tensors: HashMap<String, Tensor> =
            tensors.map(|(name, tensor)| (plain_name(&name), tensor)).collect();
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut has_config = false;
        let architecture = if let Some(PickleValue::Dict(args)) = root.get("model_args") {
            architecture(args)
                .map_err(|reason| WeightError::unsupported(path, reason, SAVE_AS_NANOGPT))?
        } else if disk::exists(&folder.join(ARCHITECTURE_FILE)) {
            has_config = true;
            let architecture = read_architecture(folder)?;
            let Blocks::Gpt2 { gelu, .. } = architecture.blocks else {
                let hint =
                    "save it in Python as transformers does, with model.save_pretrained(FOLDER)";
                return Err(unsupported("only weights of a GPT-2 are read from this format", hint));
            };
            let bias = tensors.contains_key("h.0.attn.c_attn.bias");
            Architecture { blocks: Blocks::Gpt2 { bias, gelu }, ..architecture }
        } else {
            let reason = "no `model_args`, and weights alone do not tell the number of heads";
            let hint = "put the config.json of the model next to it, as transformers writes it, or save \
                        {'model': weights, 'model_args': sizes}, as nanoGPT does";
            return Err(unsupported(reason, hint));
        };
        let shape = tensors.get("h.0.attn.c_attn.weight").map(Tensor::shape);
        let is_transposed = shape.is_none_or(|shape| shape.first() != Some(&architecture.n_embd));
        let path = path.to_path_buf();
        let dataset = dataset(&root);
        Ok(Self { path, tensors, architecture, has_config, dataset, is_transposed })
    }

    /// Returns true if the file has a head other than the embedding.
    pub fn has_other_head(&self) -> Result<bool, WeightError> {
        let [head, embedding] = [HEAD, "wte.weight"].map(|name| self.tensors.get(name));
        let Some((head, embedding)) = head.zip(embedding) else { return Ok(false) };
        if (head.shape(), head.dtype()) != (embedding.shape(), embedding.dtype()) {
            return Ok(true);
        }
        let read = |tensor: &Tensor| {
            tensor.read().map_err(|error| WeightError::corrupt(&self.path, error))
        };
        Ok(read(head)? != read(embedding)?)
    }
}

/// Returns true for the start of a file in the format from before PyTorch 1.6, if that has all of its pickles: so they
/// are no longer than the start.
fn is_old_format(start: &[u8]) -> bool {
    // The library would take it for the archive of an even older version, and unpack that into memory.
    let is_tar = start.get(257..262) == Some(b"ustar");
    let mut rest = Some(start);
    for _ in 0..OLD_PICKLES {
        rest = rest.and_then(|rest| rest.get(pickle::length(rest)?..));
    }
    start.starts_with(OLD_FORMAT) && !is_tar && rest.is_some()
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
            let reason = format!("not a nanoGPT checkpoint: its {name} is {what}");
            let hint = if is_long { WITHOUT_OPTIMIZER } else { WRITE_ANEW };
            return Err(WeightError::unsupported(path, reason, hint));
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
        let tensor = self.tensors.get(name);
        let hint = if self.has_config { OTHER_CONFIG } else { CHANGED };
        let tensor = tensor.ok_or_else(|| WeightError::missing(path, name, hint))?;
        // If a square matrix were not transposed, its shape would still fit.
        let transposed = self.is_transposed && shape.len() == 2 && name.starts_with("h.");
        let mut need = shape.to_vec();
        if transposed {
            need.reverse();
        }
        let have = tensor.shape();
        // nanoGPT pads the vocabulary.
        let is_table = name == "wte.weight" && have.len() == 2;
        let padded = is_table && have[0] > need[0] && !self.has_config;
        if have != need && !(padded && have[1] == need[1]) {
            return Err(WeightError::shape(path, name, [have, &need], hint));
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
        let mut values = values.ok_or_else(|| WeightError::dtype(path, name, tensor.dtype()))?;
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
    use crate::data::testing::{assert_says, folder};

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

    fn old_checkpoint() -> Vec<u8> {
        include_bytes!("../../tests/reference/old_ckpt.pt").to_vec()
    }

    /// Checks each weight of the model of tests/reference/old_checkpoints.py.
    fn check(mut checkpoint: NanoGptCheckpoint, gelu: Gelu) {
        let architecture = checkpoint.architecture.clone();
        let Architecture { n_layer, n_head, n_embd, block_size, vocab_size, .. } = architecture;
        assert_eq!([n_layer, n_head, n_embd, block_size, vocab_size], [1, 2, 8, 4, 16]);
        assert_eq!(architecture.blocks, Blocks::Gpt2 { bias: true, gelu });
        let shapes = architecture.shapes();
        assert_eq!(shapes.len(), 16);
        for (name, shape) in shapes {
            let count = shape.iter().product::<usize>();
            let expected: Vec<f32> =
                (0..count).map(|i| name.len() as f32 + i as f32 / 64.0).collect();
            assert_eq!(checkpoint.weight(&name, &shape).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn the_format_before_version_1_6_is_read() {
        let folder = folder(&[("ckpt.pt", old_checkpoint())]);
        check(NanoGptCheckpoint::open(&folder.path().join("ckpt.pt")).unwrap(), Gelu::Erf);
    }

    #[test]
    fn a_state_dict_has_the_architecture_of_the_config_next_to_it() {
        let bare = include_bytes!("../../tests/reference/bare_state.pt");
        let folder = folder(&[("bare.pt", bare)]);
        let path = folder.path().join("bare.pt");
        let error = NanoGptCheckpoint::open(&path).unwrap_err();
        assert_says(&error, "no `model_args`, and weights alone do not tell the number of heads");
        let WeightError::Unsupported { hint, .. } = error else { panic!("{error}") };
        assert_says(hint, "put the config.json of the model next to it");
        let config = r#"{"n_layer":1,"n_head":2,"n_embd":8,"n_positions":4,"vocab_size":16}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        check(NanoGptCheckpoint::open(&path).unwrap(), Gelu::Tanh);
        // Fewer tokens are another model's, not padding.
        let fewer = config.replace(r#""vocab_size":16"#, r#""vocab_size":15"#);
        std::fs::write(folder.path().join("config.json"), fewer).unwrap();
        let mut checkpoint = NanoGptCheckpoint::open(&path).unwrap();
        let error = checkpoint.weight("wte.weight", &[15, 8]).unwrap_err();
        let WeightError::Unsupported { hint, .. } = error else { panic!("{error}") };
        assert_eq!(hint, OTHER_CONFIG);
    }

    #[test]
    fn a_head_of_its_own_is_found() {
        let bare = include_bytes!("../../tests/reference/bare_state.pt");
        let config = r#"{"n_layer":1,"n_head":2,"n_embd":8,"n_positions":4,"vocab_size":16}"#;
        let folder = folder(&[("a.pt", &bare[..]), ("config.json", config.as_bytes())]);
        let mut checkpoint = NanoGptCheckpoint::open(&folder.path().join("a.pt")).unwrap();
        assert!(!checkpoint.has_other_head().unwrap());
        for (other, is_other) in [("wte.weight", false), ("wpe.weight", true)] {
            let tensor = checkpoint.tensors[other].clone();
            checkpoint.tensors.insert(HEAD.to_owned(), tensor);
            assert_eq!(checkpoint.has_other_head().unwrap(), is_other, "{other}");
        }
    }

    #[test]
    fn pickles_in_the_old_format_are_bounded() {
        let old = old_checkpoint();
        let folder = folder(&[("a", b"")]);
        let path = folder.path().join("ckpt.pt");
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            NanoGptCheckpoint::open(&path).map_err(|error| error.to_string()).err()
        };
        assert_eq!(open(&old), None);
        // The version, the third of the pickles, gets a text that is longer than all may be.
        let text = [&b"X"[..], &(MAX_PICKLE as u32).to_le_bytes()].concat();
        let long = [&old[..23], &text, &vec![b'x'; MAX_PICKLE as usize], b"0", &old[23..]].concat();
        let mut tar = old.clone();
        tar[257..262].copy_from_slice(b"ustar");
        assert_says(open(&long).unwrap(), "its list of tensors is too long");
        for bytes in [&old[..2000], &tar, b"\x80\x02}."] {
            let error = open(bytes).unwrap();
            assert_says(error, "not a file as torch.save writes it");
        }
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

    /// Each row has a file, and a part of the advice.
    #[test]
    fn the_advice_about_other_files_fits_what_they_are() {
        for (content, hint) in [
            (OLD_FORMAT, "torch.save(torch.load(FILE), FILE)"),
            (b"\x80\x02N.", "save it in Python with torch.save"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"<html>", "download or export"),
            (b"", "download or export"),
        ] {
            let folder = folder(&[("ckpt.pt", content)]);
            let error = NanoGptCheckpoint::open(&folder.path().join("ckpt.pt")).unwrap_err();
            let failure = crate::protocol::Failure::from(error);
            assert_says(failure.hint, hint);
        }
    }
}
