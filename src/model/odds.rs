//! The probabilities of tokens.

/// The number of the likeliest tokens that are kept.
const LIKELIEST: usize = 5;

/// A token with its probability, and the likeliest tokens in its place.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenOdds {
    pub id: u32,
    pub probability: f32,
    /// Ids with their probabilities, the likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

impl TokenOdds {
    /// Computes the probability of `id` in the softmax of `logits`, in one pass over them and without a
    /// sort. Only the first `vocab` logits count: the others are padding and get the probability 0.
    /// Logits that are not finite give 0, too.
    pub fn of(logits: &[f32], vocab: usize, id: u32) -> Self {
        let logits = &logits[..vocab.min(logits.len())];
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // A sum of 50,000 terms in f32 would lose digits.
        let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
        let probability = |logit: f32| {
            let share = (f64::from((logit - max).exp()) / sum) as f32;
            if share.is_finite() { share } else { 0.0 }
        };
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(LIKELIEST + 1);
        for (id, &logit) in logits.iter().enumerate() {
            if top.len() == LIKELIEST && top.last().is_some_and(|&(_, last)| logit <= last) {
                continue;
            }
            let rank = top.partition_point(|&(_, kept)| kept >= logit);
            top.insert(rank, (id as u32, logit));
            top.truncate(LIKELIEST);
        }
        let likeliest = top.into_iter().map(|(id, logit)| (id, probability(logit))).collect();
        let own = logits.get(id as usize).map_or(0.0, |&logit| probability(logit));
        Self { id, probability: own, likeliest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_a_softmax_of_the_real_vocabulary() {
        let logits: Vec<f32> = (0..40).map(|id| ((id * 17) % 40) as f32 / 8.0).collect();
        let vocab = 37;
        let sum: f64 = logits[..vocab].iter().map(|&logit| f64::from(logit).exp()).sum();
        let all: Vec<_> = (0..vocab as u32).map(|id| TokenOdds::of(&logits, vocab, id)).collect();
        let total: f32 = all.iter().map(|odds| odds.probability).sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
        for odds in &all {
            let expected = f64::from(logits[odds.id as usize]).exp() / sum;
            assert!((f64::from(odds.probability) - expected).abs() < 1e-6, "{odds:?}");
            assert_eq!(odds.likeliest, all[0].likeliest);
        }
        let mut sorted: Vec<_> = all.iter().map(|odds| (odds.id, odds.probability)).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
        assert_eq!(all[0].likeliest, sorted[..LIKELIEST]);
        assert_eq!(TokenOdds::of(&logits, vocab, 38).probability, 0.0);
    }

    #[test]
    fn few_equal_and_broken_logits_are_no_panic() {
        let odds = TokenOdds::of(&[1.0, 1.0], 9, 1);
        assert_eq!((odds.probability, odds.likeliest), (0.5, vec![(0, 0.5), (1, 0.5)]));
        let odds = TokenOdds::of(&[f32::NAN, 1.0], 2, 0);
        assert_eq!(odds.probability, 0.0);
        assert_eq!(TokenOdds::of(&[], 0, 0).probability, 0.0);
    }
}
