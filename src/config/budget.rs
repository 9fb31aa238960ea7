//! The memory budget, as people read and write it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The device memory that a run may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Budget {
    /// The memory that is free when the run starts, less a reserve.
    #[default]
    Auto,
    Bytes(u64),
    /// A percentage of the device's memory, in (0, 100].
    Percent(f64),
    /// No limit but the driver's.
    Unlimited,
}

const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
    ("", 1),
];

/// A number without a unit counts bytes. Below this one, the unit was probably forgotten.
const MIN_WITHOUT_UNIT: f64 = 1024.0;

impl TryFrom<String> for Budget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "auto" => return Ok(Budget::Auto),
            "none" => return Ok(Budget::Unlimited),
            _ => {}
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && !"._".contains(c));
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let unit = unit.trim();
        let number: f64 = number
            .replace('_', "")
            .parse()
            .map_err(|_| format!("`{text}` is not an amount of memory"))?;
        match unit {
            "%" if number > 0.0 && number <= 100.0 => return Ok(Budget::Percent(number)),
            "%" => return Err("a percentage must be above 0% and at most 100%".into()),
            _ => {}
        }
        let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let Some((_, bytes)) = known else {
            return Err(format!("`{unit}` is not a unit of memory"));
        };
        let amount = number * *bytes as f64;
        match amount {
            ..1.0 | 1_152_921_504_606_846_976.0.. => {
                Err(format!("`{text}` is not a plausible amount of device memory"))
            }
            ..MIN_WITHOUT_UNIT if *bytes == 1 => {
                Err(format!("`{text}` means {text} bytes, not {text}GiB"))
            }
            _ => Ok(Budget::Bytes(amount as u64)),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Auto => f.write_str("auto"),
            Budget::Unlimited => f.write_str("none"),
            Budget::Percent(share) => write!(f, "{share}%"),
            // The largest unit that is exact.
            Budget::Bytes(bytes) => {
                let exact = |&&(name, unit): &&(&str, u64)| {
                    name.ends_with("iB") && *bytes > 0 && bytes.is_multiple_of(unit)
                };
                match UNITS.iter().rev().find(exact) {
                    Some((name, unit)) => write!(f, "{}{name}", bytes / unit),
                    None => write!(f, "{bytes}"),
                }
            }
        }
    }
}

impl From<Budget> for String {
    fn from(budget: Budget) -> Self {
        budget.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Budget, String> {
        text.to_string().try_into()
    }

    #[test]
    fn budgets_parse_and_print_the_same_text() {
        for (text, budget) in [
            ("auto", Budget::Auto),
            ("none", Budget::Unlimited),
            ("90%", Budget::Percent(90.0)),
            ("10GiB", Budget::Bytes(10 << 30)),
            ("1536MiB", Budget::Bytes(1536 << 20)),
            ("12345", Budget::Bytes(12345)),
        ] {
            assert_eq!(parse(text), Ok(budget));
            assert_eq!(budget.to_string(), text);
        }
        assert_eq!(parse("1.5 gib"), Ok(Budget::Bytes(3 << 29)));
        assert_eq!(parse("12GB"), Ok(Budget::Bytes(12_000_000_000)));
        assert_eq!(parse("6_000_000"), Ok(Budget::Bytes(6_000_000)));
        for bad in ["", "0", "-1GiB", "0%", "101%", "10 apples", "GiB", "1e9", "99999999TiB"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
