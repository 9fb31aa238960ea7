//! The agreement of the ranks before a run starts: they train the same run, and each computes a share
//! of its global batch.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::division::Division;
use super::{Group, RanksError};
use crate::config::Config;
use crate::data::Dataset;
use crate::gpu::DeviceInfo;
use crate::model::{WeightError, WeightSource};
use crate::protocol::RankLine;

/// The settings in which ranks may differ: each rank has its own memory and paths, and the run folder
/// belongs to rank 0.
pub const OWN_SETTINGS: [&str; 10] = [
    "data",
    "out_dir",
    "init_from",
    "hellaswag",
    "micro_batch",
    "loss_chunk",
    "grad_checkpoint",
    "offload_optimizer",
    "vram_budget",
    "log",
];

#[derive(Debug, Serialize, Deserialize)]
struct RankIntroduction {
    settings: Map<String, Value>,
    data: String,
    line: RankLine,
}

/// Returns the division of the run of `config` among the ranks of `group`, to which this one
/// introduces itself. `fixed` are the numbers of `--share`, `recorded` the ranks that rank 0 has found
/// in the run folder.
pub fn agree(
    group: &mut Group,
    config: &Config,
    dataset: &Dataset,
    device: &DeviceInfo,
    fixed: &[f64],
    recorded: Option<Vec<RankLine>>,
) -> Result<Division, RanksError> {
    if group.is_alone() {
        if fixed.len() > 1 {
            return Err(RanksError::Shares { given: fixed.len(), ranks: 1 });
        }
        return Ok(Division::whole(config));
    }
    let mut settings = common_settings(config);
    settings.insert("share".into(), fixed.into());
    let data = dataset.fingerprint.clone();
    let line = RankLine { device: device.name.clone(), machine: super::machine(), sequences: 0 };
    let ranks = group.collect(&RankIntroduction { settings, data, line })?;
    check_same(&ranks)?;
    let recorded = group.share(recorded)?;
    let ranks = ranks.into_iter().map(|rank| rank.line).collect();
    Division::new(config, ranks, fixed, recorded)
}

fn common_settings(config: &Config) -> Map<String, Value> {
    let Ok(Value::Object(mut settings)) = serde_json::to_value(config) else { return Map::new() };
    settings.retain(|name, _| !OWN_SETTINGS.contains(&name.as_str()));
    settings
}

/// Refuses ranks that would train another run than rank 0 does.
fn check_same(ranks: &[RankIntroduction]) -> Result<(), RanksError> {
    let Some((first, others)) = ranks.split_first() else { return Ok(()) };
    for (index, other) in others.iter().enumerate() {
        let rank = index + 1;
        let differ = |what: &str, own: &dyn std::fmt::Display, of_first: &dyn std::fmt::Display| {
            let machine =
                other.line.machine.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
            let text = format!("rank {rank}{machine} has {what} {own}, rank 0 has {of_first}");
            Err(RanksError::Disagree(text))
        };
        for (name, value) in &first.settings {
            let own = other.settings.get(name).unwrap_or(&Value::Null);
            if own != value {
                return differ(&format!("{name} ="), own, value);
            }
        }
        if other.data != first.data {
            return differ("other data:", &other.data, &first.data);
        }
    }
    Ok(())
}

/// The weights of rank 0, on every rank.
pub struct SharedWeights<'a> {
    group: &'a mut Group,
    /// `None` on the other ranks.
    source: Option<Box<dyn WeightSource + 'a>>,
}

impl<'a> SharedWeights<'a> {
    /// Shares the weights that `open` returns, which only rank 0 calls. Every rank must ask for the same
    /// weights in the same order.
    pub fn new<E>(
        group: &'a mut Group,
        open: impl FnOnce() -> Result<Box<dyn WeightSource + 'a>, E>,
    ) -> Result<Self, E> {
        let source = if group.is_first() { Some(open()?) } else { None };
        Ok(Self { group, source })
    }
}

impl WeightSource for SharedWeights<'_> {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        let mut values = match &mut self.source {
            Some(source) => source.weight(name, shape)?,
            None => Vec::new(),
        };
        self.group.share_values(&mut values)?;
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction() -> RankIntroduction {
        let settings = common_settings(&Config::default());
        let line = RankLine { device: "gpu".into(), machine: Some("box".into()), sequences: 0 };
        RankIntroduction { settings, data: "a".into(), line }
    }

    #[test]
    fn ranks_of_another_run_are_refused_with_what_differs() {
        let same = introduction;
        assert_eq!(check_same(&[same(), same()]), Ok(()));
        let config = Config { learning_rate: 0.5, ..Config::default() };
        for (other, wanted) in [
            (
                RankIntroduction { settings: common_settings(&config), ..same() },
                "rank 1 (box) has learning_rate = 0.5, rank 0 has 0.0006",
            ),
            (RankIntroduction { data: "b".into(), ..same() }, "other data"),
        ] {
            let error = check_same(&[same(), other]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        // The memory of each is its own.
        let config = Config { micro_batch: 4, data: "elsewhere".into(), ..Config::default() };
        assert_eq!(common_settings(&config), common_settings(&Config::default()));
        for name in OWN_SETTINGS {
            assert!(crate::config::KEYS.iter().any(|key| key.name == name), "{name}");
        }
    }
}
