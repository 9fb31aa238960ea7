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

/// The source of the initial weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitFrom {
    Scratch,
    /// The newest valid checkpoint of the run folder.
    Resume,
    /// The path of a Hugging Face GPT-2 folder, a checkpoint or a run. nanoGPT's `gpt2` is read as
    /// a path too.
    #[serde(untagged)]
    Path(String),
}
