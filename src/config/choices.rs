//! The types of settings that are one of a few names.

use serde::{Deserialize, Serialize};

use super::word_enum::words;

words! {
    /// The form of the GELU activation (Hendrycks and Gimpel, 2016).
    pub enum Gelu {
        /// The tanh approximation: OpenAI's and Hugging Face's GPT-2.
        Tanh = "tanh",
        /// The exact form with the error function: nanoGPT.
        Erf = "erf",
    }
}

words! {
    /// A way to save memory that takes time: forced, forbidden, or left to the plan.
    #[derive(Default)]
    pub enum Choice {
        /// If the fastest plan that fits the budget uses it.
        #[default]
        Auto = "auto",
        True = "true",
        False = "false",
    }
}

words! {
    /// The optimizer of the matrices of the blocks. AdamW updates embeddings, biases and layer norms in
    /// any case.
    #[derive(Default)]
    pub enum OptimizerKind {
        /// Decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101): two moments a weight.
        #[default]
        AdamW = "adamw",
        /// Orthogonalised momentum (Keller Jordan, 2024; Liu et al., arXiv:2502.16982): one moment a
        /// weight.
        Muon = "muon",
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

impl ScalarLogs {
    pub(super) const WORDS: &[&'static str] = &["tensorboard", "csv"];
}

impl TryFrom<String> for ScalarLogs {
    type Error = String;

    fn try_from(names: String) -> Result<Self, String> {
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

impl From<ScalarLogs> for String {
    fn from(ScalarLogs { tensorboard, csv }: ScalarLogs) -> Self {
        let names = ScalarLogs::WORDS.iter().zip([tensorboard, csv]);
        names.filter(|(_, on)| *on).map(|(name, _)| *name).collect::<Vec<_>>().join(",")
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
