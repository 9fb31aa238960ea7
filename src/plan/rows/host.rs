//! The memory of a run whose optimizer is in host memory: what the host holds, and which weights and
//! states stay on the device.
//!
//! AdamW's master weights and two moments are on the host only. Gradients come down and new weights go
//! up in pieces. Muon computes on the device, so its momentum goes up and comes down, one matrix after
//! the other. In f32 the device's weights are the master weights of its matrices; in half precision
//! their master weights cross the bus too.

use super::{Class, Row, Sizes};
use crate::plan::STAGED_ELEMENTS;

/// The largest piece that crosses the bus at once, in bytes of f32.
const PIECE: u64 = 4 * STAGED_ELEMENTS as u64;

/// Pieces on the device: two in staging memory on their way down, one on its way up and its copy.
const DEVICE_PIECES: u64 = 4;

/// Pieces on the host: the device's in mapped memory, and AdamW's gradient, weight and moments.
const HOST_PIECES: u64 = 2 * DEVICE_PIECES;

impl Sizes<'_> {
    /// Lists what the device holds for the whole run with an offloaded optimizer: the weights (in half
    /// precision all that have two dimensions are half), and pieces on their way.
    pub(super) fn permanent_offloaded(&self) -> Vec<Row> {
        let embeddings = self.embeddings;
        let vectors = self.parameters - self.matrices - embeddings;
        let of_weight = if self.precision.is_half() { 2 } else { 4 };
        let weights = of_weight * (self.matrices + embeddings) + 4 * vectors;
        vec![
            Row::new("parameters", Class::Weights, weights),
            Row::new("staging", Class::Slack, DEVICE_PIECES * self.piece()),
        ]
    }

    /// Lists what the host holds besides the program.
    pub(in crate::plan) fn host_rows(&self) -> Vec<Row> {
        if !self.plan.offload_optimizer {
            return Vec::new();
        }
        let [muon, adamw] = self.by_optimizer;
        let masters = if self.precision.is_half() { self.parameters } else { adamw };
        let mut rows = vec![
            Row::f32("master weights", Class::Weights, masters),
            Row::f32("AdamW moments", Class::Optimizer, 2 * adamw),
            Row::f32("Muon momentum", Class::Optimizer, muon),
            Row::new("staging", Class::Slack, HOST_PIECES * self.piece()),
        ];
        rows.retain(|row| row.bytes > 0);
        rows
    }

    fn piece(&self) -> u64 {
        PIECE.min(self.embedding_shard().max(4 * self.largest_matrix()))
    }
}
