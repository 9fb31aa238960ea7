//! The time that several ranks spend on the network.

use serde::Serialize;

use super::sharding::state_bytes;
use super::{DeviceSpeed, Plan, Totals, Work, trained_weights};
use crate::config::{Config, padded_vocab};
use crate::text::{bit_rate, bytes, estimate, percent};

/// Bytes of a gradient or a weight on the network.
const VALUE_BYTES: u64 = 4;

/// An estimate of a run on several ranks with equal devices and shares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RanksEstimate {
    pub ranks: u32,
    /// The sequences per update of the rank with the largest share of the global batch.
    pub sequences: u64,
    /// The bytes that each rank sends in an update: `2 (n - 1) / n` of the gradients and, with a sharded
    /// optimizer, about `(n - 1) / n` of the weights.
    pub network_bytes: u64,
    pub network_bits_per_second: f64,
    /// The seconds that these bytes take, per update.
    pub network_seconds: f64,
    /// The speed of `n` ranks divided by `n` times the speed of one; `None` if the latter is unknown.
    pub efficiency: Option<f64>,
    /// The bytes of the whole optimizer state and of the largest shard, if it is sharded.
    pub optimizer_bytes: Option<[u64; 2]>,
}

impl RanksEstimate {
    /// Estimates a run of `config` on `ranks` ranks whose steps are split by `plan`.
    pub fn new(
        config: &Config,
        vocab: u32,
        plan: &Plan,
        ranks: u32,
        bits_per_second: f64,
        speed: Option<&DeviceSpeed>,
    ) -> Self {
        let padded = padded_vocab(vocab).into();
        let weights = VALUE_BYTES * trained_weights(config, padded);
        let count = u64::from(ranks.max(1));
        let rounds = if config.shard_optimizer { 3 } else { 2 };
        let network_bytes = rounds * (count - 1) * (weights / count);
        let state_bytes = |ranks: u32| state_bytes(config, padded, ranks as usize);
        let network_seconds = 8.0 * network_bytes as f64 / bits_per_second;
        let whole = Plan { accumulation: plan.accumulation * count as usize, ..plan.clone() };
        let seconds =
            |speed: &DeviceSpeed, plan: &Plan| speed.seconds(Work::update(config, vocab, plan));
        let efficiency = |speed: &DeviceSpeed| {
            seconds(speed, &whole) / (count as f64 * (seconds(speed, plan) + network_seconds))
        };
        Self {
            ranks,
            sequences: (plan.micro_batch * plan.accumulation) as u64,
            network_bytes,
            network_bits_per_second: bits_per_second,
            network_seconds,
            efficiency: speed.map(efficiency),
            optimizer_bytes: config.shard_optimizer.then(|| [1, ranks].map(state_bytes)),
        }
    }

    /// Adds the time on the network to the totals of a run.
    pub fn add_to(&self, totals: &mut Totals) {
        if let Some(time) = &mut totals.time {
            time.seconds_per_update += self.network_seconds;
            time.seconds += totals.updates as f64 * self.network_seconds;
        }
    }

    /// Returns lines with labels, as [`Totals::lines`] does.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let Self { ranks, sequences, .. } = *self;
        let sent = bytes(self.network_bytes);
        let seconds = estimate(self.network_seconds);
        let rate = bit_rate(self.network_bits_per_second);
        let mut lines = vec![("ranks", format!("{ranks}, up to {sequences} sequences each"))];
        lines.push(("network", format!("{sent} per update and rank: {seconds} at {rate}")));
        if let Some(efficiency) = self.efficiency {
            let share = percent(efficiency, 0);
            lines.push(("", format!("about {share} of {ranks} times the speed of one rank")));
        }
        if let Some([whole, part]) = self.optimizer_bytes {
            let [whole, part] = [whole, part].map(bytes);
            lines.push(("", format!("optimizer state: up to {part} of {whole} on each rank")));
        }
        lines
    }
}

/// Parses the speed of a network, like `1Gbit`, `100Mbit/s` or `2.5 Gbit`. Returns bits per second.
pub fn parse_network(text: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let number = lower.trim_end_matches("/s").trim_end_matches("bit").trim_end_matches("bps");
    let scaled = |letter: char, unit: f64| {
        let number = number.strip_suffix(letter)?.trim().parse::<f64>().ok()?;
        Some(number * unit)
    };
    let bits = scaled('g', 1e9).or_else(|| scaled('m', 1e6));
    let bits = bits.filter(|bits| bits.is_finite() && *bits > 0.0);
    bits.ok_or_else(|| "give bits per second, like 1Gbit or 100Mbit".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::of_share;
    use crate::plan::work::tests::{VOCAB, gpt2, published};

    #[test]
    fn gradients_of_gpt2_take_four_seconds_between_two_ranks_at_a_gigabit() {
        let speed = published("RTX 3060");
        let of = |config: &Config, ranks: u32, bits: f64| {
            let own = of_share(config, 480 / u64::from(ranks));
            let plan = Plan::new(&own, VOCAB);
            RanksEstimate::new(config, VOCAB, &plan, ranks, bits, Some(&speed))
        };
        let config = gpt2(&[]);
        let two = of(&config, 2, 1e9);
        assert_eq!(two.sequences, 240);
        assert!((two.network_seconds - 3.98).abs() < 0.02, "{two:?}");
        // Half of the 94 s of an update, and 4 s.
        assert!((two.efficiency.unwrap() - 0.92).abs() < 0.02, "{two:?}");
        assert!((of(&config, 4, 1e9).network_seconds - 5.97).abs() < 0.03);
        assert!(of(&config, 4, 1e8).efficiency.unwrap() < 0.35);
        let one = of(&config, 1, 1e9);
        assert_eq!((one.network_bytes, one.efficiency.map(f64::round)), (0, Some(1.0)));
        let sharded = of(&gpt2(&[("shard_optimizer", "true")]), 2, 1e9);
        assert_eq!(2 * sharded.network_bytes, 3 * two.network_bytes);
        let [whole, part] = sharded.optimizer_bytes.unwrap();
        assert_eq!((whole, two.optimizer_bytes), (8 * 124_475_904, None));
        assert!((0.5..0.51).contains(&(part as f64 / whole as f64)), "{part} of {whole}");
        for (label, text) in two.lines().into_iter().chain(sharded.lines()) {
            assert!(label.len() <= 8 && text.len() <= 70, "{label}: {text}");
        }
    }

    #[test]
    fn networks_have_bits_per_second() {
        for (text, bits) in [("1Gbit", 1e9), ("100Mbit", 1e8), ("2.5 Gbit/s", 2.5e9), ("10g", 1e10)]
        {
            assert_eq!(parse_network(text), Ok(bits), "{text}");
        }
        for bad in ["", "1", "fast", "-1Gbit", "0Mbit", "1 GB", "Gbit"] {
            assert!(parse_network(bad).is_err(), "{bad}");
        }
    }
}
