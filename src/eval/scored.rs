//! The probabilities that a model gives to the tokens of a text.

use crate::data::{TextStream, Tokenizer};
use crate::model::{Gpt, Sampler, TokenOdds, values};
use crate::ops::OpsMode;
use crate::protocol::{LikelyToken, ScoredToken};

/// Positions whose logits are read at a time: 32 MB for a vocabulary of 128,000 tokens.
const ROWS: usize = 64;

/// Decodes tokens together with their probabilities, in the order of the text.
pub struct ScoredStream<'a> {
    tokenizer: &'a Tokenizer,
    text: TextStream,
}

impl<'a> ScoredStream<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, text: TextStream::default() }
    }

    /// Draws the next token of a text, with its odds on request.
    pub async fn draw(&mut self, sampler: &mut Sampler<'_>, with_odds: bool) -> ScoredToken {
        if with_odds {
            self.push(sampler.next_with_odds(self.tokenizer.vocab_size() as usize).await)
        } else {
            self.unscored(sampler.next_token().await)
        }
    }

    /// Adds a token with its odds.
    pub fn push(&mut self, odds: TokenOdds) -> ScoredToken {
        let TokenOdds { id, probability, likeliest } = odds;
        let likely = |(id, probability): (u32, f32)| LikelyToken {
            text: self.tokenizer.decode(&[id]),
            probability,
        };
        let likeliest = likeliest.into_iter().map(likely).collect();
        ScoredToken { probability: Some(probability), likeliest, ..self.unscored(id) }
    }

    /// Adds a token without its odds, which the first token of a text does not have.
    fn unscored(&mut self, id: u32) -> ScoredToken {
        let text = self.text.push(|ids| self.tokenizer.decode(ids), id);
        ScoredToken { text, probability: None, likeliest: Vec::new() }
    }
}

/// Computes the probability of each token of a text. A text longer than `window` tokens is read in
/// windows that overlap by half, so that the model sees at least half of its window before each later
/// token. `take` gets the tokens in order, some at a time, and returns true to stop.
pub async fn score_text(
    model: &Gpt,
    tokenizer: &Tokenizer,
    ids: &[u32],
    window: usize,
    mode: OpsMode,
    take: &mut impl FnMut(Vec<ScoredToken>) -> bool,
) {
    let all = model.architecture().vocab_size;
    let vocab = tokenizer.vocab_size() as usize;
    let mut stream = ScoredStream::new(tokenizer);
    let Some(&first) = ids.first() else { return };
    if take(vec![stream.unscored(first)]) {
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
    use crate::model::{Architecture, RandomWeights, SampleOptions};

    fn model() -> (Gpt, Tokenizer) {
        let architecture = Architecture { vocab_size: 260, ..Architecture::tiny() };
        let mut weights = RandomWeights::new(&architecture, 1);
        (Gpt::new(&architecture, &mut weights, &Device::flex()).unwrap(), Tokenizer::BYTE)
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
        let ids = Tokenizer::BYTE.encode(text).unwrap();
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
}
