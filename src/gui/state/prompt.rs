//! A prompt for the shown run or model, and the options of the text.

use std::path::PathBuf;

use crate::config::InitFrom;
use crate::protocol::{Progress, RunPhase, Sample};

#[derive(Debug, Default)]
pub struct PromptState {
    pub text: String,
    pub options: TextOptions,
    /// The text that is being generated while the run does not train, as far as it goes.
    pub writing: Option<Sample>,
    /// The number of samples and log lines that the run had when text was requested from it during
    /// training. It answers with one of the two.
    pub requested: Option<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextOptions {
    /// The divisor of the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens; 0 draws from all.
    pub top_k: u32,
    pub tokens: u32,
    /// True to get the probability of each token.
    pub probabilities: bool,
    /// True to ask the model that the run began with, too.
    pub before: bool,
}

impl Default for TextOptions {
    /// The options of a run's own samples, with as many tokens as fill a screen.
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 200, tokens: 300, probabilities: false, before: false }
    }
}

/// Returns the model that a run began with.
pub fn model_before(progress: &Progress) -> Option<PathBuf> {
    match &progress.config.as_ref()?.init_from {
        InitFrom::Path(model) => Some(model.into()),
        InitFrom::Scratch | InitFrom::Resume => None,
    }
}

impl PromptState {
    /// Returns why no text can be generated now.
    pub fn obstacle(&self, progress: &Progress) -> Option<&'static str> {
        match progress.state {
            RunPhase::Starting | RunPhase::Recovering => Some("The run is starting."),
            RunPhase::Waiting(_) => Some("The run is waiting."),
            RunPhase::Running | RunPhase::Paused => {
                self.requested.map(|_| "The run is generating a text.")
            }
            _ if progress.run.is_none() => Some("Choose a run on the left, or open a model."),
            _ if progress.has_ended() && progress.checkpoints.is_empty() => {
                Some("This run has no checkpoint to generate from.")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, SavedCheckpoint, StopReason};

    #[test]
    fn a_text_needs_a_model() {
        let state = PromptState::default();
        let mut progress = Progress::default();
        assert_eq!(state.obstacle(&progress), Some("Choose a run on the left, or open a model."));
        progress.run = Some("models/gpt2".into());
        assert_eq!(state.obstacle(&progress), None);
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert!(state.obstacle(&progress).unwrap().contains("no checkpoint"));
        let path = "out/a/checkpoints/00000010".into();
        progress.apply(&Event::Checkpoint(SavedCheckpoint { iter: 10, path, best: true }));
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(state.obstacle(&progress), None);
        progress.starting();
        assert_eq!(state.obstacle(&progress), Some("The run is starting."));
    }
}
