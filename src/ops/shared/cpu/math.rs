//! GELU and SiLU and their derivatives, in vectors.

use std::f32::consts::FRAC_1_SQRT_2;

use pulp::Simd;

use super::vector::exp;
use crate::config::Gelu;
use crate::ops::shared::{NORMAL_PEAK, TANH_CUBIC, TANH_SCALE};

/// Returns GELU and its derivative. If the caller uses only one, the other is not computed.
#[inline(always)]
pub(in crate::ops) fn gelu<S: Simd>(simd: S, x: S::f32s, form: Gelu) -> (S::f32s, S::f32s) {
    match form {
        Gelu::Erf => gelu_erf(simd, x),
        Gelu::Tanh => gelu_tanh(simd, x),
    }
}

/// The exact form `x Phi(x)`, and `Phi(x) + x phi(x)`. The error function is good to 1.5e-7 (Abramowitz and
/// Stegun 7.1.26).
#[inline(always)]
fn gelu_erf<S: Simd>(simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
    const POLYNOMIAL: [f32; 4] = [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let splat = |value| simd.splat_f32s(value);
    let e = exp(simd, simd.mul_f32s(simd.mul_f32s(x, x), splat(-0.5)));
    let scaled =
        simd.mul_add_e_f32s(simd.abs_f32s(x), splat(0.327_591_1 * FRAC_1_SQRT_2), splat(1.0));
    let t = simd.div_f32s(splat(1.0), scaled);
    let mut p = splat(1.061_405_4);
    for coefficient in POLYNOMIAL {
        p = simd.mul_add_e_f32s(p, t, splat(coefficient));
    }
    // Half of the error function of |x| / sqrt(2).
    let minus_half_t = simd.mul_f32s(t, splat(-0.5));
    let half = simd.mul_add_e_f32s(simd.mul_f32s(p, minus_half_t), e, splat(0.5));
    let half = simd.or_f32s(half, simd.and_f32s(x, splat(-0.0)));
    let phi = simd.add_f32s(half, splat(0.5));
    let slope = simd.mul_add_e_f32s(simd.mul_f32s(x, splat(NORMAL_PEAK)), e, phi);
    (simd.mul_f32s(x, phi), slope)
}

/// The tanh form of OpenAI's GPT-2, as `x sigmoid(2 u)`: `(1 + tanh(u)) / 2` is the logistic function of
/// `2 u`, and that does not cancel. With `s = sigmoid(2 u)`, the derivative is `s + 2 x s (1 - s) u'`.
#[inline(always)]
fn gelu_tanh<S: Simd>(simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
    const LINEAR: f32 = 2.0 * TANH_SCALE;
    const CUBIC: f32 = LINEAR * TANH_CUBIC;
    let splat = |value| simd.splat_f32s(value);
    let square = simd.mul_f32s(x, x);
    let minus_factor = simd.mul_add_e_f32s(square, splat(-CUBIC), splat(-LINEAR));
    let e = exp(simd, simd.mul_f32s(x, minus_factor));
    let s = simd.div_f32s(splat(1.0), simd.add_f32s(e, splat(1.0)));
    let y = simd.mul_f32s(x, s);
    let inner = simd.mul_add_e_f32s(square, splat(3.0 * CUBIC), splat(LINEAR));
    let rest = simd.mul_f32s(simd.mul_f32s(e, s), inner);
    (y, simd.mul_add_e_f32s(y, rest, s))
}

/// Returns `silu(x) = x s` with `s` the logistic function, and its derivative `s + x s (1 - s)`.
#[inline(always)]
pub(in crate::ops) fn silu<S: Simd>(simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
    let e = exp(simd, simd.neg_f32s(x));
    let one = simd.splat_f32s(1.0);
    let s = simd.div_f32s(one, simd.add_f32s(e, one));
    let y = simd.mul_f32s(x, s);
    // 1 - s is e s, which does not cancel.
    (y, simd.mul_add_e_f32s(y, simd.mul_f32s(e, s), s))
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
    use crate::ops::shared::cpu::vectorised;

    vectorised! {
        /// Of SiLU, if there is no form of GELU.
        fn of_each<S>(simd; x: &mut [f32], slopes: &mut [f32], form: Option<Gelu>) {
            let slopes = S::as_mut_simd_f32s(slopes).0;
            for (x, slope) in S::as_mut_simd_f32s(x).0.iter_mut().zip(slopes) {
                (*x, *slope) = match form {
                    Some(form) => gelu(simd, *x, form),
                    None => silu(simd, *x),
                };
            }
        }
    }

    #[test]
    fn activations_and_their_derivatives_match_libm_in_f64() {
        for form in [Some(Gelu::Erf), Some(Gelu::Tanh), None] {
            let x: Vec<f32> = (-800..800).map(|i| i as f32 * 0.01).collect();
            let (mut y, mut slopes) = (x.clone(), vec![0.0; x.len()]);
            of_each(&mut y, &mut slopes, form);
            for ((x, y), slope) in x.into_iter().map(f64::from).zip(y).zip(slopes) {
                let phi = |x: f64| 0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2));
                let u = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                let want = |x: f64| match form {
                    Some(Gelu::Erf) => x * phi(x),
                    Some(Gelu::Tanh) => 0.5 * x * (1.0 + u(x).tanh()),
                    None => x / (1.0 + (-x).exp()),
                };
                let want_slope = (want(x + 1e-6) - want(x - 1e-6)) / 2e-6;
                for (got, want) in [(y, want(x)), (slope, want_slope)] {
                    let error = (f64::from(got) - want).abs();
                    assert!(error < 1e-6 * want.abs().max(1.0), "{form:?}({x}) is off by {error}");
                }
            }
        }
    }
}
