//! Divides the state of the optimizer among the ranks of a run, as in stage 1 of ZeRO (Rajbhandari et
//! al. 2020, arXiv:1910.02054).
//!
//! Each weight belongs to one rank. Only this rank has its state, updates it with the summed gradient, and
//! sends it to the others. An update is the same wherever it is made, so a sharded run has the same bits
//! as one that is not.

use std::ops::Range;

use super::Group;
use crate::config::Config;
use crate::plan;

/// The division of a model's weights among ranks.
pub struct Sharding {
    pub rank: usize,
    /// The rank that updates each weight, in the order of the model.
    pub owners: Vec<usize>,
}

impl Sharding {
    /// Divides the weights of a run of `config` among the ranks of `group`, with `vocab` rows of the
    /// embedding, by the elements of their states. `None` if each rank has the whole optimizer.
    pub(crate) fn of(config: &Config, vocab: u64, group: &Group) -> Option<Self> {
        if !config.shard_optimizer || group.is_alone() {
            return None;
        }
        Some(Self { rank: group.rank(), owners: plan::owners(config, vocab, group.size()) })
    }

    /// Returns true if this rank updates the weight with this index.
    pub fn owns(&self, index: usize) -> bool {
        self.owners[index] == self.rank
    }
}

/// Returns the tensors that overlap the elements `wanted` of all tensors in a row, each with the range in it.
/// `lengths` are the tensors' elements.
pub(super) fn overlaps(
    lengths: impl Iterator<Item = usize>,
    wanted: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut end = 0;
    lengths.enumerate().filter_map(move |(index, length)| {
        let start = end;
        end += length;
        let from = wanted.start.max(start);
        let to = wanted.end.min(end);
        (from < to).then(|| (index, from - start..to - start))
    })
}
