//! The division of a run among its ranks: shares of the global batch in proportion to their speeds.
//!
//! Shares decide in which order gradients are added up. So the shares of a run are recorded in its
//! folder, and a run that continues with the same ranks keeps them, and with them its bits.

use std::path::{Path, PathBuf};

use super::{RANKS_FOLDER, RanksError};
use crate::config::Config;
use crate::disk;
use crate::plan::Shares;
use crate::protocol::RankLine;

/// The file with the ranks of a run and their sequences.
const SHARES_FILE: &str = "shares.json";

/// Speeds within this factor count as equal: measurements are no better.
const ALIKE: f64 = 1.1;

#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    pub shares: Shares,
    /// The ranks, for the user; none for a run in one process.
    pub ranks: Vec<RankLine>,
    /// True if shares are equal only until the ranks have measured their speeds.
    pub is_unmeasured: bool,
}

impl Division {
    /// The division of a run in one process.
    pub fn whole(config: &Config) -> Self {
        Self::of(Vec::new(), Shares::whole(config.global_batch()))
    }

    /// Divides the global batch of `config` among `ranks`: in proportion to the numbers `fixed` if there are
    /// any, else as the run `recorded`, else equally.
    pub fn new(
        config: &Config,
        ranks: Vec<RankLine>,
        fixed: &[f64],
        recorded: Option<Vec<RankLine>>,
    ) -> Result<Self, RanksError> {
        if fixed.len() == ranks.len() {
            return Self::in_proportion(config, ranks, fixed);
        }
        if !fixed.is_empty() {
            return Err(RanksError::Shares { given: fixed.len(), ranks: ranks.len() });
        }
        if let Some(shares) = recorded.and_then(|recorded| kept(config, &ranks, &recorded)) {
            return Ok(Self::of(ranks, shares));
        }
        let are_alike = ranks.iter().all(|rank| is_like(rank, &ranks[0]));
        let equal = Self::in_proportion(config, ranks.clone(), &vec![1.0; ranks.len()])?;
        Ok(Self { is_unmeasured: !are_alike, ..equal })
    }

    /// Divides the global batch anew, in proportion to the measured speed of each rank.
    pub fn settle(&mut self, config: &Config, speeds: &[f64]) -> Result<(), RanksError> {
        let speeds = evened(&self.ranks, speeds);
        *self = Self::in_proportion(config, std::mem::take(&mut self.ranks), &speeds)?;
        Ok(())
    }

    fn in_proportion(
        config: &Config,
        ranks: Vec<RankLine>,
        numbers: &[f64],
    ) -> Result<Self, RanksError> {
        let sequences = config.global_batch();
        match Shares::of(sequences, config.micro_batch().get().into(), numbers) {
            Some(shares) => Ok(Self::of(ranks, shares)),
            None => Err(RanksError::TooMany { ranks: ranks.len(), sequences }),
        }
    }

    fn of(mut ranks: Vec<RankLine>, shares: Shares) -> Self {
        for (rank, line) in ranks.iter_mut().enumerate() {
            line.sequences = shares.sequences(rank);
        }
        Self { shares, ranks, is_unmeasured: false }
    }

    /// Records the shares in the folder of the run. Without the record, a run that continues measures
    /// again.
    pub fn record(&self, run: &Path) {
        let _ = disk::own_folder(&run.join(RANKS_FOLDER))
            .and_then(|()| disk::replace_json(&file(run), &self.ranks));
    }

    /// Reads the ranks that a run has recorded.
    pub fn recorded(run: &Path) -> Option<Vec<RankLine>> {
        serde_json::from_slice(&disk::read_own(file(run)).ok()?).ok()
    }
}

fn file(run: &Path) -> PathBuf {
    run.join(RANKS_FOLDER).join(SHARES_FILE)
}

/// Returns true for devices of one kind on one machine.
fn is_like(rank: &RankLine, other: &RankLine) -> bool {
    (&rank.device, &rank.machine) == (&other.device, &other.machine)
}

/// Returns the recorded shares if they are of the same ranks and the same global batch.
fn kept(config: &Config, ranks: &[RankLine], recorded: &[RankLine]) -> Option<Shares> {
    let mut both = ranks.iter().zip(recorded);
    let are_same = ranks.len() == recorded.len() && both.all(|(rank, other)| is_like(rank, other));
    let sequences = recorded.iter().map(|rank| rank.sequences).collect();
    are_same.then(|| Shares::known(config.global_batch(), sequences)).flatten()
}

/// Returns the speeds without the noise of their measurement: devices of one kind on one machine get
/// their mean, and all are equal if no two differ by more than [`ALIKE`].
fn evened(ranks: &[RankLine], speeds: &[f64]) -> Vec<f64> {
    let mean = |rank: &RankLine| {
        let same = ranks.iter().zip(speeds).filter(|(other, _)| is_like(other, rank));
        let same: Vec<f64> = same.map(|(_, speed)| *speed).collect();
        same.iter().sum::<f64>() / same.len() as f64
    };
    let means: Vec<f64> = ranks.iter().map(mean).collect();
    let fastest = means.iter().copied().fold(0.0, f64::max);
    if means.iter().all(|mean| mean * ALIKE >= fastest) { vec![1.0; means.len()] } else { means }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(devices: &[(&str, &str)]) -> Vec<RankLine> {
        let line = |(device, machine): &(&str, &str)| RankLine {
            device: device.to_string(),
            machine: Some(machine.to_string()),
            sequences: 0,
        };
        devices.iter().map(line).collect()
    }

    fn sequences(division: &Division) -> Vec<u64> {
        division.ranks.iter().map(|rank| rank.sequences).collect()
    }

    #[test]
    fn shares_follow_fixed_numbers_or_measured_speeds() {
        let config = Config::default();
        let two = ranks(&[("gpu", "a"), ("gpu", "b")]);
        let divide = |fixed: &[f64]| Division::new(&config, two.clone(), fixed, None);
        let fixed = divide(&[2.0, 1.0]).unwrap();
        assert_eq!((sequences(&fixed), fixed.is_unmeasured), (vec![324, 156], false));
        let error = divide(&[1.0]).unwrap_err();
        assert_eq!(error, RanksError::Shares { given: 1, ranks: 2 });
        // The same name on another machine may be another device.
        let mut measured = divide(&[]).unwrap();
        assert_eq!((sequences(&measured), measured.is_unmeasured), (vec![240, 240], true));
        measured.settle(&config, &[3.0, 1.0]).unwrap();
        assert_eq!((sequences(&measured), measured.is_unmeasured), (vec![360, 120], false));
        assert_eq!(measured.shares.sequences(0), 360);
        measured.settle(&config, &[1.05, 1.0]).unwrap();
        assert_eq!(sequences(&measured), [240, 240], "no more than noise");
        assert!(measured.settle(&config, &[f64::NAN, 1.0]).is_err());
    }

    #[test]
    fn like_devices_of_a_machine_have_like_shares() {
        let config = Config::default();
        let alike = ranks(&[("cpu", "a"), ("cpu", "a")]);
        assert!(!Division::new(&config, alike, &[], None).unwrap().is_unmeasured);
        let mixed = ranks(&[("gpu", "a"), ("gpu", "a"), ("cpu", "a")]);
        let mut mixed = Division::new(&config, mixed, &[], None).unwrap();
        mixed.settle(&config, &[7.0, 8.0, 2.5]).unwrap();
        assert_eq!(sequences(&mixed), [204, 204, 72]);
    }

    #[test]
    fn the_same_ranks_keep_their_shares() {
        let run = tempfile::tempdir().unwrap();
        let config = Config::default();
        let two = ranks(&[("gpu", "a"), ("cpu", "b")]);
        let of = |config: &Config, ranks: &[RankLine]| {
            Division::new(config, ranks.to_vec(), &[], Division::recorded(run.path())).unwrap()
        };
        assert!(of(&config, &two).is_unmeasured);
        let first = Division::new(&config, two.clone(), &[5.0, 1.0], None).unwrap();
        first.record(run.path());
        assert_eq!(of(&config, &two), first);
        let others = ranks(&[("gpu", "a"), ("cpu", "c")]);
        assert!(of(&config, &others).is_unmeasured);
        assert!(of(&config, &ranks(&[("gpu", "a"), ("cpu", "b"), ("cpu", "b")])).is_unmeasured);
        let larger = Config { batch_size: 24u32.try_into().unwrap(), ..config.clone() };
        assert!(of(&larger, &two).is_unmeasured);
        disk::write(file(run.path()), "{").unwrap();
        assert!(of(&config, &two).is_unmeasured);
    }
}
