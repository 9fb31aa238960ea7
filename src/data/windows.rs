//! The positions of training and evaluation windows in a split.
//!
//! Both are pure functions of their arguments, with no generator state to save. So a resumed run
//! sees the same data, and so does a run with another micro-batch.

/// Returns the start of a training window, drawn by the hash of the seed, the step and the number of the sequence
/// in the global batch.
///
/// Starts are uniform over `0..tokens - block_size`, which leaves `block_size` inputs and a target
/// after the last one. They are drawn independently, with replacement, as in nanoGPT. For a split
/// shorter than a window, which [`Dataset::open`](super::Dataset::open) rejects, the start is 0.
pub(super) fn train_start(draw: [u64; 3], tokens: u64, block_size: u64) -> u64 {
    below(draw, tokens.saturating_sub(block_size))
}

/// Draws uniformly from `0..count`, by the hash of `words`.
///
/// A 128-bit product maps the hash to the range (Lemire 2019, "Fast Random Integer Generation in an
/// Interval", without the rejection step), with a bias below `count / 2^64`.
pub(super) fn below<const N: usize>(words: [u64; N], count: u64) -> u64 {
    let product = u128::from(hash(words)) * u128::from(count);
    // The upper half of the product of two u64 fits in a u64.
    (product >> 64) as u64
}

/// Returns the starts of up to `wanted` evaluation windows, evenly spaced over the split and
/// without overlap.
///
/// They do not depend on the batch size, so all evaluations measure the same text. If `wanted`
/// covers the split, the windows follow each other, and every token is predicted once, except for
/// the first token and a remainder shorter than a window.
pub(super) fn eval_starts(tokens: u64, block_size: u64, wanted: u64) -> Vec<u64> {
    // The last token of a window is only a target; it is the first input of the next window.
    let disjoint = tokens.saturating_sub(1).checked_div(block_size).unwrap_or(0);
    if wanted >= disjoint {
        return (0..disjoint).map(|index| index * block_size).collect();
    }
    let starts = u128::from(tokens - block_size);
    (0..wanted)
        // Below `starts`, because index < wanted.
        .map(|index| (u128::from(index) * starts / u128::from(wanted)) as u64)
        .collect()
}

/// Hashes words, as a counter-based random number generator: adds each word to the state and mixes.
///
/// Each word is a step of SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom
/// Number Generators", with the constants of Stafford's variant 13). For a fixed prefix the hash is
/// a bijection of the last word.
pub(super) fn hash<const N: usize>(words: [u64; N]) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    words.into_iter().fold(GOLDEN, |state, word| {
        let mut z = state.wrapping_add(word.wrapping_add(1).wrapping_mul(GOLDEN));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn training_starts_are_pinned() {
        // Other values would change the data of every run and break resumed ones.
        let starts: Vec<_> =
            (0..4).map(|sequence| train_start([1337, 7, sequence], 1_003_854, 256)).collect();
        assert_eq!(starts, [98_388, 274_463, 222_446, 381_750]);
    }

    #[test]
    fn training_starts_are_uniform_and_reach_both_ends() {
        let (tokens, block_size, bins) = (1_010, 10, 1_000_usize);
        let draws = 400_000_u64;
        let mut counts = vec![0_u64; bins];
        for step in 0..draws / 8 {
            for sequence in 0..8 {
                counts[train_start([3, step, sequence], tokens, block_size) as usize] += 1;
            }
        }
        let expected = draws as f64 / bins as f64;
        let chi: f64 = counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
        // 999 degrees of freedom: mean 999, standard deviation 44.7.
        assert!((chi - 999.0).abs() < 5.0 * 44.7, "chi squared {chi}");
    }

    #[test]
    fn training_starts_are_independent() {
        // Consecutive counters must not give related starts.
        let draws =
            (0..20).flat_map(|a| (0..20).flat_map(move |b| (0..20).map(move |c| [a, b, c])));
        let all: std::collections::HashSet<_> =
            draws.map(|draw| train_start(draw, 1 << 40, 1024)).collect();
        assert_eq!(all.len(), 8_000);
    }

    #[test]
    fn evaluation_windows_predict_each_token_once() {
        assert_eq!(eval_starts(31, 10, 3), [0, 10, 20]);
        assert_eq!(eval_starts(30, 10, 99), [0, 10]);
        assert_eq!(eval_starts(30, 10, 1), [0]);
        assert_eq!(eval_starts(11, 10, 5), [0]);
        assert!(eval_starts(10, 10, 5).is_empty());
        assert!(eval_starts(0, 10, 5).is_empty());
        assert!(eval_starts(10, 0, 5).is_empty());
        assert!(eval_starts(100, 10, 0).is_empty());
    }

    proptest! {
        #[test]
        fn a_training_window_lies_inside(
            draw: [u64; 3], block_size in 1_u64..5_000, extra in 1_u64..u64::MAX / 2,
        ) {
            let tokens = block_size + extra;
            let start = train_start(draw, tokens, block_size);
            prop_assert!(start + block_size < tokens);
        }

        #[test]
        fn evaluation_windows_are_inside_disjoint_and_spread(
            tokens in 0_u64..100_000, block_size in 1_u64..2_000, wanted in 0_u64..200,
        ) {
            let starts = eval_starts(tokens, block_size, wanted);
            let disjoint = tokens.saturating_sub(1) / block_size;
            prop_assert_eq!(starts.len() as u64, wanted.min(disjoint));
            prop_assert!(starts.iter().all(|start| start + block_size < tokens));
            let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            prop_assert!(gaps.iter().all(|&gap| gap >= block_size));
            let (least, most) = (gaps.iter().min(), gaps.iter().max());
            prop_assert!(most.unwrap_or(&0) - least.unwrap_or(&0) <= 1);
        }
    }
}
