//! The probability that a model gives to each token of a text.

use serde::{Deserialize, Serialize};

use crate::data::{TextStream, Tokenizer};
use crate::model::{Gpt, TokenOdds, values};
use crate::ops::OpsMode;

/// Positions whose logits are read at a time: 32 MB for a vocabulary of 128,000 tokens.
const ROWS: usize = 64;

/// A token of a text, with the model's probability of it after the text before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoredToken {
    /// The texts of all tokens make the text. If a character has several tokens, the last one has it.
    pub text: String,
    /// `None` for the first token of a text, because nothing comes before it.
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

/// Decodes tokens together with their probabilities, in the order of the text.
pub struct ScoredStream<'a> {
    tokenizer: &'a Tokenizer,
    text: TextStream,
}

impl<'a> ScoredStream<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, text: TextStream::default() }
    }

    /// Adds a token with its odds.
    pub fn push(&mut self, odds: TokenOdds) -> ScoredToken {
        let TokenOdds { id, probability, likeliest } = odds;
        let likely = |(id, probability): (u32, f32)| LikelyToken {
            text: self.tokenizer.decode(&[id]),
            probability,
        };
        let likeliest = likeliest.into_iter().map(likely).collect();
        ScoredToken { probability: Some(probability), likeliest, ..self.first(id) }
    }

    /// Adds the first token of a text, which has no probability.
    fn first(&mut self, id: u32) -> ScoredToken {
        let text = self.text.push(self.tokenizer, id);
        ScoredToken { text, probability: None, likeliest: Vec::new() }
    }
}

/// The mean loss on the tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextLoss {
    /// The tokens that have a probability.
    pub tokens: usize,
    /// In nats per token.
    pub loss: f64,
    /// `None` for a text of one token.
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

/// Computes the probability of each token of a text, which has at least one. A text longer than `window`
/// tokens is read in windows that overlap by half, so that the model sees at least half of its window
/// before each later token. `take` gets the tokens in order, some at a time, and returns true to stop.
pub async fn score_text(
    model: &Gpt,
    tokenizer: &Tokenizer,
    ids: &[u32],
    window: usize,
    mode: OpsMode,
    take: &mut impl FnMut(Vec<ScoredToken>) -> bool,
) {
    let (all, vocab) = (model.architecture().vocab_size, tokenizer.vocab_size() as usize);
    let mut stream = ScoredStream::new(tokenizer);
    let Some(&first) = ids.first() else { return };
    if take(vec![stream.first(first)]) {
        return;
    }
    // The number of tokens that are scored.
    let mut done = 1;
    while done < ids.len() {
        let seen = if done == 1 { 0 } else { window.div_ceil(2).min(done) };
        let start = done.saturating_sub(seen.max(1));
        let end = ids.len().min(start + window + 1);
        let inputs = &ids[start..end - 1];
        let mut target = start + 1;
        for part in model.logits_in_parts(inputs.into(), ROWS, mode) {
            let rows = part.dims()[0];
            if target + rows <= done {
                target += rows;
                continue;
            }
            let logits: Vec<f32> = values(part).await.iter::<f32>().collect();
            let mut scored = Vec::with_capacity(rows);
            for row in logits.chunks(all) {
                if target >= done {
                    scored.push(stream.push(TokenOdds::of(row, vocab, ids[target])));
                }
                target += 1;
            }
            if take(scored) {
                return;
            }
        }
        done = end;
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{Architecture, RandomWeights, SampleOptions, Sampler};

    fn model() -> (Gpt, Tokenizer) {
        let architecture = Architecture { vocab_size: 260, ..Architecture::tiny() };
        let mut weights = RandomWeights::new(&architecture, 1);
        (Gpt::new(&architecture, &mut weights, &Device::flex()).unwrap(), Tokenizer::Byte)
    }

    fn score(ids: &[u32], window: usize) -> Vec<ScoredToken> {
        let (model, tokenizer) = model();
        let mut all = Vec::new();
        let mut take = |scored: Vec<ScoredToken>| {
            all.extend(scored);
            false
        };
        let mode = OpsMode::AUTO;
        pollster::block_on(score_text(&model, &tokenizer, ids, window, mode, &mut take));
        all
    }

    /// Returns the softmax over the tokenizer's 257 tokens after `before`, from a forward pass.
    fn softmax(before: &[u32]) -> Vec<f64> {
        let (model, _) = model();
        let logits = model.logits(before.into(), 1, OpsMode::AUTO);
        let logits: Vec<f32> = logits.into_data().try_to_vec().unwrap();
        let last = &logits[(before.len() - 1) * 260..][..257];
        let sum: f64 = last.iter().map(|&logit| f64::from(logit).exp()).sum();
        last.iter().map(|&logit| f64::from(logit).exp() / sum).collect()
    }

    #[test]
    fn probabilities_equal_a_forward_pass_also_in_overlapping_windows() {
        let text = "Once upon a time, é and more.";
        let ids = Tokenizer::Byte.encode(text).unwrap();
        let window = 8;
        let scored = score(&ids, window);
        assert_eq!(scored.len(), ids.len());
        assert_eq!(scored.iter().map(|token| token.text.as_str()).collect::<String>(), text);
        assert_eq!(scored[0].probability, None);
        for (at, token) in scored.iter().enumerate().skip(1) {
            // The first window has targets 1 to 8, and each other one 5 more.
            let start = if at <= window { 0 } else { (at - window - 1) / 5 * 5 + 5 };
            let expected = softmax(&ids[start..at])[ids[at] as usize];
            let found = f64::from(token.probability.unwrap());
            assert!((found - expected).abs() < 1e-5, "token {at}: {found}, expected {expected}");
            assert_eq!(token.likeliest.len(), 5);
        }
        assert_eq!(score(&ids[..1], window).len(), 1);
    }

    #[test]
    fn drawn_tokens_have_the_probabilities_of_the_model_whatever_the_options() {
        let ((model, tokenizer), prompt) = (model(), [79, 110]);
        let options = SampleOptions { temperature: 0.3, top_k: 2, seed: 3 };
        let mut sampler = Sampler::new(&model, &prompt, options, OpsMode::AUTO);
        let mut plain = Sampler::new(&model, &prompt, options, OpsMode::AUTO);
        let mut before = prompt.to_vec();
        for _ in 0..6 {
            let odds = pollster::block_on(sampler.next_with_odds(tokenizer.vocab_size() as usize));
            assert_eq!(odds.id, pollster::block_on(plain.next_token()), "other draws");
            let expected = softmax(&before);
            assert!((f64::from(odds.probability) - expected[odds.id as usize]).abs() < 1e-5);
            let best = expected.iter().copied().fold(0.0, f64::max);
            assert!((f64::from(odds.likeliest[0].1) - best).abs() < 1e-5);
            before.push(odds.id);
        }
    }

    #[test]
    fn each_probability_has_a_class() {
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
