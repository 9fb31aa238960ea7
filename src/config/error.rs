//! Errors in a configuration: what is wrong and where, and a hint at what to do.

use super::keys::{most_similar, nearest};
use super::kind::InvalidValue;
use super::presets::preset_names;
use std::fmt;

/// The kinds of places where values are set, in order of precedence: a later one wins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    #[default]
    Default,
    /// Implied by a nanoGPT config file.
    Implied,
    Preset,
    /// The model that training starts from.
    Model,
    File,
    Environment,
    Flags,
}

/// The place where a value was set. The order is the precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Provenance {
    pub source: Source,
    /// The name of the preset or variable, the path of the file or model, or the flag without its dashes.
    pub(super) name: String,
    /// The line of a preset or a file, from 1.
    pub(super) line: usize,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, name, line } = self;
        match source {
            Source::Default => f.write_str("default"),
            Source::Implied => write!(f, "nanoGPT config {name}"),
            Source::Preset => write!(f, "preset {name}, line {line}"),
            Source::Model => write!(f, "model {name}"),
            Source::File => write!(f, "{name}:{line}"),
            Source::Environment => write!(f, "environment variable {name}"),
            Source::Flags => write!(f, "flag --{name}"),
        }
    }
}

/// An error in a configuration; [`hint`](Self::hint) says what to do. A box keeps `Result` small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{provenance}: unknown key `{key}`")]
    UnknownKey {
        /// The name as typed.
        key: String,
        provenance: Box<Provenance>,
    },
    /// A value of another type, out of range, or in conflict with the value of another key.
    #[error("{provenance}: {key} {}", problem.with(value))]
    Invalid {
        key: &'static str,
        /// The place where it, or the value that it conflicts with, was set.
        provenance: Box<Provenance>,
        /// The value as typed.
        value: String,
        problem: InvalidValue,
    },
    #[error("{file}:{line}: {problem}\n    {quote}")]
    Syntax {
        file: String,
        line: usize,
        quote: String,
        /// A clause that says what is wrong.
        problem: String,
        hint: &'static str,
    },
    #[error("--preset: unknown preset `{0}`")]
    UnknownPreset(String),
    #[error("no training data")]
    NoData,
    /// The key table and [`Config`](super::Config) disagree.
    #[error("internal error in the table of settings ({0})")]
    Table(String),
}

impl ConfigError {
    pub fn hint(&self) -> String {
        match self {
            ConfigError::UnknownKey { key, .. } => match nearest(key) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "`wgpt config show` lists all keys".into(),
            },
            ConfigError::Invalid { problem, .. } => match problem {
                InvalidValue::Type { hint, .. } | InvalidValue::Range { hint, .. } => hint.clone(),
            },
            ConfigError::Syntax { hint, .. } => (*hint).into(),
            ConfigError::UnknownPreset(name) => {
                let meant = most_similar(name, preset_names());
                let meant = meant.map(|name| format!("did you mean `{name}`? "));
                format!("{}`wgpt presets` lists them", meant.unwrap_or_default())
            }
            ConfigError::NoData => {
                "pass --data DIR (a folder prepared by `wgpt prepare` or nanoGPT), \
                                    or --data builtin:stories to try wgpt with the built-in stories"
                    .into()
            }
            ConfigError::Table(_) => "please report this as a bug in wgpt".into(),
        }
    }

    /// Returns the sentence and the advice, to search them for words.
    #[cfg(test)]
    pub(super) fn with_hint(&self) -> String {
        format!("{self}; {}", self.hint())
    }
}
