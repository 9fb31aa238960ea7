//! Changes to a configuration that make a run fit.

use std::iter::successors;

use super::choice::Search;
use super::{Fix, Forecast};
use crate::config::{Choice, Config};

/// Layers, heads and width of OpenAI's GPT-2, the largest first.
const GPT2_SIZES: [(u32, u32, u32); 4] =
    [(48, 25, 1600), (36, 20, 1280), (24, 16, 1024), (12, 12, 768)];

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
        if self.0.config.grad_checkpoint != Choice::False {
            return None;
        }
        let changed = Config { grad_checkpoint: Choice::Auto, ..self.0.config.clone() };
        self.fix("--grad_checkpoint=auto".into(), &changed)
    }

    fn offloading(&self) -> Option<Fix> {
        let (offload_optimizer, option) = match self.0.config.offload_optimizer {
            Choice::Auto => return None,
            Choice::False => (Choice::Auto, "--offload_optimizer=auto"),
            Choice::True => (Choice::False, "--offload_optimizer=false"),
        };
        self.fix(option.into(), &Config { offload_optimizer, ..self.0.config.clone() })
    }

    fn block_size(&self) -> Option<Fix> {
        let halves = successors(Some(self.0.config.block_size.get() / 2), |size| Some(size / 2));
        halves.take_while(|&size| size > 0).find_map(|size| {
            let changed = Config { block_size: size.try_into().ok()?, ..self.0.config.clone() };
            self.fix(format!("--block_size={size}"), &changed)
        })
    }

    fn layers(&self) -> Option<Fix> {
        let with_layers = |layers: u32| {
            Some(Config { n_layer: layers.try_into().ok()?, ..self.0.config.clone() })
        };
        let layers = self.largest(self.0.config.n_layer.get(), &with_layers)?;
        self.fix(format!("--n_layer={layers}"), &with_layers(layers)?)
    }

    /// Fewer heads of the same size.
    fn heads(&self) -> Option<Fix> {
        let head_size = self.0.config.n_embd.get() / self.0.config.n_head;
        let with_heads = |heads: u32| {
            let n_embd = (head_size * heads).try_into().ok()?;
            Some(Config { n_head: heads.try_into().ok()?, n_embd, ..self.0.config.clone() })
        };
        let heads = self.largest(self.0.config.n_head.get(), &with_heads)?;
        let changed = with_heads(heads)?;
        self.fix(format!("--n_head={heads} --n_embd={}", changed.n_embd), &changed)
    }

    fn gpt2_size(&self) -> Option<Fix> {
        let Config { n_layer, n_embd, .. } = *self.0.config;
        let smaller = GPT2_SIZES
            .into_iter()
            .filter(|&(layers, _, width)| layers < n_layer.get() && width < n_embd.get());
        smaller.into_iter().find_map(|(layers, heads, width)| {
            let changed = Config {
                n_layer: layers.try_into().ok()?,
                n_head: heads.try_into().ok()?,
                n_embd: width.try_into().ok()?,
                ..self.0.config.clone()
            };
            let option = format!("--n_layer={layers} --n_head={heads} --n_embd={width}");
            self.fix(option, &changed)
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
        Some(Fix { option: format!("--vram_budget={mib}MiB"), predicted_bytes })
    }

    /// Returns the largest count below `end` whose configuration fits.
    fn largest(&self, end: u32, with_count: &dyn Fn(u32) -> Option<Config>) -> Option<u32> {
        let counts: Vec<u32> = (1..end).collect();
        // Memory grows with the count, so the counts that fit come first.
        let fits = |&count: &u32| {
            with_count(count).is_some_and(|changed| self.fastest(&changed).is_some())
        };
        counts[..counts.partition_point(fits)].last().copied()
    }

    fn fix(&self, option: String, changed: &Config) -> Option<Fix> {
        let predicted_bytes = self.fastest(changed)?.predicted_bytes;
        Some(Fix { option, predicted_bytes })
    }

    fn fastest(&self, config: &Config) -> Option<Forecast> {
        Search { config, ..self.0 }.fastest()
    }
}
