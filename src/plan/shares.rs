//! The division of a global batch among ranks.

use std::num::NonZeroU32;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::config::Config;

/// The units that a global batch is divided into for each rank, if it can be. Shares then differ by at
/// most 6% from the proportions of the speeds.
const UNITS_PER_RANK: u64 = 8;

/// The sequences of each rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shares(Vec<u64>);

impl Shares {
    /// Divides `global` sequences among ranks, in proportion to their `speeds`. Each gets at least one.
    ///
    /// Shares are multiples of a divisor of `global`, up to `micro_batch` where that leaves enough units,
    /// so that each rank can split its share into micro-batches of the same size.
    ///
    /// Returns `None` if there are more ranks than sequences, or a speed is not above zero.
    pub fn of(global: u64, micro_batch: u64, speeds: &[f64]) -> Option<Self> {
        let ranks = speeds.len() as u64;
        let are_valid = speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0);
        if ranks == 0 || global < ranks || !are_valid {
            return None;
        }
        let has_enough = |unit: &u64| global / unit >= UNITS_PER_RANK * ranks;
        let divisors = (1..=micro_batch).rev().filter(|unit| global.is_multiple_of(*unit));
        let unit = divisors.into_iter().find(has_enough).unwrap_or(1);
        let units = global / unit;
        let all: f64 = speeds.iter().sum();
        let wanted: Vec<f64> = speeds.iter().map(|speed| units as f64 * speed / all).collect();
        let mut counts: Vec<u64> = wanted.iter().map(|wanted| (*wanted as u64).max(1)).collect();
        // Rounding leaves a rest, or takes too much.
        while counts.iter().sum::<u64>() < units {
            let lacks = |rank: &usize| wanted[*rank] - counts[*rank] as f64;
            // Of equal ranks the first.
            let next = (0..counts.len()).rev().max_by(|a, b| lacks(a).total_cmp(&lacks(b)));
            counts[next?] += 1;
        }
        while counts.iter().sum::<u64>() > units {
            let most = (0..counts.len()).rev().max_by_key(|rank| counts[*rank]);
            counts[most?] -= 1;
        }
        Some(Self(counts.into_iter().map(|count| count * unit).collect()))
    }

    /// Returns shares of these sizes; `None` if they do not add up to a global batch of `global`.
    pub fn known(global: u64, sequences: Vec<u64>) -> Option<Self> {
        let all = sequences.iter().try_fold(0u64, |all, &own| all.checked_add(own));
        (all == Some(global) && sequences.iter().all(|&own| own > 0)).then_some(Self(sequences))
    }

    /// Returns the share of a run in one process.
    pub fn whole(global: u64) -> Self {
        Self(vec![global])
    }

    pub fn sequences(&self, rank: usize) -> u64 {
        self.0[rank]
    }

    /// Returns the first sequence of `rank` in the global batch.
    pub fn first(&self, rank: usize) -> u64 {
        self.0[..rank].iter().sum()
    }

    /// Returns the part of `count` windows that `rank` evaluates, in proportion to its share.
    pub fn part(&self, rank: usize, count: usize) -> Range<usize> {
        let all: u64 = self.0.iter().sum();
        let end = |sequences: u64| {
            (u128::from(sequences) * count as u128 / u128::from(all.max(1))) as usize
        };
        end(self.first(rank))..end(self.first(rank) + self.sequences(rank))
    }
}

/// Returns the configuration of a rank that computes `share` sequences of the global batch of `config`.
/// The planner splits the share as it splits the global batch of a run in one process.
pub(crate) fn of_share(config: &Config, share: u64) -> Config {
    if share == config.global_batch() {
        return config.clone();
    }
    let most = u64::from(config.micro_batch().get()).min(share);
    let micro_batch = (1..=most).rev().find(|micro| share.is_multiple_of(*micro)).unwrap_or(1);
    // For any share that fits a computer, both counts are within 32 bits.
    let count = |count: u64| {
        NonZeroU32::new(u32::try_from(count).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN)
    };
    Config {
        batch_size: count(micro_batch),
        gradient_accumulation_steps: count(share / micro_batch),
        micro_batch: 0,
        ..config.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(global: u64, micro_batch: u64, speeds: &[f64]) -> Vec<u64> {
        Shares::of(global, micro_batch, speeds).unwrap().0
    }

    #[test]
    fn equal_ranks_have_equal_shares() {
        assert_eq!(shares(480, 12, &[1.0]), [480]);
        assert_eq!(shares(480, 12, &[2.5; 4]), [120; 4]);
        assert_eq!(shares(8, 4, &[1.0; 3]), [3, 3, 2]);
        assert_eq!(shares(3, 4, &[1.0; 3]), [1, 1, 1]);
    }

    #[test]
    fn shares_follow_speeds_and_leave_no_sequence_out() {
        assert_eq!(shares(480, 12, &[3.0, 1.0]), [360, 120]);
        assert_eq!(shares(480, 12, &[1.0, 1e-9]), [468, 12]);
        for speeds in [&[1.0, 2.0, 4.0][..], &[0.3; 7], &[5.0, 1e-6, 1e-6, 3.0]] {
            for global in [7, 8, 12, 31, 64, 480, 1000] {
                for micro_batch in [1, 5, 12, 64] {
                    let shares = shares(global, micro_batch, speeds);
                    assert_eq!(shares.iter().sum::<u64>(), global, "{shares:?}");
                    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
                }
            }
        }
        assert_eq!(Shares::of(2, 12, &[1.0; 3]), None);
        assert_eq!(Shares::of(8, 12, &[1.0, 0.0]), None);
        assert_eq!(Shares::of(8, 12, &[1.0, f64::NAN]), None);
    }

    #[test]
    fn parts_cover_all_windows_once() {
        let shares = Shares(vec![360, 60, 60]);
        assert_eq!((shares.first(0), shares.first(2), shares.sequences(2)), (0, 420, 60));
        for count in [0, 1, 2, 7, 800] {
            let parts: Vec<_> = (0..3).map(|rank| shares.part(rank, count)).collect();
            assert_eq!((parts[0].start, parts[2].end), (0, count));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
        }
        assert_eq!(Shares::whole(8).part(0, 5), 0..5);
        assert_eq!(Shares::known(480, vec![360, 60, 60]), Some(shares));
        assert_eq!(Shares::known(480, vec![480, 0]), None);
        assert_eq!(Shares::known(480, vec![u64::MAX, 481]), None);
    }

    #[test]
    fn a_share_is_split_into_micro_batches_of_one_size() {
        let config = Config::default();
        assert_eq!(of_share(&config, 480), config);
        for (share, micro_batch) in [(120, 12), (64, 8), (7, 7), (41, 1)] {
            let own = of_share(&config, share);
            assert_eq!(own.global_batch(), share);
            assert_eq!(u64::from(own.micro_batch().get()), micro_batch, "{share}");
        }
        let config = Config { micro_batch: 6, ..config };
        assert_eq!(of_share(&config, 120).micro_batch().get(), 6);
    }
}
