//! Errors in a configuration. Each message says what is wrong, where, and what to do next.

use super::value::InvalidValue;
use std::fmt;

/// The place where a value was set. The order is the precedence: a later variant wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provenance {
    /// The default of the setting.
    Default,
    /// Implied by this nanoGPT config file.
    Implied(String),
    /// A line of a built-in preset.
    Preset {
        /// The name of the preset.
        name: String,
        /// Line number, from 1.
        line: usize,
    },
    /// The path of the model that training starts from.
    Model(String),
    /// A line of a file.
    File {
        /// The name of the file as the caller gave it.
        name: String,
        /// Line number, from 1.
        line: usize,
    },
    /// An environment variable.
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

/// An error in a configuration. The provenance is boxed to keep `Result` small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A name that is not a key.
    #[error("{provenance}: unknown key `{key}`; {}", suggestion(*nearest))]
    UnknownKey {
        /// The name as typed.
        key: String,
        /// The place where it was typed.
        provenance: Box<Provenance>,
        /// The most similar key, if any is similar enough.
        nearest: Option<&'static str>,
    },
    /// A value of the wrong type.
    #[error("{provenance}: {key} takes {expected}, not {found}; {hint}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// The place where it was set.
        provenance: Box<Provenance>,
        /// The type the key takes.
        expected: String,
        /// The value as typed.
        found: String,
        /// Advice on how to write it.
        hint: String,
    },
    /// A value out of range, or in conflict with the value of another key.
    #[error("{provenance}: {key} = {value} is not allowed: {rule}; {hint}")]
    NotAllowed {
        /// The key.
        key: &'static str,
        /// The place where it, or the value that it conflicts with, was set.
        provenance: Box<Provenance>,
        /// The value.
        value: String,
        /// The rule it breaks.
        rule: String,
        /// Advice on a valid value.
        hint: String,
    },
    /// A line that cannot be parsed.
    #[error("{file}:{line}: {problem}\n    {quote}\n  hint: {hint}")]
    Syntax {
        /// The name of the file as the caller gave it.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// The text of the line.
        quote: String,
        /// A clause that says what is wrong.
        problem: String,
        /// Advice on how to write it.
        hint: &'static str,
    },
    /// A preset that does not exist.
    #[error("--preset: unknown preset `{name}`; choose one of {known}")]
    UnknownPreset {
        /// The name as typed.
        name: String,
        /// All presets.
        known: String,
    },
    /// No training data was given.
    #[error(
        "no training data: pass --data DIR (a folder prepared by `wgpt prepare` or nanoGPT), or \
         --data builtin:stories to try wgpt with the built-in stories"
    )]
    NoData,
    /// The key table and [`Config`](super::Config) disagree.
    #[error("internal error in the table of settings ({0}); please report this as a bug in wgpt")]
    Table(String),
}

impl ConfigError {
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

fn suggestion(nearest: Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`wgpt config show` lists all keys".into(),
    }
}
