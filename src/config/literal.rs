//! Literals, as config files have them.

use std::fmt;

/// A literal of a config file, or the value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl From<Value> for toml::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Bool(value) => toml::Value::Boolean(value),
            Value::Int(value) => toml::Value::Integer(value),
            Value::Float(value) => toml::Value::Float(value),
            Value::Text(value) => toml::Value::String(value),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            // Debug keeps the point of 1.0 and the short form of 6e-5.
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Text(value) => write!(f, "{value:?}"),
        }
    }
}
