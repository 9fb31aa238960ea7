//! GELU and its derivative in cubecl's language, and the logistic function.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use super::math::{erf, exp};
use crate::ops::shared::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

/// `exp(-2 u)` of the tanh form, `u` bounded where the logistic function of `2 u` is 0 or 1 in f32:
/// the exp of some drivers overflows to NaN.
#[cube]
fn exp_minus_2u(x: f32) -> f32 {
    let u = x * (TANH_SCALE + comptime!(TANH_SCALE * TANH_CUBIC) * x * x);
    exp(clamp(-2.0f32 * u, -80.0f32, 80.0f32))
}

/// Returns the logistic function.
#[cube]
pub(in crate::ops) fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + exp(clamp(-x, -80.0f32, 80.0f32)))
}

/// Returns the normal distribution's share below `x`.
#[cube]
fn normal_share(x: f32) -> f32 {
    0.5f32 * (1.0f32 + erf(x * comptime!(std::f32::consts::FRAC_1_SQRT_2)))
}

/// GELU, exact or in its tanh form.
#[cube]
pub(in crate::ops) fn gelu(x: f32, #[comptime] exact: bool) -> f32 {
    if comptime!(exact) {
        x * normal_share(x)
    } else {
        // (1 + tanh(u)) / 2 is the logistic function of 2 u, which does not cancel.
        x / (1.0f32 + exp_minus_2u(x))
    }
}

/// Returns the derivative of [`gelu`].
#[cube]
pub(in crate::ops) fn gelu_derivative(x: f32, #[comptime] exact: bool) -> f32 {
    if comptime!(exact) {
        normal_share(x) + x * NORMAL_PEAK * exp(-0.5f32 * x * x)
    } else {
        // With s the logistic function of 2 u: s + 2 x s (1 - s) u'.
        let slope = TANH_SCALE + comptime!(3.0 * TANH_SCALE * TANH_CUBIC) * x * x;
        let e = exp_minus_2u(x);
        let s = 1.0f32 / (1.0f32 + e);
        s + 2.0f32 * x * s * (e * s) * slope
    }
}
