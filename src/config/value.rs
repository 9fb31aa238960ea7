//! Values as typed, and the kinds of value a key takes.

use super::expression;
use std::fmt;

/// The longest `max_time`: far beyond any run, and small enough that a clock can add it.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(100 * 365 * 24 * 3600);

/// A literal of a config file, or the value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            // Debug keeps the point of 1.0 and writes 6e-5 short.
            Value::Float(value) => write!(f, "{value:?}"),
            Value::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// Which values a [`Key`](super::Key) takes.
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
    /// A number in [0, 1), still below 1 when rounded to 32 bits.
    Fraction,
    /// Any text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A time such as `2h` or `1h 30min`; empty for none.
    Duration,
    /// An amount of memory: see [`Budget`](super::Budget).
    Memory,
}

/// Why a kind does not take a value. The caller knows which key and where, see
/// [`ConfigError`](super::ConfigError).
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    /// The value is of another type.
    Type { expected: String, hint: String },
    /// The type is right, the value is not allowed.
    Range { rule: String, hint: String },
}

impl Kind {
    /// Reads text from a flag or the environment.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, Refusal> {
        match self {
            Kind::Bool => match text.trim() {
                "true" | "True" => Ok(Value::Bool(true)),
                "false" | "False" => Ok(Value::Bool(false)),
                _ => Err(self.mistyped()),
            },
            Kind::Count { .. } | Kind::Positive | Kind::NonNegative | Kind::Fraction => {
                let value = expression::parse(text).map_err(|problem| Refusal::Type {
                    expected: self.expected(),
                    hint: format!("{problem}; write it like {}", self.example()),
                })?;
                self.accept(value)
            }
            Kind::Text | Kind::Choice(_) | Kind::Duration | Kind::Memory => {
                self.accept(Value::Text(text.into()))
            }
        }
    }

    /// Takes a literal from a file: checks type and range, and makes an integer a float where the
    /// key is a rate.
    pub(crate) fn accept(&self, value: Value) -> Result<Value, Refusal> {
        match (self, value) {
            (Kind::Bool, value @ Value::Bool(_)) | (Kind::Text, value @ Value::Text(_)) => {
                Ok(value)
            }
            (Kind::Count { min, max }, Value::Int(value)) => in_range(value, *min, *max),
            (Kind::Count { .. }, Value::Float(value)) if value.fract() == 0.0 => {
                Err(Refusal::Type {
                    expected: self.expected(),
                    hint: format!("write it out as {value:.0}"),
                })
            }
            (Kind::Positive | Kind::NonNegative | Kind::Fraction, Value::Int(value)) => {
                self.rate(value as f64)
            }
            (Kind::Positive | Kind::NonNegative | Kind::Fraction, Value::Float(value)) => {
                self.rate(value)
            }
            (Kind::Choice(words), Value::Text(word)) => choice(words, word),
            // `True` and `true` of files, where they stand beside words.
            (Kind::Choice(words), Value::Bool(value)) if words.contains(&"true") => {
                Ok(Value::Text(value.to_string()))
            }
            (Kind::Duration, Value::Text(text)) => duration(text),
            (Kind::Memory, Value::Text(text)) => memory(text),
            (Kind::Memory, Value::Int(bytes)) => memory(bytes.to_string()),
            _ => Err(self.mistyped()),
        }
    }

    fn rate(&self, value: f64) -> Result<Value, Refusal> {
        // The device computes in 32 bits, where 0.99999999 is 1: a moment with decay 1 divides by
        // zero, and so does dropout with probability 1.
        let (allowed, rule, hint) = match self {
            Kind::Positive => (value > 0.0, "it must be above 0", "a usual value is 6e-4"),
            Kind::Fraction => (
                value >= 0.0 && (value as f32) < 1.0,
                "it must be at least 0 and below 1",
                "use a value such as 0.0 or 0.9",
            ),
            _ => (value >= 0.0, "it must not be negative", "0 is the smallest value"),
        };
        if !(value as f32).is_finite() {
            let rule = "it must be a finite 32-bit number";
            return Err(Refusal::Range { rule: rule.into(), hint: "use a smaller value".into() });
        }
        if !allowed {
            return Err(Refusal::Range { rule: rule.into(), hint: hint.into() });
        }
        // -0.0 passes `>= 0` but would be printed with its sign.
        Ok(Value::Float(value + 0.0))
    }

    /// What the kind takes, as a noun phrase for help texts and errors.
    pub fn expected(&self) -> String {
        match self {
            Kind::Bool => "true or false".into(),
            Kind::Count { .. } => "a whole number".into(),
            Kind::Positive | Kind::NonNegative | Kind::Fraction => "a number".into(),
            Kind::Text => "a text".into(),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Duration => "a time as text".into(),
            Kind::Memory => "an amount of memory".into(),
        }
    }

    /// A value as it would be typed.
    fn example(&self) -> &'static str {
        match self {
            Kind::Bool => "true",
            Kind::Count { .. } => "64 or 5_000",
            Kind::Positive | Kind::NonNegative => "0.1 or 1e-3",
            Kind::Fraction => "0.9",
            Kind::Text => "\"text\"",
            Kind::Choice(words) => words.first().copied().unwrap_or(""),
            Kind::Duration => "\"2h\" or \"90min\"",
            Kind::Memory => "\"10GiB\", \"90%\", \"auto\" or \"none\"",
        }
    }

    pub(crate) fn mistyped(&self) -> Refusal {
        let hint = format!("write it like {}", self.example());
        Refusal::Type { expected: self.expected(), hint }
    }
}

fn in_range(value: i64, min: u64, max: u64) -> Result<Value, Refusal> {
    let allowed = u64::try_from(value).is_ok_and(|value| (min..=max).contains(&value));
    if allowed {
        return Ok(Value::Int(value));
    }
    let rule = if i128::from(value) < i128::from(min) {
        format!("it must be at least {min}")
    } else {
        format!("it must be at most {max}")
    };
    Err(Refusal::Range { rule, hint: format!("use a value from {min} to {max}") })
}

fn choice(words: &[&str], mut word: String) -> Result<Value, Refusal> {
    if matches!(word.as_str(), "True" | "False") && words.contains(&"true") {
        word.make_ascii_lowercase();
    }
    if words.contains(&word.as_str()) {
        return Ok(Value::Text(word));
    }
    let rule = "there is no such choice".into();
    Err(Refusal::Range { rule, hint: format!("use one of {}", words.join(", ")) })
}

fn duration(text: String) -> Result<Value, Refusal> {
    let refused = |rule: String| Refusal::Range {
        rule,
        hint: "write it like 2h or 1h 30min, or leave it empty for no limit".into(),
    };
    match parse_duration(&text) {
        Ok(Some(time)) if time > LONGEST => Err(refused("it is longer than 100 years".into())),
        Ok(_) => Ok(Value::Text(text)),
        Err(error) => Err(refused(format!("it is not a time ({error})"))),
    }
}

fn memory(text: String) -> Result<Value, Refusal> {
    match text.parse::<super::Budget>() {
        Ok(budget) => Ok(Value::Text(budget.to_string())),
        Err(rule) => {
            Err(Refusal::Range { rule, hint: "write it like 10GiB, 90%, auto or none".into() })
        }
    }
}

/// Reads a `max_time`: empty and zero mean no limit, as 0 does for every other key with an "off".
pub(crate) fn parse_duration(
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
    fn typed_text_is_read_by_kind() {
        let count = Kind::Count { min: 1, max: 100_000 };
        assert_eq!(count.parse("5_000"), Ok(Value::Int(5000)));
        assert_eq!(count.parse("5 * 8"), Ok(Value::Int(40)));
        assert_eq!(Kind::Positive.parse("1e-3"), Ok(Value::Float(1e-3)));
        assert_eq!(Kind::NonNegative.parse("1"), Ok(Value::Float(1.0)));
        assert_eq!(Kind::Bool.parse("True"), Ok(Value::Bool(true)));
        assert_eq!(Kind::Text.parse("5"), Ok(Value::Text("5".into())));
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
            (Kind::Duration, "5"),
            (Kind::Duration, "200years"),
        ] {
            assert!(kind.parse(text).is_err(), "{kind:?} took {text}");
        }
    }

    #[test]
    fn a_whole_float_is_answered_with_its_integer() {
        let refusal = Kind::Count { min: 1, max: 10 }.accept(Value::Float(1e5));
        let Err(Refusal::Type { hint, .. }) = refusal else { panic!("{refusal:?}") };
        assert_eq!(hint, "write it out as 100000");
    }

    #[test]
    fn no_time_is_no_limit() {
        let hours = |h: u64| std::time::Duration::from_secs(h * 3600);
        assert_eq!(parse_duration("2h"), Ok(Some(hours(2))));
        assert_eq!(parse_duration(" "), Ok(None));
        assert_eq!(parse_duration("0s"), Ok(None));
        assert!(parse_duration("soon").is_err());
    }
}
