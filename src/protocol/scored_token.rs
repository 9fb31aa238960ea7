//! Tokens with their probabilities.

use serde::{Deserialize, Serialize};

/// A token of some text, with its probability according to the model, given the text before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoredToken {
    /// If a character has several tokens, the last one has it. Joined, these are the whole text.
    pub text: String,
    /// `None` for the first token, because nothing comes before it.
    pub probability: Option<f32>,
    /// The likeliest tokens in this place, the likeliest first.
    pub likeliest: Vec<LikelyToken>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LikelyToken {
    pub text: String,
    pub probability: f32,
}

impl ScoredToken {
    /// Returns the loss in nats, at most 87.3: no probability is below the smallest normal f32.
    pub fn loss(&self) -> Option<f64> {
        self.probability.map(|share| -f64::from(share.max(f32::MIN_POSITIVE)).ln())
    }
}

/// Formats a probability in percent. Below a tenth of a percent the loss is more useful.
pub(crate) fn probability_text(probability: f32) -> String {
    if probability < 0.001 { "<0.1%".into() } else { format!("{:.1}%", 100.0 * probability) }
}

/// How likely a token was, in the steps that its color shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbabilityClass {
    Likely,
    Possible,
    Unlikely,
    Rare,
    Surprising,
}

impl ProbabilityClass {
    pub const ALL: [Self; 5] =
        [Self::Likely, Self::Possible, Self::Unlikely, Self::Rare, Self::Surprising];

    /// Returns the lowest probability of this class, in percent.
    fn percent(self) -> u8 {
        match self {
            Self::Likely => 50,
            Self::Possible => 20,
            Self::Unlikely => 5,
            Self::Rare => 1,
            Self::Surprising => 0,
        }
    }
}

impl From<f32> for ProbabilityClass {
    fn from(probability: f32) -> Self {
        let fits = |class: &Self| 100.0 * probability >= f32::from(class.percent());
        Self::ALL.into_iter().find(fits).unwrap_or(Self::Surprising)
    }
}

impl std::fmt::Display for ProbabilityClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Likely => write!(f, "50% or more"),
            Self::Surprising => write!(f, "below 1%"),
            class => write!(f, "{}% or more", class.percent()),
        }
    }
}

/// The mean loss on some text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextLoss {
    /// The tokens that have a probability.
    pub tokens: usize,
    /// In nats per token.
    pub loss: f64,
    /// `None` if the text has one token.
    pub bits_per_byte: Option<f64>,
}

impl TextLoss {
    pub fn of(tokens: &[ScoredToken]) -> Self {
        let scored = tokens.iter().filter_map(|token| Some((token.loss()?, token.text.len())));
        let add = |(nats, bytes, count), (loss, length)| (nats + loss, bytes + length, count + 1);
        let (nats, bytes, count) = scored.fold((0.0, 0, 0), add);
        let bits = nats / std::f64::consts::LN_2;
        let bits_per_byte = (bytes > 0).then(|| bits / bytes as f64);
        Self { tokens: count, loss: nats / count.max(1) as f64, bits_per_byte }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_probability_has_a_class() {
        assert_eq!([0.25, 0.0009].map(probability_text), ["25.0%", "<0.1%"]);
        use ProbabilityClass::{Likely, Possible, Rare, Surprising, Unlikely};
        let classes = [1.0, 0.5, 0.2, 0.19, 0.05, 0.01, 0.009, 0.0].map(ProbabilityClass::from);
        let expected = [Likely, Likely, Possible, Unlikely, Unlikely, Rare, Surprising, Surprising];
        assert_eq!(classes, expected);
    }

    #[test]
    fn the_mean_loss_leaves_out_the_first_token() {
        let token = |text: &str, probability| ScoredToken {
            text: text.into(),
            probability,
            likeliest: Vec::new(),
        };
        let tokens = [token("a", None), token("bc", Some(0.5)), token("de", Some(0.125))];
        let loss = TextLoss::of(&tokens);
        assert_eq!((loss.tokens, loss.bits_per_byte), (2, Some(1.0)));
        assert!((loss.loss - 2.0 * std::f64::consts::LN_2).abs() < 1e-12);
        assert_eq!(
            TextLoss::of(&tokens[..1]),
            TextLoss { tokens: 0, loss: 0.0, bits_per_byte: None }
        );
        assert!(token("x", Some(0.0)).loss().unwrap().is_finite());
    }
}
