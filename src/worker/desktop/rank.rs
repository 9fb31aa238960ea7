//! A process that is one rank of a run: how it connects to the other ranks, and how it ends.

use std::io::Write;
use std::mem::take;
use std::time::Duration;

use super::signals;
use super::training::after;
use crate::config::{Config, InitFrom, Resolved, Source};
use crate::protocol::{Failure, RunSettings, StartRun};
use crate::ranks::{Abort, Group, LIMIT, Launch, OWN_SETTINGS, RanksError};

/// The time that MPI has to connect all ranks.
const CONNECT_LIMIT: Duration = Duration::from_secs(120);

/// The time that a rank gives rank 0 to report an error that both have found and to end all ranks.
pub(crate) const REPORT_TIME: Duration = Duration::from_secs(3);

/// This process as one of the ranks of a run.
pub(crate) struct RankProcess {
    pub launch: Launch,
    abort: Option<Abort>,
}

impl RankProcess {
    /// Returns `None` if this process trains alone.
    pub fn of_this_process() -> Option<Self> {
        Some(Self { launch: Launch::of_this_process()?, abort: None })
    }

    pub fn is_first(&self) -> bool {
        self.launch.rank == 0
    }

    /// Connects this process with the others. From then on, ranks wait at most `limit` seconds for each other.
    pub fn connect(&mut self, limit: Option<u64>, say: fn(&str)) -> Result<Group, RanksError> {
        let limit = limit.map_or(LIMIT, Duration::from_secs);
        let label = self.launch.label();
        let guard = after(CONNECT_LIMIT, move || {
            let seconds = CONNECT_LIMIT.as_secs();
            say(&format!("error: {label}: MPI has not connected the ranks within {seconds} s"));
            say("  hint: check that the machines reach each other");
            signals::exit(1);
        });
        let group = Group::connect(&self.launch, limit)?;
        drop(guard);
        self.abort = Some(group.abort());
        Ok(group)
    }

    /// Reports the error that ends this rank, and ends the others.
    pub fn fail(&self, mut failure: Failure, report: impl FnOnce(&Failure)) {
        if failure.is_common && !self.is_first() {
            std::thread::sleep(REPORT_TIME);
        }
        if !(failure.is_common && self.is_first()) {
            failure.text = format!("{}: {}", self.launch.label(), failure.text);
        }
        report(&failure);
        let _ = std::io::stdout().flush();
        if let Some(abort) = &self.abort {
            abort(failure.exit as u8);
        }
    }
}

impl StartRun {
    /// Returns the start of rank 0, with this rank's own paths and memory settings.
    ///
    /// Each rank keeps the configuration that it has resolved, and the comparison of the ranks finds a
    /// difference. But the dtype of a run that continues, and the sizes of a model that a run starts from, are
    /// in files of rank 0.
    pub fn shared(self, group: &mut Group, resolved: &Resolved) -> Result<Self, RanksError> {
        if group.is_alone() {
            return Ok(self);
        }
        let mut start = group.share(self)?;
        if let RunSettings::Resolved { config, .. } = &mut start.settings {
            let shared = take(&mut **config);
            let own = resolved.config.clone();
            let has_model = matches!(shared.init_from, InitFrom::Path(_));
            **config = match (start.resume, has_model) {
                (true, _) => Config { dtype: shared.dtype, ..own },
                (false, false) => own,
                // Rank 0 too: numbers that were read from text may differ in their last bit.
                (false, true) if group.is_first() => shared,
                (false, true) => with_own_settings(shared, &own, resolved),
            };
        }
        Ok(start)
    }
}

/// Returns `shared` with the settings of `own` that were set on this rank and may differ.
fn with_own_settings(shared: Config, own: &Config, resolved: &Resolved) -> Config {
    let is_set = |name: &&&str| {
        resolved.provenance.get(**name).is_some_and(|at| at.source != Source::Default)
    };
    let (Ok(mut merged), Ok(own)) = (serde_json::to_value(&shared), serde_json::to_value(own))
    else {
        return shared;
    };
    for name in OWN_SETTINGS.iter().filter(is_set) {
        merged[*name] = own[*name].clone();
    }
    serde_json::from_value(merged).unwrap_or(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};

    #[test]
    fn a_rank_keeps_what_was_set_on_its_machine() {
        let flags = [("micro_batch", "3"), ("data", "elsewhere"), ("learning_rate", "0.5")];
        let flags = flags.map(|(key, value)| (key.to_string(), value.to_string()));
        let resolved = resolve(vec![Layer::flags(flags).unwrap()]).unwrap();
        let shared =
            Config { data: "here".into(), n_layer: 3u32.try_into().unwrap(), ..Config::default() };
        let merged = with_own_settings(shared.clone(), &resolved.config, &resolved);
        let expected = Config { data: "elsewhere".into(), micro_batch: 3, ..shared };
        assert_eq!(merged, expected);
    }
}
