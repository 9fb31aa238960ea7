//! The learning rate schedule.

use super::Config;
use std::f64::consts::PI;

/// Returns the learning rate of update `iter`, counted from 0.
///
/// The schedule is nanoGPT's: linear warmup, cosine decay to `min_lr` at `lr_decay_iters`, then
/// `min_lr`; constant without `decay_lr`. The cosine is SGDR's (Loshchilov and Hutter, 2016),
/// without restarts.
pub fn learning_rate(config: &Config, iter: u64) -> f64 {
    let Config { learning_rate: peak, min_lr, warmup_iters, lr_decay_iters, .. } = *config;
    if !config.decay_lr {
        return peak;
    }
    if iter < warmup_iters {
        // Adding 1 to both keeps the first update from having a rate of 0.
        return peak * (iter + 1) as f64 / (warmup_iters + 1) as f64;
    }
    // `>=` instead of nanoGPT's `>` gives the same value without a division by zero when
    // `lr_decay_iters` equals `warmup_iters`.
    if iter >= lr_decay_iters {
        return min_lr;
    }
    let progress = (iter - warmup_iters) as f64 / (lr_decay_iters - warmup_iters) as f64;
    min_lr + 0.5 * (1.0 + (PI * progress).cos()) * (peak - min_lr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-4, "{got} is not {expected}");
    }

    fn shakespeare() -> Config {
        resolve(vec![Layer::preset("shakespeare-char").unwrap()]).unwrap().config
    }

    #[test]
    fn matches_nanogpt_with_its_defaults() {
        let config = Config::default();
        close(learning_rate(&config, 0), 2.9985e-7);
        close(learning_rate(&config, 2000), 6e-4);
        close(learning_rate(&config, 301_000), 3.3e-4);
        close(learning_rate(&config, 600_000), 6e-5);
        close(learning_rate(&config, u64::MAX), 6e-5);
    }

    #[test]
    fn matches_nanogpt_on_shakespeare_char() {
        let config = shakespeare();
        close(learning_rate(&config, 0), 9.901e-6);
        close(learning_rate(&config, 2550), 5.5e-4);
    }

    #[test]
    fn warmup_rises_and_the_cosine_falls() {
        let config = shakespeare();
        let rates: Vec<_> = (0..=5000).map(|iter| learning_rate(&config, iter)).collect();
        assert!(rates[..=100].windows(2).all(|pair| pair[0] < pair[1]));
        assert!(rates[100..].windows(2).all(|pair| pair[0] > pair[1]));
    }

    #[test]
    fn constant_and_empty_decay_are_supported() {
        let constant = Config { decay_lr: false, ..Config::default() };
        assert_eq!(learning_rate(&constant, 0), constant.learning_rate);
        let no_cosine = Config { warmup_iters: 10, lr_decay_iters: 10, ..Config::default() };
        assert_eq!(learning_rate(&no_cosine, 10), no_cosine.min_lr);
    }
}
