//! Elementary functions in the form that compilers vectorise: no branches, no calls.

use crate::ops::shared::{LN_2_HIGH, LN_2_LOW, NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

/// Adding this to an f32 rounds it to the nearest integer and leaves that in the low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `e^x` to about 1 unit in the last place (range reduction and polynomial of Cephes' `expf`),
/// clamped to the range of normal numbers. NaN stays NaN.
#[inline(always)]
pub(in crate::ops) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.3, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let p = p * r * r + r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    p * f32::from_bits(exponent.wrapping_add(127) << 23)
}

/// Returns the error function to 1.5e-7 (Abramowitz and Stegun 7.1.26); `exp_minus_square` is
/// `e^(-x^2)`, which callers need anyway.
#[inline(always)]
fn erf(x: f32, exp_minus_square: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let mut p = 1.061_405_4;
    p = p * t - 1.453_152;
    p = p * t + 1.421_413_7;
    p = p * t - 0.284_496_74;
    p = p * t + 0.254_829_6;
    (1.0 - p * t * exp_minus_square).copysign(x)
}

/// GELU, exact: `x Phi(x)`.
#[inline(always)]
pub(in crate::ops) fn gelu_erf(x: f32) -> f32 {
    let e = exp(-0.5 * x * x);
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, e))
}

/// Returns the exact GELU and its derivative `Phi(x) + x phi(x)`.
#[inline(always)]
pub(in crate::ops) fn gelu_erf_and_derivative(x: f32) -> (f32, f32) {
    let e = exp(-0.5 * x * x);
    let phi = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, e));
    (x * phi, phi + x * NORMAL_PEAK * e)
}

/// GELU in the tanh form of OpenAI's GPT-2, as `x sigmoid(2 u)`: `(1 + tanh(u)) / 2` is the
/// logistic function of `2 u`, and that does not cancel.
#[inline(always)]
pub(in crate::ops) fn gelu_tanh(x: f32) -> f32 {
    let u = x * (TANH_SCALE + TANH_SCALE * TANH_CUBIC * x * x);
    x / (1.0 + exp(-2.0 * u))
}

/// Returns the tanh form and its derivative: with `s = sigmoid(2 u)`, `s + 2 x s (1 - s) u'`.
#[inline(always)]
pub(in crate::ops) fn gelu_tanh_and_derivative(x: f32) -> (f32, f32) {
    let square = x * x;
    let u = x * (TANH_SCALE + TANH_SCALE * TANH_CUBIC * square);
    let slope = TANH_SCALE + 3.0 * TANH_SCALE * TANH_CUBIC * square;
    let e = exp(-2.0 * u);
    let s = 1.0 / (1.0 + e);
    (x * s, s + 2.0 * x * s * (e * s) * slope)
}

/// `y += a * x`.
#[inline(always)]
pub(in crate::ops) fn axpy(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_the_standard_library() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01 + 0.003;
            let relative = (f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs();
            assert!(relative < 3e-7, "exp({x}) is off by {relative}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1e30) < 1e-37);
    }

    #[test]
    fn gelu_and_its_derivative_match_libm_in_f64() {
        for i in -800..=800 {
            let x = f64::from(i) * 0.01;
            let phi = 0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2));
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let u = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            let tanh = |x: f64| 0.5 * x * (1.0 + u(x).tanh());
            let slope = (tanh(x + 1e-6) - tanh(x - 1e-6)) / 2e-6;
            for (name, got, want) in [
                ("erf", gelu_erf(x as f32), x * phi),
                ("erf with'", gelu_erf_and_derivative(x as f32).0, x * phi),
                ("erf'", gelu_erf_and_derivative(x as f32).1, phi + x * density),
                ("tanh", gelu_tanh(x as f32), tanh(x)),
                ("tanh with'", gelu_tanh_and_derivative(x as f32).0, tanh(x)),
                ("tanh'", gelu_tanh_and_derivative(x as f32).1, slope),
            ] {
                let error = (f64::from(got) - want).abs();
                assert!(error < 1e-6 * want.abs().max(1.0), "{name}({x}) is off by {error}");
            }
        }
    }
}
