//! Amounts of memory on a device, in bytes.

use serde::Serialize;

/// The memory of a device's pools, including the auxiliary pools for staging and uniforms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub in_use: u64,
    /// All memory of the pools: in use, freed for later use, and the unused rest of pages. Pools do
    /// not shrink by themselves, so after a step this is the step's peak.
    pub reserved: u64,
}

/// A device's memory as the operating system or the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportedMemory {
    pub total: u64,
    /// The part that this process can still take now.
    pub free: u64,
    /// The bytes that this process holds beyond what the system grants it now: the driver has moved as
    /// many to the machine's memory. 0 where the driver refuses memory instead.
    pub excess: u64,
    /// Who reports these figures, for the user.
    pub source: &'static str,
}

/// The memory of a GPU that buffers are allocated from, as its graphics API reports it.
#[cfg_attr(target_arch = "wasm32", allow(dead_code, reason = "no browser reports memory"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantedMemory {
    pub total: u64,
    /// The most that this process can hold before the system moves memory elsewhere or refuses it.
    /// It changes with what other programs hold. `None` if nothing reports it.
    pub budget: Option<u64>,
    /// The part that this process holds; 0 if nothing reports it.
    pub used: u64,
}
