//! Changes to a configuration that make a run fit.

use std::iter::successors;

use super::choice::PlanSearch;
use super::{Fix, GPT2_SIZES, SettingValues};
use crate::config::{Arch, Choice, Config};

impl PlanSearch<'_> {
    /// Returns up to three changes to a configuration that has no plan. Each makes the run fit; the mildest
    /// comes first. `budget` is the smallest budget with which it would, if any.
    pub(super) fn fixes(&self, budget: Option<u64>) -> Vec<Fix> {
        let Config { grad_checkpoint, offload_optimizer, n_layer, block_size, .. } = *self.config;
        let option = |key, value: &str| self.fix(vec![(key, value.into())]);
        let checkpointing = (grad_checkpoint == Choice::False).then_some("auto");
        let offloading = match offload_optimizer {
            Choice::False => Some("auto"),
            Choice::True => Some("false"),
            Choice::Auto => None,
        };
        let halves = successors(Some(block_size.get() / 2), |size| Some(size / 2));
        let mut halves = halves.take_while(|&size| size > 0);
        let fixes = [
            checkpointing.and_then(|value| option("grad_checkpoint", value)),
            offloading.and_then(|value| option("offload_optimizer", value)),
            halves.find_map(|size| option("block_size", &size.to_string())),
            self.largest(n_layer.get(), |layers| vec![("n_layer", layers.to_string())]),
            self.heads(),
            self.gpt2_size(),
            self.larger_budget(budget),
        ];
        fixes.into_iter().flatten().take(3).collect()
    }

    /// Fewer heads of the same size, if that follows from the width.
    fn heads(&self) -> Option<Fix> {
        let Config { n_head, n_kv_head, head_size, n_embd, .. } = *self.config;
        if (n_kv_head, head_size) != (0, 0) {
            return None;
        }
        let head_size = n_embd.get() / n_head;
        self.largest(n_head.get(), |heads| {
            vec![("n_head", heads.to_string()), ("n_embd", (head_size * heads).to_string())]
        })
    }

    fn gpt2_size(&self) -> Option<Fix> {
        let Config { arch, n_layer, n_embd, .. } = *self.config;
        if arch != Arch::Gpt2 {
            return None;
        }
        let keys = ["n_layer", "n_head", "n_embd"];
        let smaller = GPT2_SIZES
            .into_iter()
            .filter(|&([layers, _, width], _)| layers < n_layer.get() && width < n_embd.get());
        let mut sets = smaller.map(|(size, _)| keys.into_iter().zip(size.map(|n| n.to_string())));
        sets.find_map(|set| self.fix(set.collect()))
    }

    /// A larger budget, up to the memory of the device.
    fn larger_budget(&self, need: Option<u64>) -> Option<Fix> {
        let budget = self.limits.budget?;
        let memory = self.limits.memory.unwrap_or(u64::MAX);
        let predicted_bytes = need.filter(|&need| need > budget && need <= memory)?;
        let mib = predicted_bytes.div_ceil(1 << 20);
        Some(Fix { set: vec![("vram_budget", format!("{mib}MiB"))], predicted_bytes })
    }

    /// Returns the change to the largest count below `end` that makes the run fit.
    fn largest(&self, end: u32, set: impl Fn(u32) -> SettingValues) -> Option<Fix> {
        // Memory grows with the count, so the counts that fit come first.
        let counts: Vec<u32> = (1..end).collect();
        let fitting = counts.partition_point(|&count| self.fix(set(count)).is_some());
        self.fix(set(*counts[..fitting].last()?))
    }

    /// Returns the change to these settings, if it makes the run fit.
    fn fix(&self, set: SettingValues) -> Option<Fix> {
        let changed = self.config.with(&set)?;
        let predicted_bytes = PlanSearch { config: &changed, ..*self }.fastest()?.predicted_bytes;
        Some(Fix { set, predicted_bytes })
    }
}
