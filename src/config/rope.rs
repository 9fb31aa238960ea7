//! The scaling of rotary positions, with which a model was adapted to contexts longer than those it was first
//! trained on.

use std::f64::consts::TAU;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How the angle from one position to the next differs from `theta^(-2 i / size)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RopeScaling {
    #[default]
    None,
    /// All angles are divided by a factor: `linear:4`.
    Linear { factor: f64 },
    /// Llama 3.1's: `llama3:32,1,4,8192`. Angles whose turn is longer than `positions / low` positions are divided by
    /// the factor, those shorter than `positions / high` stay, and between them the factor changes smoothly.
    Llama3 { factor: f64, low: f64, high: f64, positions: f64 },
}

impl RopeScaling {
    /// Returns the angle in radians from one position to the next where `angle` is the one without scaling.
    pub fn scaled(self, angle: f64) -> f64 {
        match self {
            Self::None => angle,
            Self::Linear { factor } => angle / factor,
            Self::Llama3 { factor, low, high, positions } => {
                let turns = positions * angle / TAU;
                // The share of the angle that stays.
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                angle * (share + (1.0 - share) / factor)
            }
        }
    }
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Linear { factor } => write!(f, "linear:{factor}"),
            Self::Llama3 { factor, low, high, positions } => {
                write!(f, "llama3:{factor},{low},{high},{positions}")
            }
        }
    }
}

impl From<RopeScaling> for String {
    fn from(scaling: RopeScaling) -> Self {
        scaling.to_string()
    }
}

impl TryFrom<String> for RopeScaling {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::None);
        }
        let (kind, numbers) = text.split_once(':').unwrap_or((text, ""));
        let parse = |number: &str| number.trim().parse::<f64>();
        let numbers: Result<Vec<f64>, _> = numbers.split(',').map(parse).collect();
        let numbers = numbers.unwrap_or_default();
        let is_valid = numbers.iter().all(|number| *number > 0.0 && number.is_finite());
        match (kind, &numbers[..]) {
            ("linear", &[factor]) if is_valid && factor >= 1.0 => Ok(Self::Linear { factor }),
            ("llama3", &[factor, low, high, positions])
                if is_valid && factor >= 1.0 && high > low =>
            {
                Ok(Self::Llama3 { factor, low, high, positions })
            }
            _ => Err("it must be linear with a factor, llama3 with four numbers, or empty".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalings_read_back() {
        for text in ["", "linear:4", "llama3:32,1,4,8192"] {
            let scaling = RopeScaling::try_from(text.to_string()).unwrap();
            assert_eq!(scaling.to_string(), text);
        }
        for text in ["yarn:4", "linear", "linear:0.5", "linear:x", "llama3:8", "llama3:8,4,1,8192"]
        {
            assert!(RopeScaling::try_from(text.to_string()).is_err(), "{text}");
        }
    }

    /// Values of transformers' `_compute_llama3_parameters` for Llama 3.2 1B: theta 500,000, heads of 64.
    #[test]
    fn llama_3_keeps_fast_angles_and_divides_slow_ones() {
        let scaling = RopeScaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, positions: 8192.0 };
        for (pair, wanted) in LLAMA_3_2 {
            let plain = 500_000f64.powf(-2.0 * f64::from(pair) / 64.0);
            let off = scaling.scaled(plain) / wanted - 1.0;
            assert!(off.abs() < 1e-6, "{pair}: {off:e}");
        }
    }

    const LLAMA_3_2: [(u8, f64); 6] = [
        (0, 1.0),
        (10, 0.016_560_440_883),
        (15, 0.001_290_548_010_7),
        (16, 0.000_429_556_705_06),
        (18, 1.946_163_865_8e-5),
        (31, 9.418_306_490_3e-8),
    ];
}
