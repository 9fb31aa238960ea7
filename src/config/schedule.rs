//! The schedule of a run: its learning rate and its length.

use super::{Config, Schedule};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

/// Returns the learning rate of update `iter`, counted from 0.
///
/// A linear warmup comes first, in either schedule; without `decay_lr` the rate is constant instead.
/// With `cosine`, nanoGPT's schedule, the rate falls to `min_lr` at `lr_decay_iters` along a cosine.
/// With `wsd` it is constant until the last `decay_fraction` of `max_iters`, then falls to `min_lr` as
/// `1 - sqrt(x)` does for x from 0 to 1, which Haegele et al. (arXiv:2405.18392) found a little better
/// than a line.
pub fn learning_rate(config: &Config, iter: u64) -> f64 {
    let Config { learning_rate: peak, min_lr, warmup_iters, lr_decay_iters, .. } = *config;
    if !config.decay_lr {
        return peak;
    }
    if iter < warmup_iters {
        // Adding 1 to both keeps the first update from having a rate of 0.
        return peak * (iter + 1) as f64 / (warmup_iters + 1) as f64;
    }
    if config.schedule == Schedule::Wsd {
        let start = config.decay_start();
        let end = config.max_iters.get();
        let progress = iter.saturating_sub(start) as f64 / (end - start).max(1) as f64;
        return min_lr + (1.0 - progress.min(1.0).sqrt()) * (peak - min_lr);
    }
    // `>=` instead of nanoGPT's `>` gives the same value without a division by zero when
    // `lr_decay_iters` equals `warmup_iters`.
    if iter >= lr_decay_iters {
        return min_lr;
    }
    let progress = (iter - warmup_iters) as f64 / (lr_decay_iters - warmup_iters) as f64;
    min_lr + 0.5 * (1.0 + libm::cos(PI * progress)) * (peak - min_lr)
}

/// At least one in this many updates of a shortened run is warmup: the 0.3% of a long run would be an update
/// or two.
const MIN_WARMUP: u64 = 50;

/// The updates in which the learning rate decays when a command ends a run: `600`, or `10%` of the updates so
/// far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DecayLength {
    Updates(NonZeroU64),
    Percent(f64),
}

impl Default for DecayLength {
    fn default() -> Self {
        Self::Percent(10.0)
    }
}

impl DecayLength {
    pub(crate) fn updates(self, made: u64) -> NonZeroU64 {
        match self {
            Self::Updates(updates) => updates,
            Self::Percent(percent) => {
                let updates = (percent / 100.0 * made as f64).ceil() as u64;
                NonZeroU64::new(updates).unwrap_or(NonZeroU64::MIN)
            }
        }
    }
}

impl FromStr for DecayLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let length = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse().ok();
                percent.filter(|percent| (0.0..=1000.0).contains(percent)).map(Self::Percent)
            }
            None => text.parse().ok().map(Self::Updates),
        };
        length
            .ok_or_else(|| format!("`{text}` is neither updates, like 600, nor a share, like 10%"))
    }
}

impl TryFrom<String> for DecayLength {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DecayLength> for String {
    fn from(length: DecayLength) -> Self {
        length.to_string()
    }
}

impl fmt::Display for DecayLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Updates(updates) => write!(f, "{updates}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// A decay that should have begun after so many times as many updates began too early.
const TOO_EARLY: f64 = 1.2;

/// The evaluations of a shortened run, at least.
const EVALUATIONS: u64 = 20;

impl Config {
    /// Returns the interval of evaluations of a run that is shortened to `updates` updates.
    pub(crate) fn shortened_eval_interval(&self, updates: u64) -> NonZeroU64 {
        let interval = NonZeroU64::new(updates / EVALUATIONS).unwrap_or(NonZeroU64::MIN);
        interval.min(self.eval_interval)
    }

    /// Returns the iteration at which the decay of `wsd` begins.
    pub(crate) fn decay_start(&self) -> u64 {
        let updates = self.max_iters.get();
        updates - (self.decay_fraction * updates as f64).round() as u64
    }

    /// Returns true if update `iter` is in the decay of `wsd`, or after it.
    pub(crate) fn is_decaying(&self, iter: u64) -> bool {
        self.decay_lr && self.schedule == Schedule::Wsd && iter >= self.decay_start()
    }

    /// Returns the config of a run that decays its learning rate, `rate` after `iter` updates, over the next
    /// `updates` and then ends. Any schedule becomes `wsd`.
    pub(crate) fn ending_after(&self, iter: u64, rate: f64, updates: NonZeroU64) -> Self {
        let max_iters = updates.saturating_add(iter);
        Self {
            decay_lr: true,
            schedule: Schedule::Wsd,
            learning_rate: rate,
            min_lr: self.min_lr.min(rate),
            fill_time: false,
            warmup_iters: self.warmup_iters.min(iter),
            max_iters,
            decay_fraction: updates.get() as f64 / max_iters.get() as f64,
            ..self.clone()
        }
    }

    /// Returns the config of a run with `wsd` that makes `left` more updates after `iter`. A decay that has not begun
    /// still gets its share of the updates, or all that are left. One that has begun continues from its present
    /// rate, which limits `left`, because no decay begins before the warmup has ended. A decay that began far too
    /// early, before the speed was known, is taken back.
    pub(crate) fn retimed(&self, iter: u64, left: NonZeroU64) -> Self {
        let (iter, first) = (iter as f64, self.warmup_iters.max(1) as f64);
        let mut end = iter + left.get() as f64;
        let start = self.decay_start() as f64;
        let share = end * (1.0 - self.decay_fraction);
        let begin = if self.is_decaying(iter as u64) && share < TOO_EARLY * iter {
            let done = (iter - start) / (self.max_iters.get() as f64 - start).max(1.0);
            // The share `done` of the new decay lies before `iter`.
            if done > 0.0 {
                end = end.min((iter - first * (1.0 - done)) / done).max(iter + 1.0);
            }
            (iter - done * end) / (1.0 - done)
        } else {
            share.max(iter)
        };
        let begin = begin.round().max(first).min(end);
        let max_iters = NonZeroU64::new(end as u64).unwrap_or(self.max_iters);
        Self { max_iters, decay_fraction: 1.0 - begin / end.floor(), ..self.clone() }
    }

    /// Returns the config with a schedule of at most `updates` updates. Warmup and decay end at the
    /// same share of the run, but warmup is at least a fiftieth of it, if that is less than before. There
    /// are about [`EVALUATIONS`], which take the same share of the time.
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
        if max_iters == self.max_iters {
            return self.clone();
        }
        let eval_interval = self.shortened_eval_interval(max_iters.get());
        let more = eval_interval.get() as f64 / self.eval_interval.get() as f64;
        let eval_iters = (f64::from(self.eval_iters.get()) * more).ceil() as u32;
        let eval_iters = NonZeroU32::new(eval_iters).unwrap_or(NonZeroU32::MIN);
        let shorter = Self {
            max_iters,
            lr_decay_iters,
            warmup_iters,
            eval_interval,
            eval_iters,
            ..self.clone()
        };
        match self.schedule {
            Schedule::Cosine => shorter,
            Schedule::Wsd => {
                Self { warmup_iters: warmup_iters.min(shorter.decay_start()), ..shorter }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However often the end moves, the rate never jumps, and it ends at its minimum.
    #[test]
    fn a_retimed_schedule_has_no_jump() {
        let begun = Config {
            schedule: Schedule::Wsd,
            decay_fraction: 0.6,
            warmup_iters: 20,
            max_iters: NonZeroU64::new(1000).unwrap(),
            ..Config::default()
        };
        let left = |updates| NonZeroU64::new(updates).unwrap();
        // Before the decay: four times faster, slower, and so slow that the decay must begin.
        let stable = |iter, updates| {
            let config = begun.retimed(iter, left(updates));
            (config.max_iters.get(), config.decay_start())
        };
        assert_eq!(stable(100, 3900), (4000, 1600));
        assert_eq!(stable(100, 400), (500, 200));
        assert_eq!(stable(300, 100), (400, 300));
        for updates in [100, 550, 600, 640, 900] {
            let retimed = begun.retimed(500, left(updates));
            let [before, after] = [&begun, &retimed].map(|config| learning_rate(config, 500));
            assert!((after / before - 1.0).abs() < 0.02, "{updates}: {before}, {after}");
            assert_eq!(retimed.max_iters.get(), 500 + updates);
            let last = learning_rate(&retimed, 500 + updates);
            assert!((last / retimed.min_lr - 1.0).abs() < 1e-9, "{updates}");
        }
        // No decay began before the warmup had ended.
        let longest = begun.retimed(700, left(1300));
        assert_eq!((longest.max_iters.get(), longest.decay_start()), (1380, 20));
        let [before, after] = [&begun, &longest].map(|config| learning_rate(config, 700));
        assert!((after / before - 1.0).abs() < 0.02, "{before}, {after}");
        assert_eq!(stable(410, 3590), (4000, 1600), "the decay began too early");
        // The same end changes next to nothing.
        let same = begun.retimed(500, left(500));
        assert_eq!((same.max_iters, same.decay_start()), (begun.max_iters, begun.decay_start()));
    }

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
        let evaluations = |updates| {
            let config = shakespeare().with_updates(updates);
            (config.eval_interval.get(), config.eval_iters.get())
        };
        assert_eq!(
            [5000, 4999, 2500, 19].map(evaluations),
            [(250, 200), (249, 200), (125, 100), (1, 1)]
        );
        // The learning rate ends where it did.
        let short = shakespeare().with_updates(100);
        close(learning_rate(&short, 100), shakespeare().min_lr);
    }

    #[test]
    fn wsd_is_constant_up_to_a_decay_at_the_end() {
        let config = Config { schedule: Schedule::Wsd, ..shakespeare() };
        assert_eq!(config.decay_start(), 4000);
        let rate = |iter| learning_rate(&config, iter);
        assert_eq!((rate(100), rate(3999), rate(4000)), (1e-3, 1e-3, 1e-3));
        // A quarter of the decay is half of the way down.
        close(rate(4250), 5.5e-4);
        assert_eq!((rate(5000), rate(9000)), (1e-4, 1e-4));
        assert!(!config.is_decaying(3999) && config.is_decaying(4000));
        assert!(!shakespeare().is_decaying(4999));
        let short = config.with_updates(100);
        assert_eq!((short.decay_start(), short.warmup_iters), (80, 2));
        // Without a decay, or all of one.
        for (fraction, last) in [(0.0, 1e-3), (0.999, 1e-4 + 1e-6)] {
            let config = Config { decay_fraction: fraction, warmup_iters: 0, ..config.clone() };
            assert!((learning_rate(&config, 4999) - last).abs() < 1e-5);
        }
    }

    #[test]
    fn a_run_ends_from_any_iteration_with_a_decay_from_its_rate() {
        let wsd = Config { schedule: Schedule::Wsd, ..shakespeare() };
        for (config, iter) in [(wsd, 2000), (shakespeare(), 2550), (shakespeare(), 50)] {
            let before = learning_rate(&config, iter);
            for updates in [1, 7, 600] {
                let updates = NonZeroU64::new(updates).unwrap();
                let ending = config.ending_after(iter, before, updates);
                assert_eq!((ending.decay_start(), learning_rate(&ending, iter)), (iter, before));
                assert_eq!(ending.max_iters.get(), iter + updates.get());
                assert_eq!(learning_rate(&ending, iter + updates.get()), config.min_lr.min(before));
            }
        }
    }

    #[test]
    fn a_decay_is_updates_or_a_share_of_those_made() {
        for (text, made, updates) in
            [("600", 7, 600), ("10%", 5001, 501), ("0%", 9, 1), (" 5 % ", 40, 2)]
        {
            let length: DecayLength = text.parse().unwrap();
            assert_eq!(length.updates(made).get(), updates, "{text}");
            assert_eq!(length.to_string().parse(), Ok(length));
        }
        for bad in ["", "0", "-5", "x%", "5 steps", "-1%", "NaN%"] {
            assert!(bad.parse::<DecayLength>().is_err(), "{bad}");
        }
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
