//! Values of settings, and the kinds that check them.

use super::expression;
use std::fmt;

/// The longest `max_time`: beyond any run, and small enough to add to a clock without overflow.
const MAX_TIME: std::time::Duration = std::time::Duration::from_secs(100 * 365 * 24 * 3600);

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

/// The type and range of the values of a [`Key`](super::Key).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// `true` or `false`; Python's `True` and `False` as well.
    Bool,
    /// A whole number from `min` to `max`.
    Count {
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// A number above 0.
    Positive,
    /// A number from 0 up.
    NonNegative,
    /// A number in [0, 1) that is still below 1 when rounded to float32.
    Fraction,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any of these words, separated by commas; empty for none.
    Words(&'static [&'static str]),
    /// A duration like `2h` or `1h 30min`; empty for none.
    Duration,
    /// An amount of memory, see [`Budget`](super::Budget).
    Memory,
}

/// An error about a value, without its key and provenance, which
/// [`ConfigError`](super::ConfigError) adds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum InvalidValue {
    /// The type is wrong.
    Type { expected: String, hint: String },
    /// The type is right, but the value is not allowed.
    Range { rule: String, hint: String },
}

impl Kind {
    /// Parses text from a flag or the environment.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, InvalidValue> {
        match self {
            Kind::Bool => match text.trim() {
                "true" | "True" => Ok(Value::Bool(true)),
                "false" | "False" => Ok(Value::Bool(false)),
                _ => Err(self.type_error()),
            },
            Kind::Count { .. } | Kind::Positive | Kind::NonNegative | Kind::Fraction => {
                let value = expression::parse(text).map_err(|problem| InvalidValue::Type {
                    expected: self.expected(),
                    hint: format!("{problem}; write it like {}", self.example()),
                })?;
                self.accept(value)
            }
            Kind::Text | Kind::Choice(_) | Kind::Words(_) | Kind::Duration | Kind::Memory => {
                self.accept(Value::Text(text.into()))
            }
        }
    }

    /// Checks the type and range of a literal from a file; converts integers to floats for keys
    /// that are fractional.
    pub(super) fn accept(&self, value: Value) -> Result<Value, InvalidValue> {
        match (self, value) {
            (Kind::Bool, value @ Value::Bool(_)) | (Kind::Text, value @ Value::Text(_)) => {
                Ok(value)
            }
            (Kind::Count { min, max }, Value::Int(value)) => check_range(value, *min, *max),
            (Kind::Count { .. }, Value::Float(value)) if value.fract() == 0.0 => {
                Err(InvalidValue::Type {
                    expected: self.expected(),
                    hint: format!("write it as {value:.0}"),
                })
            }
            (Kind::Positive | Kind::NonNegative | Kind::Fraction, Value::Int(value)) => {
                self.check_number(value as f64)
            }
            (Kind::Positive | Kind::NonNegative | Kind::Fraction, Value::Float(value)) => {
                self.check_number(value)
            }
            (Kind::Choice(words), Value::Text(word)) => check_choice(words, word),
            // A Boolean literal for a choice between auto, true and false.
            (Kind::Choice(words), Value::Bool(value)) if words.contains(&"true") => {
                Ok(Value::Text(value.to_string()))
            }
            (Kind::Words(words), Value::Text(text)) => check_words(words, &text),
            (Kind::Duration, Value::Text(text)) => check_duration(text),
            (Kind::Memory, Value::Text(text)) => check_memory(&text),
            (Kind::Memory, Value::Int(bytes)) => check_memory(&bytes.to_string()),
            _ => Err(self.type_error()),
        }
    }

    fn check_number(&self, value: f64) -> Result<Value, InvalidValue> {
        // The device computes in float32, where 0.99999999 rounds to 1. A beta of 1 and a dropout
        // of 1 would divide by zero.
        let (allowed, rule, hint) = match self {
            Kind::Positive => (value > 0.0, "it must be above 0", "a typical value is 6e-4"),
            Kind::Fraction => (
                value >= 0.0 && (value as f32) < 1.0,
                "it must be at least 0 and below 1",
                "use a value like 0.0 or 0.9",
            ),
            _ => (value >= 0.0, "it must not be negative", "the smallest value is 0"),
        };
        if !(value as f32).is_finite() {
            let (rule, hint) = ("it must be a finite float32", "use a smaller value");
            return Err(InvalidValue::Range { rule: rule.into(), hint: hint.into() });
        }
        if !allowed {
            return Err(InvalidValue::Range { rule: rule.into(), hint: hint.into() });
        }
        // Replaces -0.0 by 0.0, so that it prints without a sign.
        Ok(Value::Float(value + 0.0))
    }

    /// Describes the expected values as a noun phrase, for help texts and errors.
    fn expected(&self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Count { .. } => "a whole number".into(),
            Kind::Positive | Kind::NonNegative | Kind::Fraction => "a number".into(),
            Kind::Text => "text".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Words(words) => format!("any of {}", words.join(", ")),
            Kind::Duration => "a duration in quotes".into(),
            Kind::Memory => "an amount of memory".into(),
        }
    }

    /// Returns example values as they are typed.
    fn example(&self) -> &'static str {
        match self {
            Kind::Bool => "true",
            Kind::Count { .. } => "64 or 5_000",
            Kind::Positive | Kind::NonNegative => "0.1 or 1e-3",
            Kind::Fraction => "0.9",
            Kind::Text => "\"text\"",
            Kind::Choice(words) | Kind::Words(words) => words.first().copied().unwrap_or(""),
            Kind::Duration => "\"2h\" or \"90min\"",
            Kind::Memory => "\"10GiB\", \"90%\", \"auto\" or \"none\"",
        }
    }

    /// Returns the error for a value of the wrong type.
    pub(super) fn type_error(&self) -> InvalidValue {
        let hint = format!("write it like {}", self.example());
        InvalidValue::Type { expected: self.expected(), hint }
    }
}

fn check_range(value: i64, min: u64, max: u64) -> Result<Value, InvalidValue> {
    let allowed = u64::try_from(value).is_ok_and(|value| (min..=max).contains(&value));
    if allowed {
        return Ok(Value::Int(value));
    }
    let rule = if i128::from(value) < i128::from(min) {
        format!("it must be at least {min}")
    } else {
        format!("it must be at most {max}")
    };
    Err(InvalidValue::Range { rule, hint: format!("use a value from {min} to {max}") })
}

fn check_choice(words: &[&str], mut word: String) -> Result<Value, InvalidValue> {
    if matches!(word.as_str(), "True" | "False") && words.contains(&"true") {
        word.make_ascii_lowercase();
    }
    if words.contains(&word.as_str()) {
        return Ok(Value::Text(word));
    }
    let rule = "it is not one of the choices".into();
    Err(InvalidValue::Range { rule, hint: format!("use one of {}", words.join(", ")) })
}

/// Returns the words in the order of `words`, each once.
fn check_words(words: &[&str], text: &str) -> Result<Value, InvalidValue> {
    let typed: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if let Some(unknown) = typed.iter().find(|word| !words.contains(word)) {
        let hint =
            format!("use {}, with a comma between them, or leave it empty", words.join(", "));
        return Err(InvalidValue::Range { rule: format!("{unknown:?} is not a choice"), hint });
    }
    let known: Vec<&str> = words.iter().copied().filter(|word| typed.contains(word)).collect();
    Ok(Value::Text(known.join(",")))
}

fn check_duration(text: String) -> Result<Value, InvalidValue> {
    let invalid = |rule: String| InvalidValue::Range {
        rule,
        hint: "write it like 2h or 1h 30min, or leave it empty for no limit".into(),
    };
    match parse_duration(&text) {
        Ok(Some(time)) if time > MAX_TIME => Err(invalid("it is longer than 100 years".into())),
        Ok(_) => Ok(Value::Text(text)),
        Err(error) => Err(invalid(format!("it is not a duration ({error})"))),
    }
}

fn check_memory(text: &str) -> Result<Value, InvalidValue> {
    match text.parse::<super::Budget>() {
        Ok(budget) => Ok(Value::Text(budget.to_string())),
        Err(rule) => {
            Err(InvalidValue::Range { rule, hint: "write it like 10GiB, 90%, auto or none".into() })
        }
    }
}

/// Parses a `max_time`. Empty and zero mean no limit, like the 0 of other settings.
pub(super) fn parse_duration(
    text: &str,
) -> Result<Option<std::time::Duration>, humantime::DurationError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let time = humantime::parse_duration(text)?;
    Ok((!time.is_zero()).then_some(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_parses_its_values_only() {
        let count = Kind::Count { min: 1, max: 100_000 };
        assert_eq!(count.parse("5_000"), Ok(Value::Int(5000)));
        assert_eq!(count.parse("5 * 8"), Ok(Value::Int(40)));
        assert_eq!(Kind::Positive.parse("1e-3"), Ok(Value::Float(1e-3)));
        assert_eq!(Kind::NonNegative.parse("1"), Ok(Value::Float(1.0)));
        assert_eq!(Kind::Bool.parse("True"), Ok(Value::Bool(true)));
        assert_eq!(Kind::Text.parse("5"), Ok(Value::Text("5".into())));
        let words = Kind::Words(&["a", "b"]);
        assert_eq!(words.parse(" b, a,b,"), Ok(Value::Text("a,b".into())));
        assert_eq!(words.parse(""), Ok(Value::Text("".into())));
        for (kind, text) in [
            (Kind::Bool, "1"),
            (Kind::Bool, "yes"),
            (count, "0"),
            (count, "100_001"),
            (count, "-1"),
            (count, "1e3"),
            (count, "'5'"),
            (count, ""),
            (Kind::Positive, "0"),
            (Kind::Positive, "nan"),
            (Kind::Positive, "1e39"),
            (Kind::NonNegative, "-0.1"),
            (Kind::Fraction, "1"),
            (Kind::Fraction, "0.99999999"),
            (Kind::Choice(&["a", "b"]), "c"),
            (words, "a,c"),
            (words, "a b"),
            (Kind::Duration, "5"),
            (Kind::Duration, "200years"),
        ] {
            assert!(kind.parse(text).is_err(), "{kind:?} accepted {text}");
        }
    }

    #[test]
    fn a_whole_float_gets_the_integer_as_a_hint() {
        let result = Kind::Count { min: 1, max: 10 }.accept(Value::Float(1e5));
        let Err(InvalidValue::Type { hint, .. }) = result else { panic!("{result:?}") };
        assert_eq!(hint, "write it as 100000");
    }

    #[test]
    fn empty_and_zero_durations_are_no_limit() {
        let hours = |h: u64| std::time::Duration::from_secs(h * 3600);
        assert_eq!(parse_duration("2h"), Ok(Some(hours(2))));
        assert_eq!(parse_duration(" "), Ok(None));
        assert_eq!(parse_duration("0s"), Ok(None));
        assert!(parse_duration("soon").is_err());
    }
}
