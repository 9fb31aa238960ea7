//! The speed of a whole run on a device, by which people compare GPUs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::Dtype;
use crate::text::bytes;

/// The speed of a device in one dtype, with the best plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BenchmarkRow {
    pub dtype: Dtype,
    /// The library that computed matrix products; `None` for wgpt's own kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<String>,
    /// Of whole updates.
    pub tokens_per_s: f64,
    /// The hours that 10 billion tokens take, without evaluations and checkpoints.
    pub hours_to_10b_tokens: f64,
    pub micro_batch: usize,
    /// Micro-batches in an update.
    pub accumulation: usize,
    pub grad_checkpoint: bool,
    pub offload_optimizer: bool,
    /// The median power that the device drew, in watts; `None` if its driver does not report it.
    pub watts: Option<f64>,
    /// The peak of the device's memory pools in bytes; `None` on the CPU.
    pub peak_bytes: Option<u64>,
}

impl fmt::Display for BenchmarkRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dtype, tokens_per_s, hours_to_10b_tokens: hours, micro_batch, .. } = self;
        write!(
            f,
            "{dtype}: {tokens_per_s:.0} tokens/s, {hours:.0} hours to 10 billion tokens, micro-batch \
             {micro_batch}"
        )?;
        if let Some(products) = &self.products {
            write!(f, ", {products}")?;
        }
        if let Some(peak) = self.peak_bytes {
            write!(f, ", {}", bytes(peak))?;
        }
        match self.watts {
            Some(watts) => write!(f, ", {watts:.0} W"),
            None => Ok(()),
        }
    }
}
