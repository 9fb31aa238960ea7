//! The length of a run in tokens or in passes over its data, as people say it.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{Config, Resolved};

/// The length of a run in place of `max_iters`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RunLength {
    Tokens(f64),
    /// Passes over the training split.
    Epochs(f64),
}

impl fmt::Display for RunLength {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(f, "--tokens={tokens}"),
            Self::Epochs(epochs) => write!(f, "--epochs={epochs}"),
        }
    }
}

impl RunLength {
    /// Reads a number of tokens: `1B`, `300M`, `2.5b`, `1e9` or `65_536`.
    pub fn parse_tokens(text: &str) -> Result<Self, String> {
        // A comma would divide the values of a sweep.
        let text = text.trim().replace('_', "");
        let units = [("k", 1e3), ("m", 1e6), ("b", 1e9), ("g", 1e9), ("t", 1e12)];
        let lower = text.to_ascii_lowercase();
        let unit = units.iter().find_map(|(unit, size)| Some((lower.strip_suffix(unit)?, *size)));
        let (number, size) = unit.unwrap_or((&lower, 1.0));
        let tokens = number.trim_end().parse::<f64>().ok().map(|number| number * size);
        let tokens = tokens.filter(|tokens| (1.0..1e18).contains(tokens));
        tokens.map(Self::Tokens).ok_or_else(|| "give a number of tokens, like 300M or 1B".into())
    }

    /// Reads a number of passes, like `3` or `0.5`.
    pub fn parse_epochs(text: &str) -> Result<Self, String> {
        let epochs = text.trim().parse::<f64>().ok().filter(|epochs| (1e-6..1e6).contains(epochs));
        epochs.map(Self::Epochs).ok_or_else(|| "give a number of passes, like 3 or 0.5".into())
    }

    /// Returns the tokens of a run whose training split has `train` tokens.
    pub fn tokens(self, train: u64) -> f64 {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Epochs(epochs) => epochs * train as f64,
        }
    }

    /// Returns the settings that give a run this many tokens in whole updates. A schedule that a person has set stays.
    pub fn settings(tokens: f64, resolved: &Resolved) -> Vec<(&'static str, String)> {
        let config = &resolved.config;
        let each = config.global_batch() as f64 * f64::from(config.block_size.get());
        let updates = NonZeroU64::new((tokens / each).ceil() as u64).unwrap_or(NonZeroU64::MIN);
        let shorter = config.with_updates(updates.get());
        let Config { warmup_iters, eval_interval, eval_iters, .. } = shorter;
        let schedule = [
            ("lr_decay_iters", updates.to_string()),
            ("warmup_iters", warmup_iters.to_string()),
            ("eval_interval", eval_interval.to_string()),
            ("eval_iters", eval_iters.to_string()),
        ];
        // A decay that ended with the run still does.
        let ends = config.lr_decay_iters == config.max_iters.get();
        let chosen = schedule
            .into_iter()
            .filter(|(key, _)| !resolved.is_set(key) || *key == "lr_decay_iters" && ends);
        [("max_iters", updates.to_string())].into_iter().chain(chosen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    #[test]
    fn tokens_are_read_as_people_write_them() {
        for (text, tokens) in [
            ("1B", 1e9),
            ("2.5b", 2.5e9),
            ("300M", 3e8),
            ("300 m", 3e8),
            ("65_536", 65_536.0),
            ("1e9", 1e9),
            ("0.5T", 5e11),
        ] {
            assert_eq!(RunLength::parse_tokens(text), Ok(RunLength::Tokens(tokens)), "{text}");
        }
        for bad in ["", "B", "1M,10M", "1,000", "0", "-1B", "1Q", "nan", "inf", "1e300", "1BB"] {
            assert!(RunLength::parse_tokens(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "-1", "nan", "inf", "three"] {
            assert!(RunLength::parse_epochs(bad).is_err(), "{bad}");
        }
        assert_eq!(RunLength::parse_epochs("0.5"), Ok(RunLength::Epochs(0.5)));
        assert_eq!(RunLength::Epochs(0.5).tokens(1000), 500.0);
    }

    #[test]
    fn a_length_is_whole_updates_with_a_schedule_that_ends_with_them() {
        let flags = |more: &[(&str, &str)]| {
            resolve(vec![Layer::preset("gpt2").unwrap(), Layer::flags(more.to_vec()).unwrap()])
                .unwrap()
        };
        let each = 480.0 * 1024.0;
        let text = |settings: &[(&str, String)]| {
            settings
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let found = text(&RunLength::settings(1000.0 * each + 1.0, &flags(&[])));
        assert!(found.starts_with("max_iters=1001 lr_decay_iters=1001 warmup_iters="), "{found}");
        let set = [("warmup_iters", "7"), ("eval_interval", "50"), ("eval_iters", "9")];
        let found = text(&RunLength::settings(1000.0 * each, &flags(&set)));
        assert_eq!(found, "max_iters=1000 lr_decay_iters=1000");
        let longer = text(&RunLength::settings(1e6 * each, &flags(&[])));
        assert!(
            longer.starts_with("max_iters=1000000 lr_decay_iters=1000000 warmup_iters=2000 "),
            "{longer}"
        );
    }
}
