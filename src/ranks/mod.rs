//! The ranks of a run: processes that train one model together, each on its own device.
//!
//! All ranks run the same [`Session`](crate::train::Session) in step. Each computes the gradients of
//! its share of the global batch, the gradients are summed over all ranks, and each makes the same
//! update: models stay equal without being sent. What depends on a clock or on a person, like a
//! command, is decided by rank 0 and shared with all ([`Group::share`]).
//!
//! [`PeerTransport`] carries messages between pairs of ranks: MPI does in a program, channels do in tests.
//!
//! MPI carries messages and nothing else. wgpt computes sums over ranks itself ([`ring`]), so the same
//! ranks give the same bits with every MPI library, and a rank that does not answer is known by its
//! number. Nothing is loaded unless a launcher has started more than one process.

mod agreement;
mod division;
mod error;
#[cfg(not(target_arch = "wasm32"))]
mod gather_weights;
mod launch;
#[cfg_attr(not(unix), path = "no_mpi.rs")]
mod mpi;
mod other_states;
mod plan_limit;
mod ring;
mod sharding;
mod sums;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gpu::Watchdog;

pub(crate) use agreement::{OWN_SETTINGS, SharedWeights, agree};
pub(crate) use division::Division;
pub use error::RanksError;
pub(crate) use launch::{Launch, MPI_LIBRARY};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use mpi::library as mpi_library;
pub(crate) use other_states::{OtherStates, send as send_states};
pub(crate) use plan_limit::{PlanLimit, recorded_limit, within};
use ring::{NoPeers, PeerTransport};
pub use sharding::Sharding;
pub(crate) use sums::{LeavingGradients, sum_over_ranks};
#[cfg(test)]
pub(crate) use tests::on_threads;

/// The folder in a run folder with the other ranks' logs and what each rank keeps for itself.
pub(crate) const RANKS_FOLDER: &str = "ranks";

/// The time that a rank waits for another. The launcher ends the job at once if a rank dies; this limit is
/// for a rank that hangs, or a network that is cut. It is the longest time that a rank is silent for a good
/// reason: while rank 0 writes a large checkpoint to a slow disk, or a software renderer compiles.
pub(crate) const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Ends all ranks at once, with this exit code where the launcher passes it on.
pub(crate) type Abort = Box<dyn Fn(u8)>;

/// The ranks of a run, as seen by one rank. Every rank must make the same calls in the same order.
pub(crate) struct Group {
    transport: Box<dyn PeerTransport>,
    rank: usize,
    size: usize,
    /// The time that a rank waits for another.
    limit: Duration,
    watchdog: Watchdog,
}

impl Group {
    /// The group of a run in one process.
    pub fn alone() -> Self {
        Self::of(NoPeers, 0, 1, LIMIT)
    }

    /// The group of `size` ranks that wait at most `limit` for each other.
    fn of(
        transport: impl PeerTransport + 'static,
        rank: usize,
        size: usize,
        limit: Duration,
    ) -> Self {
        let transport = Box::new(transport);
        Self { transport, rank, size, limit, watchdog: Watchdog::default() }
    }

    /// Pauses the watchdog of this rank's device while the rank waits for others.
    pub fn watched_by(self, watchdog: &Watchdog) -> Self {
        Self { watchdog: watchdog.clone(), ..self }
    }

    /// The group of the processes that a launcher has started with this one; each waits at most
    /// `limit` for another.
    pub fn connect(launch: &Launch, limit: Duration) -> Result<Self, RanksError> {
        let mut group = mpi::open(launch, limit)?;
        group.check_version(env!("CARGO_PKG_VERSION"))?;
        Ok(group)
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn is_alone(&self) -> bool {
        self.size == 1
    }

    /// Returns true for rank 0, which owns the run folder, takes commands and prints.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Returns the value of rank 0.
    ///
    /// # Errors
    /// If a rank does not answer, or sends something else: it runs another version.
    pub fn share<T: Serialize + DeserializeOwned>(&mut self, value: T) -> Result<T, RanksError> {
        if self.is_alone() {
            return Ok(value);
        }
        let mut bytes = if self.is_first() { to_bytes(&value)? } else { Vec::new() };
        self.broadcast(&mut bytes)?;
        // On rank 0 too: a number that is read from text may differ in its last bit.
        from_bytes(&bytes)
    }

    /// Returns the values of all ranks, in their order, on every rank.
    pub fn collect<T: Serialize + DeserializeOwned>(
        &mut self,
        value: &T,
    ) -> Result<Vec<T>, RanksError> {
        let gathered = self.gather(&to_bytes(value)?)?;
        let values: Vec<serde_json::Value> =
            gathered.iter().map(|bytes| from_bytes(bytes)).collect::<Result<_, _>>()?;
        let values = self.share(values)?;
        values.into_iter().map(|value| serde_json::from_value(value).map_err(damaged)).collect()
    }

    /// Replaces values by the values of rank 0.
    pub fn share_values(&mut self, values: &mut Vec<f32>) -> Result<(), RanksError> {
        if self.is_alone() {
            return Ok(());
        }
        let mut bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.broadcast(&mut bytes)?;
        if !self.is_first() {
            let shared = bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value));
            *values = shared.collect();
        }
        Ok(())
    }

    /// Refuses ranks of another version than rank 0, before they share anything that versions may write
    /// differently.
    fn check_version(&mut self, own: &str) -> Result<(), RanksError> {
        let versions = self.collect(&own.to_string())?;
        match versions.iter().position(|version| *version != versions[0]) {
            Some(rank) => Err(RanksError::Disagree(format!(
                "rank {rank} has wgpt {}, rank 0 has {}",
                versions[rank], versions[0]
            ))),
            None => Ok(()),
        }
    }

    pub fn finish(&mut self) {
        self.transport.finish();
    }

    /// Returns a function that ends all ranks at once.
    pub fn abort(&self) -> Abort {
        self.transport.abort()
    }
}

/// Returns the name of this machine, where known.
pub(crate) fn machine() -> Option<String> {
    #[cfg(not(target_arch = "wasm32"))]
    return sysinfo::System::host_name().ok();
    #[cfg(target_arch = "wasm32")]
    None
}

fn to_bytes(value: &impl Serialize) -> Result<Vec<u8>, RanksError> {
    serde_json::to_vec(value).map_err(damaged)
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RanksError> {
    serde_json::from_slice(bytes).map_err(damaged)
}

fn damaged(error: serde_json::Error) -> RanksError {
    RanksError::Message { reason: error.to_string() }
}
