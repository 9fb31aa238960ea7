//! Changes to a configuration that make a run fit.

use std::iter::successors;

use super::choice::Search;
use super::{Fix, GPT2_SIZES};
use crate::config::{Choice, Config};

/// New values of settings, as they are typed.
type Set = Vec<(&'static str, String)>;

/// A search for changes to the configuration of a search that found no plan.
pub(super) struct FixSearch<'a>(pub Search<'a>);

impl FixSearch<'_> {
    /// Returns up to three changes, each of which makes the run fit, the mildest first. `budget` is
    /// the smallest budget with which it would, if any.
    pub(super) fn fixes(&self, budget: Option<u64>) -> Vec<Fix> {
        let fixes = [
            self.checkpointing(),
            self.offloading(),
            self.block_size(),
            self.layers(),
            self.heads(),
            self.gpt2_size(),
            self.budget(budget),
        ];
        fixes.into_iter().flatten().take(3).collect()
    }

    fn checkpointing(&self) -> Option<Fix> {
        let is_off = self.0.config.grad_checkpoint == Choice::False;
        is_off.then(|| self.fix(vec![("grad_checkpoint", "auto".into())]))?
    }

    fn offloading(&self) -> Option<Fix> {
        let choice = match self.0.config.offload_optimizer {
            Choice::Auto => return None,
            Choice::False => "auto",
            Choice::True => "false",
        };
        self.fix(vec![("offload_optimizer", choice.into())])
    }

    fn block_size(&self) -> Option<Fix> {
        let halves = successors(Some(self.0.config.block_size.get() / 2), |size| Some(size / 2));
        let mut halves = halves.take_while(|&size| size > 0);
        halves.find_map(|size| self.fix(vec![("block_size", size.to_string())]))
    }

    fn layers(&self) -> Option<Fix> {
        self.largest(self.0.config.n_layer.get(), |layers| vec![("n_layer", layers.to_string())])
    }

    /// Fewer heads of the same size.
    fn heads(&self) -> Option<Fix> {
        let head_size = self.0.config.n_embd.get() / self.0.config.n_head;
        self.largest(self.0.config.n_head.get(), |heads| {
            vec![("n_head", heads.to_string()), ("n_embd", (head_size * heads).to_string())]
        })
    }

    fn gpt2_size(&self) -> Option<Fix> {
        let Config { n_layer, n_embd, .. } = *self.0.config;
        let smaller = GPT2_SIZES
            .into_iter()
            .filter(|&([layers, _, width], _)| layers < n_layer.get() && width < n_embd.get());
        let keys = ["n_layer", "n_head", "n_embd"];
        smaller.into_iter().find_map(|(size, _)| {
            self.fix(keys.into_iter().zip(size.map(|count| count.to_string())).collect())
        })
    }

    /// A larger budget, up to the memory of the device.
    fn budget(&self, need: Option<u64>) -> Option<Fix> {
        let predicted_bytes =
            need.filter(|&need| self.0.limits.budget.is_some_and(|had| need > had))?;
        if self.0.limits.memory.is_some_and(|memory| predicted_bytes > memory) {
            return None;
        }
        let mib = predicted_bytes.div_ceil(1 << 20);
        Some(Fix { set: vec![("vram_budget", format!("{mib}MiB"))], predicted_bytes })
    }

    /// Returns the change to the largest count below `end` that makes the run fit.
    fn largest(&self, end: u32, set: impl Fn(u32) -> Set) -> Option<Fix> {
        // Memory grows with the count, so the counts that fit come first.
        let counts: Vec<u32> = (1..end).collect();
        let fitting = counts.partition_point(|&count| self.fix(set(count)).is_some());
        self.fix(set(*counts[..fitting].last()?))
    }

    /// Returns the change to these settings, if it makes the run fit.
    fn fix(&self, set: Set) -> Option<Fix> {
        let changed = self.0.config.with(&set)?;
        let predicted_bytes = Search { config: &changed, ..self.0 }.fastest()?.predicted_bytes;
        Some(Fix { set, predicted_bytes })
    }
}
