//! GPT-2's random initial weights.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal, Uniform};

use super::{Architecture, WeightError, WeightSource};
use crate::plan::{LORA_A, LORA_B};

/// GPT-2's initialisation: matrices and embeddings from N(0, 0.02), the two projections into the
/// residual stream from N(0, 0.02 / sqrt(2 n_layer)), biases 0, layer norms 1 and 0. Of an adapter, as in PEFT, A
/// is uniform within 1 / sqrt(in), and B is 0.
///
/// Each weight has its own random generator on the host, so every device starts from the same bits, and
/// no weight depends on which others exist.
pub struct RandomWeights {
    seed: u64,
    residual_std: f32,
}

/// The standard deviation of matrices and embeddings.
const STD: f32 = 0.02;

impl RandomWeights {
    /// Returns the source of the initial weights of a model.
    pub fn new(architecture: &Architecture, seed: u64) -> Self {
        let depth = 2.0 * architecture.n_layer as f32;
        Self { seed, residual_std: STD / depth.sqrt() }
    }
}

impl WeightSource for RandomWeights {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let len = shape.iter().product();
        if name.ends_with(".bias") || name.ends_with(LORA_B) {
            return Ok(vec![0.0; len]);
        }
        if shape.len() == 1 {
            return Ok(vec![1.0; len]);
        }
        let mut key = blake3::Hasher::new();
        key.update(&self.seed.to_le_bytes()).update(name.as_bytes());
        let mut rng = ChaCha8Rng::from_seed(*key.finalize().as_bytes());
        if name.ends_with(LORA_A) {
            let bound = 1.0 / (shape[0] as f32).sqrt();
            let uniform = Uniform::new(-bound, bound).expect("a positive bound");
            return Ok(uniform.sample_iter(&mut rng).take(len).collect());
        }
        let is_residual = ["c_proj", "o_proj", "down_proj"]
            .iter()
            .any(|layer| name.contains(&format!(".{layer}.")));
        let std = if is_residual { self.residual_std } else { STD };
        let normal = Normal::new(0.0f32, std).expect("a positive standard deviation");
        Ok(normal.sample_iter(&mut rng).take(len).collect())
    }
}
