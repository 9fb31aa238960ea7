//! The operations that carry the model, one folder each.
//!
//! An op is a pair of plain functions: the forward pass, which also returns what the backward pass
//! needs, and the hand-written backward pass. No graph is recorded. docs/architecture.md lists the files
//! of an op, which have functions of the same name and arguments. `shared` holds what several ops use:
//! `op!`, which chooses the implementation, launches, matrix products and reductions.
//!
//! All activations are `[n, c]` with `n = batch * time`: a batched product would make burn
//! materialise `[batch, in, out]` for every weight gradient.

#![allow(clippy::too_many_arguments, reason = "one for each operand, buffer and size")]

mod activation;
mod adamw;
mod attention;
mod dequantize;
mod dropout;
mod embed;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod mode;
mod rotary;
mod self_test;
mod shared;
mod softmax;
mod update_control;

pub use crate::protocol::{Activation, Implementation, KernelError, KernelShapes};
pub use activation::{activate, activate_backward};
pub use adamw::{AdamW, Moments, UpdatedWeight, WeightUpdate, adamw};
pub use attention::{AttentionShape, attention, attention_backward};
pub use dequantize::dequantize;
pub use dropout::{Dropout, dropout};
pub use embed::{embed, embed_backward, embed_tokens_backward};
pub use layer_norm::{
    LayerNormStatistics, NormForm, layer_norm, layer_norm_backward, layer_norm_weight_gradients,
};
pub use linear::{
    FrozenGradients, LinearGradients, frozen_linear_backward, linear, linear_backward,
};
pub use linear_cross_entropy::{
    CrossEntropy, HeadGradients, IGNORED, linear_cross_entropy, linear_cross_entropy_gradients,
};
pub use mode::OpsMode;
pub use rotary::{HeadNorms, RotaryShape, rotary, rotary_backward};
pub use self_test::{KernelCheck, SelfTest};
pub use softmax::softmax;
pub use update_control::{UpdateControl, UpdateSettings, update_control};

/// Every kernel variant that wgpt launches, at a few sizes each.
#[cfg(feature = "wgpu")]
pub fn kernel_variants() -> Vec<crate::gpu::kernel::Spec> {
    use shared::wgsl::{Tier, gemm};
    let mut specs = Vec::new();
    for tier in [Tier::Wide, Tier::Narrow(4), Tier::Narrow(8)] {
        specs.extend(gemm::variants(tier));
        specs.extend(attention::wgsl::variants(tier));
        specs.extend(linear_cross_entropy::wgsl::variants(tier));
        specs.extend(layer_norm::wgsl::variants(tier));
    }
    specs.extend(gemm::cooperative_variants());
    specs.extend(attention::wgsl::cooperative_variants());
    specs.extend(embed::wgsl::variants());
    specs.extend(activation::wgsl::variants());
    specs.extend(dequantize::wgsl::variants());
    specs.extend(dropout::wgsl::variants());
    specs.extend(rotary::wgsl::variants());
    specs.extend(update_control::wgsl::variants());
    specs.extend(adamw::wgsl::variants());
    #[cfg(not(target_arch = "wasm32"))]
    specs.extend(crate::gpu::probe_variants());
    specs
}
