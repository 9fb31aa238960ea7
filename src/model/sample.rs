//! Sampling: one token at a time, with a cache of keys and values.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::layers::Norm;
use super::{Architecture, Blocks, Gpt, LlamaBlocks, Pass, TokenOdds};
use crate::config::Precision;
use crate::ops::{self, OpsMode};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOptions {
    /// Divides the logits. 0 takes the most likely token.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens. 0 draws from all.
    pub top_k: usize,
    pub seed: u64,
}

pub struct Sampler<'a> {
    model: &'a Gpt,
    mode: OpsMode,
    options: SampleOptions,
    rng: ChaCha8Rng,
    /// Keys and values of each block, `[kv_heads, positions, size]`, after their rotation.
    cache: Vec<Option<[Tensor<3>; 2]>>,
    /// All tokens so far, including the prompt.
    tokens: Vec<u32>,
    /// The number of tokens in the cache, which are the last ones.
    cached: usize,
    /// The tokens to draw from are those below this. Models often have rows of embeddings without a token.
    drawn: usize,
    /// The cosines and sines of the new positions' angles, `[1, new, size / 2]`, if the model rotates.
    angles: Option<[Tensor<3>; 2]>,
}

impl<'a> Sampler<'a> {
    /// Starts from a prompt of at least one token, all below the vocabulary size. If it is longer
    /// than the model's context, the model reads only its end.
    ///
    /// Sampling computes in float32, whatever the precision of `mode`. Launches take most of the time
    /// of a single token, and attention over the cache and the output head are tensor operations,
    /// which do not mix dtypes.
    pub fn new(model: &'a Gpt, prompt: &[u32], options: SampleOptions, mode: OpsMode) -> Self {
        Self {
            model,
            mode: mode.in_precision(Precision::FLOAT32),
            options,
            rng: ChaCha8Rng::seed_from_u64(options.seed),
            cache: Vec::new(),
            tokens: prompt.to_vec(),
            cached: 0,
            drawn: model.architecture.vocab_size,
            angles: None,
        }
    }

    /// Draws only from the first `tokens` of the vocabulary.
    pub fn drawing_from(self, tokens: usize) -> Self {
        Self { drawn: self.drawn.min(tokens).max(1), ..self }
    }

    pub async fn next_token(&mut self) -> u32 {
        self.draw_next().await.1
    }

    /// Draws the next token, as [`Sampler::next_token`] does. Its probability and the likeliest tokens are
    /// the model's over all `vocab` tokens, at temperature 1.
    pub async fn next_with_odds(&mut self, vocab: usize) -> TokenOdds {
        let (logits, token) = self.draw_next().await;
        TokenOdds::of(&logits, vocab, token)
    }

    async fn draw_next(&mut self) -> (Vec<f32>, u32) {
        let logits = self.last_logits().await;
        let token = draw(&logits[..self.drawn.min(logits.len())], &self.options, &mut self.rng);
        self.tokens.push(token);
        (logits, token)
    }

    /// Returns the logits after the last token, `[vocab]`.
    async fn last_logits(&mut self) -> Vec<f32> {
        let Architecture { n_layer, block_size, .. } = self.model.architecture;
        let is_full = self.cached == block_size;
        let new = if self.cached == 0 || is_full {
            // Positions are absolute, so a full window cannot slide. When it is full, the model reads
            // its second half again as the first one.
            let keep = if is_full { block_size.div_ceil(2) } else { block_size };
            self.cache = vec![None; n_layer];
            self.cached = 0;
            self.tokens.len().min(keep)
        } else {
            1
        };
        let unread = &self.tokens[self.tokens.len() - new..];
        let model = self.model;
        let learned = model.wpe.as_ref().map(|wpe| wpe.weight.clone().narrow(0, self.cached, new));
        let mut x = model.embed_at(learned, unread.into(), new, self.mode);
        self.angles = match model.architecture.blocks {
            Blocks::Gpt2 { .. } => None,
            Blocks::Llama(shape) => Some(angles(&shape, self.cached, new, &x.device())),
        };
        for index in 0..n_layer {
            x = self.block(index, x);
        }
        self.cached += new;
        let last = model.ln_f.forward(x.narrow(0, new - 1, 1), self.mode).0;
        super::values(model.head(last)).await.iter::<f32>().collect()
    }

    /// Computes a block for new positions `x`, `[new, c]`.
    fn block(&mut self, index: usize, x: Tensor<2>) -> Tensor<2> {
        let block = &self.model.h[index];
        let pass = Pass { mode: self.mode, dropout: None };
        let at = self.model.block_pass(index, 1, x.dims()[0], pass);
        let (h, _) = block.attention_norm.forward(x.clone(), pass.mode);
        let qkv = block.qkv.forward(h, None, None, at);
        let h = self.attend(index, qkv);
        let x = block.attention_output.forward(h, Some(x), None, at);
        block.forward_mlp(x, at).0
    }

    /// Computes the attention of new positions over themselves and the cached ones.
    fn attend(&mut self, index: usize, qkv: Tensor<2>) -> Tensor<2> {
        let new = qkv.dims()[0];
        let architecture = &self.model.architecture;
        let heads = architecture.n_head;
        let [kv_heads, size] = architecture.kv_heads();
        let part = |first: usize, heads: usize, norm: Option<&Norm>| {
            let rows = qkv.clone().narrow(1, first * size, heads * size);
            let rows = match norm {
                Some(norm) => norm.forward(rows.reshape([new * heads, size]), self.mode).0,
                None => rows,
            };
            rows.reshape([new, heads, size]).swap_dims(0, 1)
        };
        let [q_norm, k_norm] = match &self.model.h[index].head_norms {
            Some(norms) => norms.each_ref().map(Some),
            None => [None; 2],
        };
        let q = self.rotate(part(0, heads, q_norm));
        let mut k = self.rotate(part(heads, kv_heads, k_norm));
        let mut v = part(heads + kv_heads, kv_heads, None);
        if let Some([cached_k, cached_v]) = self.cache[index].take() {
            k = Tensor::cat(vec![cached_k, k], 1);
            v = Tensor::cat(vec![cached_v, v], 1);
        }
        let scale = 1.0 / (size as f64).sqrt();
        // The heads that share keys are rows of one product.
        let shared = new * heads / kv_heads;
        let q = (q * scale).reshape([kv_heads, shared, size]);
        let scores = q.matmul(k.clone().swap_dims(1, 2));
        let [_, _, seen] = scores.dims();
        let mut scores = scores.reshape([heads, new, seen]);
        if new > 1 {
            // Only the first call has several new positions, and nothing is cached yet.
            let future = Tensor::<2, Int>::ones([new, new], &scores.device()).triu(1).bool();
            scores = scores.mask_fill(future.unsqueeze::<3>().expand([heads, new, new]), -1e30);
        }
        let scores = scores.reshape([heads * new, seen]);
        let probabilities = ops::softmax(scores, self.mode).reshape([kv_heads, shared, seen]);
        let out = probabilities.matmul(v.clone()).reshape([heads, new, size]);
        self.cache[index] = Some([k, v]);
        out.swap_dims(0, 1).reshape([new, heads * size])
    }

    /// Rotates the queries or keys `[heads, new, size]` of the new positions, if the model does.
    fn rotate(&self, x: Tensor<3>) -> Tensor<3> {
        let Some([cos, sin]) = self.angles.clone() else { return x };
        let half = x.dims()[2] / 2;
        let a = x.clone().narrow(2, 0, half);
        let b = x.narrow(2, half, half);
        let left = a.clone() * cos.clone() - b.clone() * sin.clone();
        Tensor::cat(vec![left, b * cos + a * sin], 2)
    }
}

/// Returns the cosines and sines of `new` positions from `first` on.
fn angles(shape: &LlamaBlocks, first: usize, new: usize, device: &Device) -> [Tensor<3>; 2] {
    let half = shape.head_size / 2;
    let angle = |position: usize, i: usize| {
        let plain = shape.rope_theta.powf(-(i as f64) / half as f64);
        position as f64 * shape.rope_scaling.scaled(plain)
    };
    let table = |of: fn(f64) -> f64| {
        let rows =
            (first..first + new).flat_map(|at| (0..half).map(move |i| of(angle(at, i)) as f32));
        Tensor::from_data(TensorData::new(rows.collect(), [1, new, half]), device)
    };
    [table(f64::cos), table(f64::sin)]
}

/// Draws from the softmax of `logits / temperature`, restricted to the `top_k` largest.
fn draw(logits: &[f32], options: &SampleOptions, rng: &mut impl Rng) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if options.top_k > 0 {
        order.truncate(options.top_k);
    }
    if options.temperature <= 0.0 {
        return order.first().map_or(0, |&id| id as u32);
    }
    let max = order.first().map_or(0.0, |&id| f64::from(logits[id]));
    let weights: Vec<f64> = order
        .iter()
        .map(|&id| ((f64::from(logits[id]) - max) / options.temperature).exp())
        .collect();
    let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
    for (&id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    order.last().map_or(0, |&id| id as u32)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::config::Arch;
    use crate::model::{RandomWeights, WeightError, WeightSource};

    /// Random weights that are large enough for every key to matter.
    struct LargeWeights(RandomWeights);

    impl WeightSource for LargeWeights {
        fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
            if name.ends_with("qkv_proj.bias") {
                return Ok((0..shape[0]).map(|column| (column % 7) as f32 / 20.0 - 0.15).collect());
            }
            let weights = self.0.weight(name, shape)?;
            Ok(weights.into_iter().map(|weight| 10.0 * weight).collect())
        }
    }

    /// Returns the logits after `prompt`: `at_once` tokens are fed together, the others one by one.
    fn logits_after(model: &Gpt, prompt: &[u32], at_once: usize) -> Vec<f32> {
        let options = SampleOptions { temperature: 0.0, top_k: 0, seed: 0 };
        let mut sampler = Sampler::new(model, &prompt[..at_once], options, OpsMode::AUTO);
        let mut logits = pollster::block_on(sampler.last_logits());
        for &token in &prompt[at_once..] {
            sampler.tokens.push(token);
            logits = pollster::block_on(sampler.last_logits());
        }
        logits
    }

    #[test]
    fn a_prompt_gives_the_same_logits_at_once_and_token_by_token() {
        compare_with_training(Architecture { n_layer: 3, ..Architecture::tiny() });
        for (arch, tied) in [(Arch::Llama, true), (Arch::Qwen2, true), (Arch::Qwen3, false)] {
            compare_with_training(Architecture::tiny_llama(arch, tied));
        }
        for scaling in ["linear:3", "llama3:8,1,4,8"] {
            let mut scaled = Architecture::tiny_llama(Arch::Llama, true);
            let Blocks::Llama(shape) = &mut scaled.blocks else { unreachable!() };
            shape.rope_scaling = scaling.to_string().try_into().unwrap();
            compare_with_training(scaled);
        }
    }

    fn compare_with_training(architecture: Architecture) {
        let mut weights = LargeWeights(RandomWeights::new(&architecture, 1));
        let model = Gpt::new(&architecture, &mut weights, &Device::flex()).unwrap();
        let prompt: Vec<u32> = (0..12).map(|position| (7 * position + 3) % 65).collect();
        let training = model.logits(prompt.clone().into(), 1, OpsMode::AUTO);
        let training: Vec<f32> = training.into_data().try_to_vec().unwrap();
        let expected = &training[(prompt.len() - 1) * architecture.vocab_size..];
        for at_once in [1, 2, 7, prompt.len()] {
            let logits = logits_after(&model, &prompt, at_once);
            for (token, (logit, expected)) in logits.iter().zip(expected).enumerate() {
                let difference = (logit - expected).abs();
                assert!(
                    difference < 1e-4,
                    "{at_once} tokens at once: the logit of token {token} is off by {difference:e}"
                );
            }
        }
    }

    #[test]
    fn draws_follow_temperature_and_top_k() {
        let logits = [0.0, 3.0, 2.0, -5.0];
        let draw_many = |temperature, top_k| {
            let options = SampleOptions { temperature, top_k, seed: 1 };
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let mut counts = [0usize; 4];
            for _ in 0..4000 {
                counts[draw(&logits, &options, &mut rng) as usize] += 1;
            }
            counts
        };
        assert_eq!(draw_many(0.0, 0), [0, 4000, 0, 0]);
        let two = draw_many(1.0, 2);
        assert_eq!((two[0], two[3]), (0, 0));
        // softmax of (3, 2) is (0.731, 0.269); 4 standard errors are 0.028.
        assert!((two[1] as f64 / 4000.0 - 0.731).abs() < 0.028, "{two:?}");
        let hot = draw_many(100.0, 0);
        assert!(hot.iter().all(|&count| count > 800), "{hot:?}");
    }
}
