//! Errors in a configuration. Each says what is wrong and where, and has a hint at what to do.

use super::kind::InvalidValue;
use super::presets::preset_names;
use std::fmt;

/// The place where a value was set; lines count from 1. The order is the precedence: a later variant
/// wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provenance {
    Default,
    /// Implied by this nanoGPT config file.
    Implied(String),
    Preset {
        name: String,
        line: usize,
    },
    /// The path of the model that training starts from.
    Model(String),
    File {
        name: String,
        line: usize,
    },
    Variable(String),
    /// A flag as typed, without its dashes.
    Flag(String),
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Provenance::Default => f.write_str("default"),
            Provenance::Implied(file) => write!(f, "nanoGPT config {file}"),
            Provenance::Preset { name, line } => write!(f, "preset {name}, line {line}"),
            Provenance::Model(path) => write!(f, "model {path}"),
            Provenance::File { name, line } => write!(f, "{name}:{line}"),
            Provenance::Variable(name) => write!(f, "environment variable {name}"),
            Provenance::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// An error in a configuration; [`hint`](Self::hint) says what to do. The provenance is boxed to keep
/// `Result` small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{provenance}: unknown key `{key}`")]
    UnknownKey {
        /// The name as typed.
        key: String,
        provenance: Box<Provenance>,
        /// The most similar key, if any is similar enough.
        nearest: Option<&'static str>,
    },
    #[error("{provenance}: {key} takes {expected}, not {found}")]
    WrongType {
        key: &'static str,
        provenance: Box<Provenance>,
        /// The type the key takes.
        expected: String,
        /// The value as typed.
        found: String,
        hint: String,
    },
    /// A value out of range, or in conflict with the value of another key.
    #[error("{provenance}: {key} = {value} is not allowed: {rule}")]
    NotAllowed {
        key: &'static str,
        /// The place where it, or the value that it conflicts with, was set.
        provenance: Box<Provenance>,
        value: String,
        /// The rule it breaks.
        rule: String,
        hint: String,
    },
    /// A line that cannot be parsed.
    #[error("{file}:{line}: {problem}\n    {quote}")]
    Syntax {
        file: String,
        line: usize,
        /// The text of the line.
        quote: String,
        /// A clause that says what is wrong.
        problem: String,
        hint: &'static str,
    },
    #[error("--preset: unknown preset `{name}`")]
    UnknownPreset { name: String },
    #[error("no training data")]
    NoData,
    /// The key table and [`Config`](super::Config) disagree.
    #[error("internal error in the table of settings ({0})")]
    Table(String),
}

impl ConfigError {
    /// Returns what to do next.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            ConfigError::UnknownKey { nearest: Some(name), .. } => {
                format!("did you mean `{name}`?")
            }
            ConfigError::UnknownKey { nearest: None, .. } => {
                "`wgpt config show` lists all keys".into()
            }
            ConfigError::WrongType { hint, .. } | ConfigError::NotAllowed { hint, .. } => {
                hint.clone()
            }
            ConfigError::Syntax { hint, .. } => (*hint).into(),
            ConfigError::UnknownPreset { .. } => {
                let known: Vec<_> = preset_names().collect();
                format!("choose one of {}", known.join(", "))
            }
            ConfigError::NoData => {
                "pass --data DIR (a folder prepared by `wgpt prepare` or nanoGPT), \
                                    or --data builtin:stories to try wgpt with the built-in stories"
                    .into()
            }
            ConfigError::Table(_) => "please report this as a bug in wgpt".into(),
        })
    }

    /// Returns the sentence and the advice, to search them for words.
    #[cfg(test)]
    pub(super) fn with_hint(&self) -> String {
        format!("{self}; {}", self.hint().unwrap_or_default())
    }

    /// Adds the key and the provenance to an invalid value.
    pub(super) fn invalid(
        error: InvalidValue,
        key: &'static str,
        provenance: Provenance,
        value: String,
    ) -> Self {
        let provenance = Box::new(provenance);
        match error {
            InvalidValue::Type { expected, hint } => {
                ConfigError::WrongType { key, provenance, expected, found: value, hint }
            }
            InvalidValue::Range { rule, hint } => {
                ConfigError::NotAllowed { key, provenance, value, rule, hint }
            }
        }
    }
}
