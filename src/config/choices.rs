//! The types of settings that are one of a few names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The form of the GELU activation (Hendrycks and Gimpel, 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gelu {
    /// The tanh approximation: OpenAI's and Hugging Face's GPT-2.
    Tanh,
    /// The exact form with the error function: nanoGPT.
    Erf,
}

impl fmt::Display for Gelu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Gelu::Tanh => "tanh",
            Gelu::Erf => "erf",
        })
    }
}

/// A way to save memory that takes time: forced, forbidden, or left to the plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// If the fastest plan that fits the budget uses it.
    #[default]
    Auto,
    /// Always.
    True,
    /// Never.
    False,
}

/// The optimizer of the matrices of the blocks. AdamW updates embeddings, biases and layer norms in
/// any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101): two moments a weight.
    #[default]
    AdamW,
    /// Orthogonalised momentum (Keller Jordan, 2024; Liu et al., arXiv:2502.16982): one moment a
    /// weight.
    Muon,
}

impl fmt::Display for OptimizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            OptimizerKind::AdamW => "adamw",
            OptimizerKind::Muon => "muon",
        })
    }
}

/// Logs of the losses and other scalars for other programs. As text, the names with a comma.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScalarLogs {
    /// TensorBoard's event files.
    pub tensorboard: bool,
    /// A table with comma-separated values.
    pub csv: bool,
}

impl FromStr for ScalarLogs {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, String> {
        let mut logs = Self::default();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            match name {
                "tensorboard" => logs.tensorboard = true,
                "csv" => logs.csv = true,
                _ => return Err(format!("{name:?} is not a log")),
            }
        }
        Ok(logs)
    }
}

impl TryFrom<String> for ScalarLogs {
    type Error = String;

    fn try_from(names: String) -> Result<Self, String> {
        names.parse()
    }
}

impl From<ScalarLogs> for String {
    fn from(ScalarLogs { tensorboard, csv }: ScalarLogs) -> Self {
        let names = [(tensorboard, "tensorboard"), (csv, "csv")];
        let names: Vec<_> = names.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
        names.join(",")
    }
}

/// The source of the initial weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum InitFrom {
    /// Random weights.
    Scratch,
    /// The newest valid checkpoint of the run folder.
    Resume,
    /// The path of a Hugging Face GPT-2 folder, a checkpoint or a run. nanoGPT's `gpt2` is read as
    /// a path too.
    Path(String),
}

impl From<String> for InitFrom {
    fn from(typed: String) -> Self {
        match typed.as_str() {
            "scratch" => InitFrom::Scratch,
            "resume" => InitFrom::Resume,
            _ => InitFrom::Path(typed),
        }
    }
}

impl From<InitFrom> for String {
    fn from(init_from: InitFrom) -> Self {
        match init_from {
            InitFrom::Scratch => "scratch".into(),
            InitFrom::Resume => "resume".into(),
            InitFrom::Path(path) => path,
        }
    }
}
