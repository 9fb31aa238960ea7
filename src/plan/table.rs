//! The lines of the table that sizes memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Parameters.
    Weights,
    /// Gradients of the parameters, including those accumulated over micro-batches.
    Gradients,
    /// Moments and momenta of the optimizer.
    Optimizer,
    /// Values that the forward pass saves for the backward pass.
    Activations,
    /// A chunk of logits.
    Logits,
    /// Temporary values of a single op.
    Workspace,
    /// Allocator overhead and staging.
    Slack,
}

impl Class {
    /// All classes, in display order.
    pub(crate) const ALL: [Class; 7] = [
        Class::Weights,
        Class::Gradients,
        Class::Optimizer,
        Class::Activations,
        Class::Logits,
        Class::Workspace,
        Class::Slack,
    ];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Class::Weights => "weights",
            Class::Gradients => "gradients",
            Class::Optimizer => "optimizer",
            Class::Activations => "activations",
            Class::Logits => "logits",
            Class::Workspace => "workspace",
            Class::Slack => "slack",
        })
    }
}

/// One line of the table: a tensor, or tensors of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// A display name.
    pub name: String,
    /// The use of the memory.
    pub class: Class,
    /// Size in bytes.
    pub bytes: u64,
}

impl Row {
    /// A row of f32 elements.
    pub(super) fn f32(name: &str, class: Class, elements: u64) -> Self {
        Self::new(name, class, elements.saturating_mul(4))
    }

    /// A row of this size in bytes.
    pub(super) fn new(name: &str, class: Class, bytes: u64) -> Self {
        Self { name: name.to_string(), class, bytes }
    }
}
