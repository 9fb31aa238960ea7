//! A line of the table of memory.

use serde::{Deserialize, Serialize};

use crate::config::words;

words! {
    /// The use of memory, in display order.
    pub enum Class {
        Weights = "weights",
        /// Gradients of the parameters, including those accumulated over micro-batches.
        Gradients = "gradients",
        Optimizer = "optimizer",
        /// Values that the forward pass saves for the backward pass.
        Activations = "activations",
        Logits = "logits",
        /// Temporary values of a single op.
        Workspace = "workspace",
        /// Allocator overhead and staging.
        Slack = "slack",
    }
}

/// One line of the table: a tensor, or tensors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub class: Class,
    pub bytes: u64,
}

impl Row {
    pub(super) fn f32(name: &str, class: Class, elements: u64) -> Self {
        Self::new(name, class, elements.saturating_mul(4))
    }

    pub(super) fn new(name: &str, class: Class, bytes: u64) -> Self {
        Self { name: name.to_string(), class, bytes }
    }
}

pub(super) fn total(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.bytes).sum()
}
