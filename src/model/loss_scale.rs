//! The state of loss scaling (Micikevicius et al. 2018, arXiv:1710.03740). It lives on the device,
//! where `ops::update_control` advances it, and is read for log lines and checkpoints.

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::values;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor of the loss's gradient.
    pub scale: f64,
    /// Updates made since the scale last changed, or an update was skipped.
    pub clean: u64,
    /// Updates skipped in the run, because their gradients were not finite.
    pub skipped: u64,
    /// Updates skipped since one was made.
    pub skipped_in_a_row: u64,
}

/// The scale that a run starts with.
///
/// float16 ends at 65504. The gradient of a logit is at most the scale, because the scaled loss is a
/// sum over tokens; PyTorch's 65536 is meant for a mean over them, which makes gradients smaller by
/// their number. The layer norms of an untrained GPT-2 divide by the small deviation of its residual
/// stream, whose gradient has elements of 2 to 11 times the scale in models of usual shape, and of
/// 128 to 256 times the scale at 48 layers of width 48. So the first updates of a run that starts here
/// are not skipped even there, and the gradients of probabilities down to 1e-9 do not underflow.
const START: f64 = 256.0;

/// Updates skipped in a row after which a run ends. A scale of 2^15 is at 1 after 15, and whatever
/// is not finite then is not the fault of the scale.
const MAX_SKIPPED_IN_A_ROW: u64 = 50;

impl LossScale {
    /// The state before the first update.
    pub fn new(scales_loss: bool) -> Self {
        let scale = if scales_loss { START } else { 1.0 };
        Self { scale, clean: 0, skipped: 0, skipped_in_a_row: 0 }
    }

    /// Returns true if the run has diverged: too many updates in a row were skipped.
    pub(crate) fn has_failed(&self) -> bool {
        self.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW
    }

    /// Returns the state as `[4]` on `device`.
    pub(crate) fn upload(&self, device: &Device) -> Tensor<1> {
        let counts = [self.clean, self.skipped, self.skipped_in_a_row].map(|count| count as f32);
        Tensor::from_data([self.scale as f32, counts[0], counts[1], counts[2]], device)
    }

    /// Reads the state from its device.
    pub(crate) async fn read(state: Tensor<1>) -> Self {
        let state: Vec<f32> = values(state).await.iter().collect();
        let value = |index: usize| state.get(index).copied().map_or(0.0, f64::from);
        let count = |index: usize| value(index) as u64;
        Self { scale: value(0), clean: count(1), skipped: count(2), skipped_in_a_row: count(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_after_more_than_50_skipped_updates_in_a_row() {
        let skipped = |count| LossScale { skipped_in_a_row: count, ..LossScale::new(true) };
        assert!(!skipped(50).has_failed());
        assert!(skipped(51).has_failed());
    }
}
