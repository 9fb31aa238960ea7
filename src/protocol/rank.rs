//! The processes that train a run together, for display.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of the processes that train a run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLine {
    pub device: String,
    /// The name of its machine, where known.
    pub machine: Option<String>,
    /// The sequences of the global batch that it computes in an update.
    pub sequences: u64,
}

impl fmt::Display for RankLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        if let Some(machine) = &self.machine {
            write!(f, " on {machine}")?;
        }
        write!(f, ", {} sequences", self.sequences)
    }
}

/// The part of a rank in the updates since the previous step event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStep {
    /// Milliseconds per iteration in which it computed.
    pub compute_ms: f64,
    /// Milliseconds per iteration in which it communicated, or waited for others.
    pub network_ms: f64,
    /// Bytes that the memory pools of its device hold; `None` on the CPU.
    pub vram_bytes: Option<u64>,
}
