//! The division of the optimizer state among ranks, as in stage 1 of ZeRO (Rajbhandari et al. 2020,
//! arXiv:1910.02054).
//!
//! A rank gets whole weights, not a range of all elements: Muon needs whole matrices, and checkpoints
//! do not change. The price is that no part is smaller than the state of the largest weight. With
//! AdamW and 4 ranks the fullest rank has 31% of the state of GPT-2 small, because of the token
//! embedding, and 25% of the state of GPT-2 XL.

use std::cmp::Reverse;

use super::Architecture;
use crate::config::{Config, OptimizerKind};

/// Bytes of an element of the state.
const STATE_BYTES: u64 = 4;

/// Returns the rank that owns each weight of a model, in their order, with `vocab` rows of the embedding.
pub(crate) fn owners(config: &Config, vocab: u64, ranks: usize) -> Vec<usize> {
    divided(&weights(config, vocab).iter().map(states).collect::<Vec<_>>(), ranks)
}

/// Divides weights among ranks by the elements of their states. The largest state goes first, each to the
/// rank that has least so far; among equals to the first.
fn divided(states: &[u64], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..states.len()).collect();
    // A stable sort: equal ones stay in the order of the model.
    order.sort_by_key(|&index| Reverse(states[index]));
    let mut loads = vec![0u64; ranks.max(1)];
    let mut owners = vec![0; states.len()];
    for index in order {
        let least = (0..loads.len()).min_by_key(|&rank| loads[rank]).unwrap_or(0);
        loads[least] = loads[least].saturating_add(states[index]);
        owners[index] = least;
    }
    owners
}

/// Counts the weights of Muon and of AdamW whose state is on the fullest of `ranks`, with `vocab` rows of
/// the embedding.
pub(super) fn largest_part(config: &Config, vocab: u64, ranks: usize) -> [u64; 2] {
    let mut parts = vec![[0u64; 2]; ranks.max(1)];
    let owners = owners(config, vocab, ranks);
    for ([muon, adamw], owner) in weights(config, vocab).into_iter().zip(owners) {
        parts[owner][0] += muon;
        parts[owner][1] += adamw;
    }
    parts.into_iter().max_by_key(states).unwrap_or_default()
}

/// Returns the bytes of the optimizer state on the fullest of `ranks`.
pub(super) fn state_bytes(config: &Config, vocab: u64, ranks: usize) -> u64 {
    STATE_BYTES.saturating_mul(states(&largest_part(config, vocab, ranks)))
}

/// Counts the elements of the state: a momentum of Muon's weights, two moments of AdamW's.
fn states([muon, adamw]: &[u64; 2]) -> u64 {
    muon.saturating_add(adamw.saturating_mul(2))
}

/// Lists the weights of a model in their order: the elements that Muon updates, and those that AdamW does.
fn weights(config: &Config, vocab: u64) -> Vec<[u64; 2]> {
    let weight = |(name, shape): (String, Vec<usize>)| {
        let elements = shape.iter().map(|&size| size as u64).product();
        let is_matrix = shape.len() == 2 && name.starts_with("h.");
        let is_muons = is_matrix && config.optimizer == OptimizerKind::Muon;
        if is_muons { [elements, 0] } else { [0, elements] }
    };
    // Padding the rows of the embedding once more changes nothing.
    Architecture::new(config, vocab as u32).shapes().into_iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::padded_vocab;

    fn config(preset: &str, optimizer: OptimizerKind) -> Config {
        Config { optimizer, ..Config::of_preset(preset, &[]) }
    }

    #[test]
    fn the_largest_weights_go_first_and_each_to_the_emptiest_rank() {
        assert_eq!(divided(&[3, 5, 4, 1, 1], 2), [1, 0, 1, 0, 0]);
        assert_eq!(divided(&[7, 7, 7], 4), [0, 1, 2]);
        assert_eq!(divided(&[2, 1], 1), [0, 0]);
        assert_eq!(divided(&[], 3), [0; 0]);
    }

    #[test]
    fn the_fullest_rank_has_little_more_than_its_share_or_the_embedding() {
        for (preset, optimizer, ranks, expected) in [
            ("gpt2", OptimizerKind::AdamW, 2, 0.5),
            ("gpt2", OptimizerKind::AdamW, 4, 0.31),
            ("gpt2-xl", OptimizerKind::AdamW, 4, 0.25),
            ("gpt2-xl", OptimizerKind::Muon, 8, 0.125),
        ] {
            let config = config(preset, optimizer);
            let of = |ranks| state_bytes(&config, padded_vocab(50_257).into(), ranks) as f64;
            let share = of(ranks) / of(1);
            assert!((share - expected).abs() < 0.005, "{preset}, {ranks} ranks: {share}");
        }
        let config = config("gpt2", OptimizerKind::AdamW);
        let parameters = config.parameters(padded_vocab(50_257).into());
        assert_eq!(state_bytes(&config, padded_vocab(50_257).into(), 1), 8 * parameters);
    }

    #[test]
    fn muon_updates_the_matrices_of_the_blocks() {
        for bias in [false, true] {
            let config = Config { bias, ..config("gpt2", OptimizerKind::Muon) };
            let muon: u64 = weights(&config, 50_304).iter().map(|[muon, _]| muon).sum();
            assert_eq!(muon, config.block_matrices());
        }
    }
}
