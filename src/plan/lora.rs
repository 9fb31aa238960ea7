//! Low-rank adapters: which layers have one, and the names and shapes of its matrices.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::Architecture;
use crate::config::{BaseDtype, Config};

/// The low-rank adapter of a model whose weights are not trained (LoRA, Hu et al. 2021, arXiv:2106.09685): a
/// linear layer with the weight `W` computes `x W + alpha / rank x A B`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    pub rank: usize,
    pub alpha: f64,
    /// The share of elements of its inputs that training drops.
    #[serde(default)]
    pub dropout: f64,
    /// The names of the matrices with an adapter, as in the files of transformers.
    pub targets: Vec<String>,
}

/// A linear layer with an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedLayer {
    /// The name, like `h.0.attn.c_attn`.
    pub name: String,
    /// `[in, out]`.
    pub shape: [usize; 2],
    /// The matrices with an adapter: their names, and the columns of the layer that they are. Each has columns
    /// of its own in A, side by side.
    pub parts: Vec<(&'static str, Range<usize>)>,
}

impl AdaptedLayer {
    /// Returns true if not every column belongs to every column of A.
    pub fn is_masked(&self) -> bool {
        !matches!(&self.parts[..], [(_, columns)] if columns.len() == self.shape[1])
    }

    /// Returns the shapes of A and B.
    pub fn shapes(&self, rank: usize) -> [[usize; 2]; 2] {
        let [input, output] = self.shape;
        [[input, self.parts.len() * rank], [rank, output]]
    }
}

impl Lora {
    /// Returns the adapter that `config` describes, if it describes one.
    pub fn new(config: &Config) -> Option<Self> {
        let rank = config.lora_rank as usize;
        let alpha = if config.lora_alpha == 0.0 { 2.0 * rank as f64 } else { config.lora_alpha };
        let targets = config.lora_targets.split(',').filter(|target| !target.is_empty());
        let targets: Vec<String> = targets.map(str::to_owned).collect();
        let dropout = config.lora_dropout;
        (rank > 0).then_some(Self { rank, alpha, dropout, targets })
    }

    /// Returns the factor of the adapter's output.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Returns true if the matrix `name` has an adapter. Without targets all have.
    pub fn adapts(&self, name: &str) -> bool {
        let name = name.rsplit('.').next().unwrap_or(name);
        self.targets.is_empty() || self.targets.iter().any(|target| target == name)
    }

    /// Returns true if another adapter has the same function and shapes for a model.
    pub fn is_same(&self, other: &Self, architecture: &Architecture) -> bool {
        let layers = |lora: &Self| lora.layers(architecture);
        (self.rank, self.alpha) == (other.rank, other.alpha) && layers(self) == layers(other)
    }

    /// Returns the layers with an adapter, in the order of the model.
    pub fn layers(&self, architecture: &Architecture) -> Vec<AdaptedLayer> {
        let adapted = |(name, shape): (String, Vec<usize>)| {
            let shape: [usize; 2] = shape.try_into().ok()?;
            let mut end = 0;
            let mut parts = Vec::new();
            for (matrix, width) in architecture.layers_of(&name) {
                if self.adapts(matrix) {
                    parts.push((matrix, end..end + width));
                }
                end += width;
            }
            (!parts.is_empty()).then_some(AdaptedLayer { name, shape, parts })
        };
        architecture.layers().into_iter().filter_map(adapted).collect()
    }

    /// Counts the weights of the adapter.
    pub fn weights(&self, architecture: &Architecture) -> u64 {
        let of = |(_, shape): (String, Vec<usize>)| shape.iter().product::<usize>() as u64;
        self.shapes(architecture).into_iter().map(of).sum()
    }

    /// Returns the name and shape of each A and B, in the order of the model.
    pub fn shapes(&self, architecture: &Architecture) -> Vec<(String, Vec<usize>)> {
        let of_layer = |layer: AdaptedLayer| {
            let shapes = layer.shapes(self.rank);
            let named = move |(kind, shape): (&str, [usize; 2])| {
                (format!("{}.{kind}", layer.name), shape.to_vec())
            };
            [A, B].into_iter().zip(shapes).map(named).collect::<Vec<_>>()
        };
        self.layers(architecture).into_iter().flat_map(of_layer).collect()
    }
}

/// Returns true if the token embedding of an adapter's base stays in host memory: to save memory, and because its
/// head is another table.
pub(crate) fn is_on_host(base: BaseDtype, architecture: &Architecture) -> bool {
    base == BaseDtype::Q8_0 && architecture.has_own_head()
}

/// Returns the largest tensor of an adapter's base, in bytes of float32, on a device that binds at most `bound`. Pools
/// have pages of the largest tensor, and lose about one: an embedding that is much larger than the matrices of the
/// blocks is split.
pub(crate) fn largest_frozen_tensor(architecture: &Architecture, bound: Option<u64>) -> u64 {
    const LEAST: u64 = 32 << 20;
    let matrix = |(_, shape): (String, Vec<usize>)| shape.iter().product::<usize>() as u64;
    let largest = architecture.layers().into_iter().map(matrix).max().unwrap_or(0);
    (8 * largest).max(LEAST).min(bound.unwrap_or(u64::MAX))
}

/// Counts the weights that a run trains: those of the adapter or, without one, all of the model with `vocab` rows in
/// its embedding.
pub(crate) fn trained_weights(config: &Config, vocab: u64) -> u64 {
    match Lora::new(config) {
        Some(lora) => lora.weights(&Architecture::new(config, 1)),
        None => config.parameters(vocab),
    }
}

/// The endings of the names of an adapter's matrices.
pub(crate) const A: &str = "lora_A";
pub(crate) const B: &str = "lora_B";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Arch;

    #[test]
    fn layers_that_share_an_input_have_an_a_for_each_matrix() {
        let llama = Architecture::tiny_llama(Arch::Llama, true);
        let lora = |targets: &[&str]| {
            let targets = targets.iter().map(|name| name.to_string()).collect();
            Lora { rank: 3, alpha: 6.0, dropout: 0.0, targets }
        };
        let all = lora(&[]).shapes(&llama);
        assert_eq!(all.len(), 2 * 4 * llama.n_layer);
        let shape = |shapes: &[(String, Vec<usize>)], name: &str| {
            shapes.iter().find(|(it, _)| it == name).map(|(_, shape)| shape.clone())
        };
        // Four heads of queries and two each of keys and values, of size 10.
        let qkv = "h.1.self_attn.qkv_proj";
        assert_eq!(shape(&all, &format!("{qkv}.lora_A")), Some(vec![32, 9]));
        assert_eq!(shape(&all, &format!("{qkv}.lora_B")), Some(vec![3, 80]));
        let some = lora(&["q_proj", "v_proj"]);
        assert_eq!(shape(&some.shapes(&llama), &format!("{qkv}.lora_A")), Some(vec![32, 6]));
        let parts = some.layers(&llama).remove(0).parts;
        assert_eq!(parts, [("self_attn.q_proj", 0..40), ("self_attn.v_proj", 60..80)]);
        let gpt2 = lora(&["c_proj"]).layers(&Architecture::tiny());
        let names: Vec<&str> = gpt2.iter().map(|layer| layer.name.as_str()).take(2).collect();
        assert_eq!(names, ["h.0.attn.c_proj", "h.0.mlp.c_proj"]);
    }
}
