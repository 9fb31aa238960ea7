//! The preset that suits the size of the data.

use crate::config::{Config, InitFrom, Layer, resolve};

/// Parameters for each training token beyond which a model learns its text by heart.
///
/// nanoGPT's Shakespeare by character has 10.7. It needs dropout, and still overfits before its
/// schedule ends, so that only its best checkpoint is of use: a limit little above it. A model that
/// makes the most of its compute has 0.05 (Hoffmann et al., 2022), but few users have that much text.
const MAX_PER_TOKEN: u64 = 12;

/// Presets for any data, the smallest model first.
const BY_SIZE: [&str; 6] =
    ["demo", "shakespeare-char", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"];

/// The smallest parameter count of the models whose schedule takes months without a GPU: their
/// presets see 295 billion tokens.
const NEEDS_GPU: u64 = 100_000_000;

/// The size of the data of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corpus {
    /// Tokens of the training split.
    pub tokens: u64,
    pub vocab: u32,
}

impl Corpus {
    /// Returns true if the model of `config` starts from random weights and has enough parameters to
    /// learn the data by heart.
    pub fn is_too_small_for(self, config: &Config) -> bool {
        let max = self.tokens.saturating_mul(MAX_PER_TOKEN);
        config.init_from == InitFrom::Scratch && config.parameters(self.vocab.into()) > max
    }

    /// Returns the preset with the largest model that suits the data and the device: one that
    /// `fits`, and without a GPU none of the presets for GPUs. Data too small for any get the
    /// smallest.
    pub fn preset(self, has_gpu: bool, fits: impl Fn(&Config) -> bool) -> &'static str {
        let suits = |config: &Config| {
            let runs = has_gpu || config.parameters(self.vocab.into()) < NEEDS_GPU;
            runs && !self.is_too_small_for(config) && fits(config)
        };
        let config = |preset: &str| resolve(vec![Layer::preset(preset).ok()?]).ok();
        let suits = |preset: &&str| config(preset).is_some_and(|found| suits(&found.config));
        BY_SIZE.into_iter().rev().find(suits).unwrap_or(BY_SIZE[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preset_of(tokens: u64, vocab: u32) -> &'static str {
        Corpus { tokens, vocab }.preset(true, |_| true)
    }

    #[test]
    fn a_preset_follows_the_size_of_the_data() {
        const GPT2: u32 = 50_257;
        for (text, tokens, vocab, expected) in [
            ("a pasted page, by character", 3_000, 60, "demo"),
            ("Shakespeare, 1 MB by character", 1_003_854, 65, "shakespeare-char"),
            ("Shakespeare, 1 MB as GPT-2's tokens", 301_966, GPT2, "demo"),
            ("5 MB by character", 5_000_000, 100, "shakespeare-char"),
            ("50 MB as GPT-2's tokens", 12_500_000, GPT2, "gpt2"),
            ("OpenWebText", 9_035_582_198, GPT2, "gpt2-xl"),
        ] {
            assert_eq!(preset_of(tokens, vocab), expected, "{text}");
        }
    }

    #[test]
    fn a_preset_suits_the_device_too() {
        let large = Corpus { tokens: 9_000_000_000, vocab: 50_257 };
        assert_eq!(large.preset(false, |_| true), "shakespeare-char");
        let fits = |config: &Config| config.parameters(50_257) < 400_000_000;
        assert_eq!(large.preset(true, fits), "gpt2-medium");
        assert_eq!(large.preset(true, |_| false), "demo");
    }

    #[test]
    fn a_model_with_weights_suits_any_data() {
        let layers = vec![Layer::preset("gpt2-xl").unwrap()];
        let config = resolve(layers).unwrap().config;
        let small = Corpus { tokens: 300_000, vocab: 50_257 };
        assert!(small.is_too_small_for(&config));
        let tuned = Config { init_from: InitFrom::Path("gpt2-xl".into()), ..config };
        assert!(!small.is_too_small_for(&tuned));
    }
}
