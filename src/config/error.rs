//! What can be wrong with a config. Each message says what, where, and what to do next.

use super::value::Refusal;
use std::fmt;

/// Where a value was set. The order is the precedence: a later place wins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nobody set it.
    Default,
    /// It follows from the use of this file, a nanoGPT config.
    Implied(String),
    /// A line of a built-in preset.
    Preset {
        /// The preset's name.
        name: String,
        /// Counted from 1.
        line: usize,
    },
    /// The model that training starts from.
    Model(String),
    /// A line of a file.
    File {
        /// The file's name as the caller gave it.
        name: String,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, without dashes and as it was typed.
    Flag(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Default => f.write_str("default"),
            Place::Implied(file) => write!(f, "nanoGPT config {file}"),
            Place::Preset { name, line } => write!(f, "preset {name}, line {line}"),
            Place::Model(path) => write!(f, "model {path}"),
            Place::File { name, line } => write!(f, "{name}:{line}"),
            Place::Variable(name) => write!(f, "environment variable {name}"),
            Place::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// Why a config could not be resolved. Places are boxed so that a `Result` stays small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A name that is no key.
    #[error("{place}: unknown key `{key}`; {}", or_list(*nearest))]
    UnknownKey {
        /// The name as typed.
        key: String,
        /// Where it was typed.
        place: Box<Place>,
        /// The known key most like it, if one is alike.
        nearest: Option<&'static str>,
    },
    /// A value of another type than the key takes.
    #[error("{place}: {key} takes {expected}, not {found}; {hint}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// Where it was set.
        place: Box<Place>,
        /// The type the key takes.
        expected: String,
        /// The value as typed.
        found: String,
        /// What to write instead.
        hint: String,
    },
    /// A value that the key, or another key's value, does not allow.
    #[error("{place}: {key} = {value} is not allowed: {rule}; {hint}")]
    NotAllowed {
        /// The key.
        key: &'static str,
        /// Where it, or the value that it does not fit, was set.
        place: Box<Place>,
        /// Its value.
        value: String,
        /// The rule it breaks.
        rule: String,
        /// What to set instead.
        hint: String,
    },
    /// A line that cannot be read.
    #[error("{file}:{line}: {problem}\n    {quote}\n{hint}")]
    Syntax {
        /// The file's name as the caller gave it.
        file: String,
        /// Counted from 1.
        line: usize,
        /// The line.
        quote: String,
        /// What is wrong with it.
        problem: String,
        /// What to write instead.
        hint: &'static str,
    },
    /// A preset that does not exist.
    #[error("--preset: there is no preset `{name}`; choose one of {known}")]
    UnknownPreset {
        /// The name as typed.
        name: String,
        /// All presets.
        known: String,
    },
    /// Nothing says what to train on.
    #[error(
        "no data: `data` is not set; pass --data DIR (a folder that `wgpt prepare` or nanoGPT \
         wrote), or --data builtin:stories to try wgpt without any"
    )]
    NoData,
    /// The key table and [`Config`](super::Config) disagree.
    #[error(
        "the table of config keys does not fit the config ({0}); please report this as a bug in wgpt"
    )]
    Table(String),
}

impl ConfigError {
    /// Says where a value was refused.
    pub(crate) fn refused(
        refusal: Refusal,
        key: &'static str,
        place: Place,
        value: String,
    ) -> Self {
        let place = Box::new(place);
        match refusal {
            Refusal::Type { expected, hint } => {
                ConfigError::WrongType { key, place, expected, found: value, hint }
            }
            Refusal::Range { rule, hint } => {
                ConfigError::NotAllowed { key, place, value, rule, hint }
            }
        }
    }
}

fn or_list(nearest: Option<&'static str>) -> String {
    match nearest {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`wgpt config show` lists all keys".into(),
    }
}
