//! An optimizer whose state is divided among the ranks of a run, as in stage 1 of ZeRO (Rajbhandari et
//! al. 2020, arXiv:1910.02054).
//!
//! Each weight belongs to one rank, which alone has its state and updates it from the gradient of all
//! ranks, and sends it to the others. The update of a weight is the same wherever it is made, so a
//! sharded run has the bits of one that is not.

use super::Group;
use crate::config::Config;
use crate::plan;

/// The place of this rank among those that share an optimizer.
#[derive(Clone, Copy, Debug)]
pub struct Shard {
    rank: usize,
    ranks: usize,
}

impl Shard {
    /// Returns the place of this rank of `group`; `None` if it has the whole optimizer of a run of
    /// `config`.
    pub(crate) fn of(config: &Config, group: &Group) -> Option<Self> {
        let shards = config.shard_optimizer && !group.is_alone();
        shards.then(|| Self { rank: group.rank(), ranks: group.size() })
    }
}

/// The division of a model's weights among ranks.
pub struct Sharding {
    pub rank: usize,
    /// The rank that updates each weight, in the order of the model.
    pub owners: Vec<usize>,
}

impl Sharding {
    /// Divides weights among ranks by the elements of their states.
    pub fn new(Shard { rank, ranks }: Shard, states: &[u64]) -> Self {
        Self { rank, owners: plan::owners(states, ranks) }
    }

    /// Returns true if this rank updates the weight with this index.
    pub fn owns(&self, index: usize) -> bool {
        self.owners[index] == self.rank
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Layer, OptimizerKind, padded_vocab, resolve};
    use crate::model::Architecture;
    use crate::plan::weights_of_optimizer;

    #[test]
    fn weights_of_the_plan_are_those_of_the_model() {
        for bias in [false, true] {
            for optimizer in [OptimizerKind::AdamW, OptimizerKind::Muon] {
                let preset = resolve(vec![Layer::preset("gpt2").unwrap()]).unwrap().config;
                let config = Config { bias, optimizer, ..preset };
                let shapes = Architecture::new(&config, 50_257).shapes();
                let expected =
                    shapes.iter().map(|(_, shape)| shape.iter().product::<usize>() as u64);
                let vocab = padded_vocab(50_257).into();
                let found = weights_of_optimizer(&config, vocab);
                let elements: Vec<u64> = found.iter().map(|[muon, adamw]| muon + adamw).collect();
                assert_eq!(elements, expected.collect::<Vec<_>>());
                let muon: u64 = found.iter().map(|[muon, _]| muon).sum();
                let matrices = config.block_matrices();
                assert_eq!(muon, if optimizer == OptimizerKind::Muon { matrices } else { 0 });
            }
        }
    }
}
