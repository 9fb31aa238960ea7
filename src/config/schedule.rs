//! The schedule of a run: its learning rate and its length.

use super::Config;
use std::f64::consts::PI;
use std::num::NonZeroU64;

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
    min_lr + 0.5 * (1.0 + libm::cos(PI * progress)) * (peak - min_lr)
}

/// At least one in this many updates of a shortened run is warmup: the 0.3% that suit a long run would be
/// an update or two of a short one.
const MIN_WARMUP: u64 = 50;

impl Config {
    /// Returns the config with a schedule of at most `updates` updates. Warmup and decay end at the
    /// same share of the run, but warmup takes a fiftieth of it, if that is less than before.
    pub(crate) fn with_updates(&self, updates: u64) -> Self {
        let Some(max_iters) = NonZeroU64::new(updates.min(self.max_iters.get())) else {
            return self.clone();
        };
        let share = max_iters.get() as f64 / self.max_iters.get() as f64;
        let scaled = |iters: u64| (iters as f64 * share).round() as u64;
        let lr_decay_iters = scaled(self.lr_decay_iters).max(1).min(self.lr_decay_iters);
        let warmup_iters = scaled(self.warmup_iters)
            .max(max_iters.get() / MIN_WARMUP)
            .min(self.warmup_iters)
            .min(lr_decay_iters);
        Self { max_iters, lr_decay_iters, warmup_iters, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_schedule_keeps_its_shape() {
        let config = Config::default();
        let schedule =
            |config: &Config| (config.max_iters.get(), config.warmup_iters, config.lr_decay_iters);
        assert_eq!(schedule(&config.with_updates(300_000)), (300_000, 2000, 300_000));
        assert_eq!(schedule(&shakespeare().with_updates(2500)), (2500, 50, 2500));
        // A warmup of 0.3% would be a single update.
        assert_eq!(schedule(&config.with_updates(400)), (400, 8, 400));
        assert_eq!(schedule(&config.with_updates(1)), (1, 0, 1));
        assert_eq!(config.with_updates(600_001), config);
        let no_warmup = Config { warmup_iters: 0, ..config };
        assert_eq!(schedule(&no_warmup.with_updates(600)), (600, 0, 600));
        // The learning rate ends where it did.
        let short = shakespeare().with_updates(100);
        close(learning_rate(&short, 100), shakespeare().min_lr);
    }

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-4, "{got} is not {expected}");
    }

    fn shakespeare() -> Config {
        Config::of_preset("shakespeare-char", &[])
    }

    #[test]
    fn matches_nanogpt_with_its_defaults_and_on_shakespeare_char() {
        let (default, shakespeare) = (Config::default(), shakespeare());
        for (config, iter, rate) in [
            (&default, 0, 2.9985e-7),
            (&default, 2000, 6e-4),
            (&default, 301_000, 3.3e-4),
            (&default, 600_000, 6e-5),
            (&default, u64::MAX, 6e-5),
            (&shakespeare, 0, 9.901e-6),
            (&shakespeare, 2550, 5.5e-4),
        ] {
            close(learning_rate(config, iter), rate);
        }
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
