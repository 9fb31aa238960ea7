//! The kinds of values that settings have.

use std::time::Duration;

use toml::Value;

use super::expression;
use super::moment::parse_moment;
use super::{Budget, Hours, RopeScaling};

/// The longest `max_time`: beyond any run, and small enough to add to a clock without overflow.
const MAX_TIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The type and range of the values of a [`Key`](super::Key).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueKind {
    /// `true` or `false`; Python's `True` and `False` as well.
    Bool,
    /// A whole number from `min` to `max`.
    Count {
        min: u64,
        max: u64,
    },
    /// A number above 0.
    Positive,
    /// A number from 0 up.
    NonNegative,
    /// A number in [0, 1) that is still below 1 when rounded to float32.
    Fraction,
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any of these words, separated by commas; empty for none.
    Words(&'static [&'static str]),
    /// A duration like `2h` or `1h 30min`; empty for none.
    Duration,
    /// A moment of RFC 3339; empty for none.
    Moment,
    /// An amount of memory, see [`Budget`].
    Memory,
    /// See [`RopeScaling`]; empty for none.
    Scaling,
    /// See [`Hours`]; empty for all.
    Hours,
}

/// An error about a value. [`ConfigError`](super::ConfigError) adds its key and provenance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidValue {
    Type {
        expected: String,
        hint: String,
    },
    /// The type is right, but the value is not allowed.
    Range {
        rule: String,
        hint: String,
    },
}

impl InvalidValue {
    pub(super) fn range(rule: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Range { rule: rule.into(), hint: hint.into() }
    }

    /// Returns the end of a sentence that begins with the key.
    pub(super) fn with(&self, value: &str) -> String {
        match self {
            Self::Type { expected, .. } => format!("takes {expected}, not {value}"),
            Self::Range { rule, .. } => format!("= {value} is not allowed: {rule}"),
        }
    }
}

impl ValueKind {
    /// Parses text from a flag or the environment.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, InvalidValue> {
        let value = match self {
            Self::Bool => match text.trim() {
                "true" | "True" => Value::Boolean(true),
                "false" | "False" => Value::Boolean(false),
                _ => return Err(self.type_error()),
            },
            Self::Count { .. } | Self::Positive | Self::NonNegative | Self::Fraction => {
                expression::parse(text).map_err(|problem| {
                    let (expected, example) = self.expected();
                    let hint = format!("{problem}; write it like {example}");
                    InvalidValue::Type { expected, hint }
                })?
            }
            _ => Value::String(text.into()),
        };
        self.accept(value)
    }

    /// Checks the type and range of a literal from a file; converts integers for fractional keys.
    pub(super) fn accept(&self, value: Value) -> Result<Value, InvalidValue> {
        use ValueKind::{Fraction, NonNegative, Positive};
        match (self, value) {
            (Self::Bool, value @ Value::Boolean(_)) => Ok(value),
            (Self::Text, value @ Value::String(_)) => Ok(value),
            (Self::Count { min, max }, Value::Integer(value)) => check_range(value, *min, *max),
            (Self::Count { .. }, Value::Float(value)) if value.fract() == 0.0 => {
                let (expected, _) = self.expected();
                Err(InvalidValue::Type { expected, hint: format!("write it as {value:.0}") })
            }
            (Positive | NonNegative | Fraction, Value::Integer(n)) => self.check_number(n as f64),
            (Positive | NonNegative | Fraction, Value::Float(n)) => self.check_number(n),
            (Self::Choice(words), Value::String(word)) => check_choice(words, word),
            // A Boolean literal for a choice between auto, true and false.
            (Self::Choice(words), Value::Boolean(value)) if words.contains(&"true") => {
                Ok(Value::String(value.to_string()))
            }
            (Self::Words(words), Value::String(text)) => check_words(words, &text),
            (Self::Duration, Value::String(text)) => check_duration(text),
            (Self::Moment, Value::String(text)) => check_moment(text),
            (Self::Memory, Value::String(text)) => check_memory(text),
            (Self::Scaling, Value::String(text)) => check_scaling(text),
            (Self::Hours, Value::String(text)) => check_hours(text),
            (Self::Memory, Value::Integer(bytes)) => check_memory(bytes.to_string()),
            _ => Err(self.type_error()),
        }
    }

    fn check_number(&self, value: f64) -> Result<Value, InvalidValue> {
        // In float32, 0.99999999 rounds to 1. A beta or a dropout of 1 would divide by zero.
        let (is_allowed, rule, hint) = match self {
            _ if !(value as f32).is_finite() => {
                (false, "it must be a finite float32", "use a smaller value")
            }
            Self::Positive => (value > 0.0, "it must be above 0", "a typical value is 6e-4"),
            Self::Fraction => (
                value >= 0.0 && (value as f32) < 1.0,
                "it must be at least 0 and below 1",
                "use a value like 0.0 or 0.9",
            ),
            _ => (value >= 0.0, "it must not be negative", "the smallest value is 0"),
        };
        // The addition replaces -0.0 by 0.0, so that it prints without a sign.
        if is_allowed {
            Ok(Value::Float(value + 0.0))
        } else {
            Err(InvalidValue::range(rule, hint))
        }
    }

    /// Describes the expected values as a noun phrase, with examples as typed text.
    fn expected(&self) -> (String, &'static str) {
        let first = |words: &[&'static str]| words.first().copied().unwrap_or("");
        match self {
            Self::Bool => ("true or false".into(), "true"),
            Self::Count { .. } => ("a whole number".into(), "64 or 5_000"),
            Self::Positive | Self::NonNegative => ("a number".into(), "0.1 or 1e-3"),
            Self::Fraction => ("a number".into(), "0.9"),
            Self::Text => ("text".into(), "\"text\""),
            Self::Choice(words) => (format!("one of {}", words.join(", ")), first(words)),
            Self::Words(words) => (format!("any of {}", words.join(", ")), first(words)),
            Self::Duration => ("a duration in quotes".into(), "\"2h\" or \"90min\""),
            Self::Moment => ("a moment in quotes".into(), "\"2026-11-28T07:30:00+01:00\""),
            Self::Memory => {
                ("an amount of memory".into(), "\"10GiB\", \"90%\", \"auto\" or \"none\"")
            }
            Self::Scaling => ("a scaling of angles".into(), "\"linear:4\""),
            Self::Hours => ("hours in quotes".into(), "\"23:00-07:00\""),
        }
    }

    pub(super) fn type_error(&self) -> InvalidValue {
        let (expected, example) = self.expected();
        InvalidValue::Type { expected, hint: format!("write it like {example}") }
    }
}

fn check_range(value: i64, min: u64, max: u64) -> Result<Value, InvalidValue> {
    let rule = match u64::try_from(value) {
        Ok(count) if (min..=max).contains(&count) => return Ok(Value::Integer(value)),
        Ok(count) if count > max => format!("it must be at most {max}"),
        _ => format!("it must be at least {min}"),
    };
    Err(InvalidValue::range(rule, format!("use a value from {min} to {max}")))
}

fn check_choice(words: &[&str], mut word: String) -> Result<Value, InvalidValue> {
    if matches!(word.as_str(), "True" | "False") && words.contains(&"true") {
        word.make_ascii_lowercase();
    }
    if words.contains(&word.as_str()) {
        return Ok(Value::String(word));
    }
    let hint = format!("use one of {}", words.join(", "));
    Err(InvalidValue::range("it is not one of the choices", hint))
}

/// Returns the words in the order of `words`, each once.
fn check_words(words: &[&str], text: &str) -> Result<Value, InvalidValue> {
    let typed: Vec<&str> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if let Some(unknown) = typed.iter().find(|word| !words.contains(word)) {
        let hint =
            format!("use {}, with a comma between them, or leave it empty", words.join(", "));
        return Err(InvalidValue::range(format!("{unknown:?} is not a choice"), hint));
    }
    let known: Vec<&str> = words.iter().copied().filter(|word| typed.contains(word)).collect();
    Ok(Value::String(known.join(",")))
}

fn check_duration(text: String) -> Result<Value, InvalidValue> {
    let rule = match parse_duration(&text) {
        Ok(Some(time)) if time > MAX_TIME => "it is longer than 100 years".into(),
        Ok(_) => return Ok(Value::String(text)),
        Err(error) => format!("it is not a duration ({error})"),
    };
    Err(InvalidValue::range(rule, "write it like 2h or 1h 30min, or leave it empty for no limit"))
}

fn check_moment(text: String) -> Result<Value, InvalidValue> {
    let hint =
        "write it like 2026-11-28T07:30:00+01:00, or leave it empty; --until takes 07:30, too";
    let rule = |error| InvalidValue::range(format!("it is not a moment ({error})"), hint);
    parse_moment(&text).map(|_| Value::String(text)).map_err(rule)
}

fn check_memory(text: String) -> Result<Value, InvalidValue> {
    let budget = Budget::try_from(text);
    let hint = "write it like 10GiB, 90%, auto or none";
    let budget = budget.map_err(|rule| InvalidValue::range(rule, hint))?;
    Ok(Value::String(budget.to_string()))
}

fn check_scaling(text: String) -> Result<Value, InvalidValue> {
    let scaling = RopeScaling::try_from(text);
    let hint = "write it like linear:4 or llama3:32,1,4,8192";
    let scaling = scaling.map_err(|rule| InvalidValue::range(rule, hint))?;
    Ok(Value::String(scaling.to_string()))
}

fn check_hours(text: String) -> Result<Value, InvalidValue> {
    let hint = "write them like 23:00-07:00 or mon-fri 23:00-07:00, sat-sun";
    let hours = Hours::try_from(text).map_err(|rule| InvalidValue::range(rule, hint))?;
    Ok(Value::String(hours.to_string()))
}

/// Parses a `max_time`. Empty and zero mean no limit, like the 0 of other settings.
pub(super) fn parse_duration(text: &str) -> Result<Option<Duration>, humantime::DurationError> {
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
        let count = ValueKind::Count { min: 1, max: 100_000 };
        assert_eq!(count.parse("5_000"), Ok(Value::Integer(5000)));
        assert_eq!(count.parse("5 * 8"), Ok(Value::Integer(40)));
        assert_eq!(ValueKind::Positive.parse("1e-3"), Ok(Value::Float(1e-3)));
        assert_eq!(ValueKind::NonNegative.parse("1"), Ok(Value::Float(1.0)));
        assert_eq!(ValueKind::Bool.parse("True"), Ok(Value::Boolean(true)));
        assert_eq!(ValueKind::Text.parse("5"), Ok(Value::String("5".into())));
        let words = ValueKind::Words(&["a", "b"]);
        assert_eq!(words.parse(" b, a,b,"), Ok(Value::String("a,b".into())));
        assert_eq!(words.parse(""), Ok(Value::String("".into())));
        for (kind, text) in [
            (ValueKind::Bool, "1"),
            (ValueKind::Bool, "yes"),
            (count, "0"),
            (count, "100_001"),
            (count, "-1"),
            (count, "1e3"),
            (count, "'5'"),
            (count, ""),
            (ValueKind::Positive, "0"),
            (ValueKind::Positive, "nan"),
            (ValueKind::Positive, "1e39"),
            (ValueKind::NonNegative, "-0.1"),
            (ValueKind::Fraction, "1"),
            (ValueKind::Fraction, "0.99999999"),
            (ValueKind::Choice(&["a", "b"]), "c"),
            (words, "a,c"),
            (words, "a b"),
            (ValueKind::Duration, "5"),
            (ValueKind::Duration, "200years"),
        ] {
            assert!(kind.parse(text).is_err(), "{kind:?} accepted {text}");
        }
    }

    #[test]
    fn a_whole_float_gets_the_integer_as_a_hint() {
        let result = ValueKind::Count { min: 1, max: 10 }.accept(Value::Float(1e5));
        let Err(InvalidValue::Type { hint, .. }) = result else { panic!("{result:?}") };
        assert_eq!(hint, "write it as 100000");
    }

    #[test]
    fn empty_and_zero_durations_are_no_limit() {
        let hours = |h: u64| Duration::from_secs(h * 3600);
        assert_eq!(parse_duration("2h"), Ok(Some(hours(2))));
        assert_eq!(parse_duration(" "), Ok(None));
        assert_eq!(parse_duration("0s"), Ok(None));
        assert!(parse_duration("soon").is_err());
    }
}
