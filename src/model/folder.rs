//! The weights of a Hugging Face folder: in one file or in several with an index, under the names and in
//! the layout of transformers.
//!
//! Llama's matrices are `[out, in]` there, and queries, keys and values are three of them. In memory they
//! are one weight `[in, out]`, side by side, as GPT-2's `c_attn` is in its files. So are their biases.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use serde::Deserialize;

use super::weights::{OTHER_CONFIG, Parameter, TensorFile, transpose};
use super::{Architecture, Blocks, WeightError, WeightFile, WeightSource};
use crate::config::Arch;
use crate::disk;
use crate::plan::HEAD;

pub const WEIGHTS_FILE: &str = "model.safetensors";
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// The part of an index that names the files.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Returns true if a folder has weights, in one file or several.
pub fn has_weights(folder: &Path) -> bool {
    [WEIGHTS_FILE, INDEX_FILE].iter().any(|file| disk::exists(&folder.join(file)))
}

/// Returns the files with the weights of a folder.
pub fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, WeightError> {
    let single = folder.join(WEIGHTS_FILE);
    let path = folder.join(INDEX_FILE);
    if disk::exists(&single) || !disk::exists(&path) {
        return Ok(vec![single]);
    }
    let text = disk::read_regular(&path).map_err(WeightError::io(&path))?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| WeightError::corrupt(&path, format!("not an index: {error}")))?;
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    let file = |name: &String| {
        // An index that came with a download must not lead elsewhere.
        let is_name = Path::new(name).file_name().is_some_and(|file| file == name.as_str());
        let reason = || format!("{name:?} is not the name of a file in this folder");
        is_name.then(|| folder.join(name)).ok_or_else(|| WeightError::corrupt(&path, reason()))
    };
    names.into_iter().map(file).collect()
}

/// The weights of a folder under the names of the model, read one at a time.
#[derive(Debug)]
pub struct WeightFolder {
    path: PathBuf,
    files: Vec<WeightFile>,
    architecture: Architecture,
}

impl WeightFolder {
    pub fn open(folder: &Path, architecture: &Architecture) -> Result<Self, WeightError> {
        let files = weight_files(folder)?;
        // An index names files that a download may have left out.
        if let Some(missing) = files.iter().find(|path| !disk::exists(path)) {
            let hint = "fetch this file of the model, too";
            return Err(WeightError::unsupported(missing, "does not exist", hint));
        }
        let files = files.iter().map(|path| WeightFile::open(path)).collect::<Result<_, _>>()?;
        Ok(Self { path: folder.to_path_buf(), files, architecture: architecture.clone() })
    }

    /// Checks that the files have every tensor of the model.
    pub fn check(&self) -> Result<(), WeightError> {
        let names = self.architecture.shapes().into_iter();
        let mut tensors = names.flat_map(|(name, _)| tensors_of(&self.architecture, &name));
        let is_missing = |tensor: &FileTensor| !self.has(self.stored_name(&tensor.name));
        match tensors.find(is_missing) {
            Some(tensor) => Err(self.missing(&tensor.name)),
            None => Ok(()),
        }
    }

    /// Returns true if a file has a bias other than zero.
    pub fn has_biases(&mut self) -> Result<bool, WeightError> {
        for file in &mut self.files {
            if file.has_biases()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if the files have a head other than the embedding, although the model has one table for both:
    /// a merge of an adapter changes it without the configuration.
    pub fn has_other_head(&mut self) -> Result<bool, WeightError> {
        let embedding = self.embedding();
        if self.architecture.has_own_head() || ![HEAD, &embedding].iter().all(|name| self.has(name))
        {
            return Ok(false);
        }
        let head = self.file(HEAD)?.raw(HEAD)?;
        Ok(self.file(&embedding)?.raw(&embedding)? != head)
    }

    /// Returns the name of the embedding of tokens in the files.
    fn embedding(&self) -> String {
        tensors_of(&self.architecture, "wte.weight").remove(0).name
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.has(name))
    }

    fn file(&mut self, name: &str) -> Result<&mut WeightFile, WeightError> {
        match self.files.iter().position(|file| file.has(name)) {
            Some(at) => Ok(&mut self.files[at]),
            None => Err(self.missing(name)),
        }
    }

    fn missing(&self, name: &str) -> WeightError {
        let hint = match self.files.first().map_or(OTHER_CONFIG, WeightFile::missing_hint) {
            OTHER_CONFIG if disk::exists(&self.path.join(INDEX_FILE)) => {
                "fetch all files of the model again, with its index and its config.json"
            }
            hint => hint,
        };
        WeightError::missing(&self.path, name, hint)
    }

    /// Returns the name that a tensor has in the files. A table that is both the embedding and the head may have either
    /// name.
    fn stored_name<'a>(&self, name: &'a str) -> &'a str {
        let is_head =
            !self.has(name) && !self.architecture.has_own_head() && name == self.embedding();
        if is_head && self.has(HEAD) { HEAD } else { name }
    }

    fn read(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let name = self.stored_name(name);
        self.file(name)?.weight(name, shape)
    }
}

impl WeightSource for WeightFolder {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let tensors = tensors_of(&self.architecture, name);
        pack(tensors, shape, |name, shape| self.read(name, shape))
    }
}

/// Reads a weight from the tensors of files that make it up. Columns that no tensor has are zero.
pub(super) fn pack(
    tensors: Vec<FileTensor>,
    shape: &[usize],
    mut read: impl FnMut(&str, &[usize]) -> Result<Vec<f32>, WeightError>,
) -> Result<Vec<f32>, WeightError> {
    let (&columns, of_rows) = shape.split_last().expect("a vector or a matrix");
    // A vector is a row.
    let rows: usize = of_rows.iter().product();
    let mut packed = vec![0.0; rows * columns];
    for tensor in tensors {
        let in_file = tensor.shape(shape);
        let values = read(&tensor.name, &in_file)?;
        let Some(part) = tensor.columns else { return Ok(values) };
        let width = part.len();
        let values = transpose(&values, width, rows);
        for (to, from) in packed.chunks_exact_mut(columns).zip(values.chunks_exact(width)) {
            to[part.clone()].copy_from_slice(from);
        }
    }
    Ok(packed)
}

/// A tensor of a file that is a weight of the model, or some columns of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FileTensor {
    /// The name in files.
    pub name: String,
    /// The columns of the weight that the tensor is; a matrix is `[out, in]` in the files then. `None` if it is the
    /// weight as it is.
    pub columns: Option<Range<usize>>,
}

impl FileTensor {
    /// Returns the shape of the tensor in files, a part of a weight of the shape `whole`.
    pub fn shape(&self, whole: &[usize]) -> Vec<usize> {
        match &self.columns {
            Some(columns) => [&[columns.len()], &whole[..whole.len() - 1]].concat(),
            None => whole.to_vec(),
        }
    }
}

/// Returns the tensors of files that make up the weight `name` of the model. GPT-2's have the names and
/// layouts of the model.
pub(super) fn tensors_of(architecture: &Architecture, name: &str) -> Vec<FileTensor> {
    let whole = |name: String| vec![FileTensor { name, columns: None }];
    if architecture.arch() == Arch::Gpt2 {
        return whole(name.to_string());
    }
    let Some((block, layer)) = name.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
        return whole(match name {
            "wte.weight" => "model.embed_tokens.weight".to_string(),
            "ln_f.weight" => "model.norm.weight".to_string(),
            other => other.to_string(),
        });
    };
    let (of_weight, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let layers = architecture.layers_of(of_weight);
    if layers.is_empty() {
        return whole(format!("model.layers.{block}.{layer}"));
    }
    let mut end = 0;
    let tensor = |(layer, width): (&str, usize)| {
        let first = end;
        end += width;
        let name = format!("model.layers.{block}.{layer}.{kind}");
        FileTensor { name, columns: Some(first..end) }
    };
    layers.into_iter().map(tensor).collect()
}

/// A tensor of a file that is being written.
pub(super) struct SavedTensor {
    /// Has the name and the shape of the file, and the parts of the model's weight.
    parameter: Parameter,
    /// The columns of the weight to take, and to transpose.
    columns: Option<Range<usize>>,
}

impl SavedTensor {
    /// Takes a tensor of a file from the weight that it belongs to.
    pub fn new(tensor: FileTensor, weight: &Parameter) -> Self {
        let shape = tensor.shape(&weight.shape);
        let FileTensor { name, columns } = tensor;
        Self { parameter: Parameter { name, shape, parts: weight.parts.clone() }, columns }
    }

    /// Takes the values of the file from the weight, on its device.
    fn into_parameter(self) -> Parameter {
        let Self { parameter: Parameter { name, shape, parts }, columns } = self;
        let Some(columns) = columns else { return Parameter { name, shape, parts } };
        let elements: usize = parts.iter().map(|part| part.dims()[0]).sum();
        let rows: usize = shape[1..].iter().product();
        let weight = Tensor::cat(parts, 0).reshape([rows, elements / rows]);
        let part = weight.narrow(1, columns.start, columns.len()).transpose();
        Parameter { name, shape, parts: vec![part.reshape([rows * columns.len()])] }
    }
}

/// Writes the weights of a model, given in its order, to a folder's file.
pub(crate) async fn write_weights(
    folder: &Path,
    architecture: &Architecture,
    weights: Vec<Parameter>,
) -> Result<(), WeightError> {
    let is_gpt2 = matches!(architecture.blocks, Blocks::Gpt2 { .. });
    let prefix = if is_gpt2 { "transformer." } else { "" };
    let mut tensors = Vec::new();
    for Parameter { name, shape, parts } in weights {
        let shape = saved_shape(architecture, &name, &shape);
        if is_gpt2 && !architecture.has_biases() && !name.starts_with('w') {
            // The GPT-2 of transformers always has biases and initializes missing ones at random.
            let out = shape[shape.len() - 1];
            let parameter = Parameter {
                name: format!("{prefix}{}", name.replace(".weight", ".bias")),
                shape: vec![out],
                parts: vec![Tensor::zeros([out], &parts[0].device())],
            };
            tensors.push(SavedTensor { parameter, columns: None });
        }
        let weight = Parameter { name: String::new(), shape, parts };
        for tensor in tensors_of(architecture, &name) {
            let name = format!("{prefix}{}", tensor.name);
            tensors.push(SavedTensor::new(FileTensor { name, ..tensor }, &weight));
        }
    }
    write_tensors(&folder.join(WEIGHTS_FILE), tensors).await
}

/// Writes tensors to a new file, in the order of their names.
pub(super) async fn write_tensors(
    path: &Path,
    mut tensors: Vec<SavedTensor>,
) -> Result<(), WeightError> {
    tensors.sort_by(|a, b| a.parameter.name.cmp(&b.parameter.name));
    let parameters: Vec<&Parameter> = tensors.iter().map(|tensor| &tensor.parameter).collect();
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let mut file = TensorFile::create(path, &parameters, metadata)?;
    for tensor in tensors {
        file.write(&tensor.into_parameter()).await?;
    }
    Ok(())
}

/// Returns the shape of a tensor in files: embeddings of tokens are saved without their padding, which
/// is zero.
pub fn saved_shape(architecture: &Architecture, name: &str, shape: &[usize]) -> Vec<usize> {
    if name.ends_with("wte.weight") || name.ends_with(HEAD) {
        vec![architecture.vocab_size, architecture.n_embd]
    } else {
        shape.to_vec()
    }
}
