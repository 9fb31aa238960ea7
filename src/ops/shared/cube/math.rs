//! Elementary functions composed of instructions that NVIDIA GPUs have.
//!
//! In PTX, cubecl's own `exp`, `ln` and `Erf` are calls of libdevice, a file of the CUDA toolkit:
//! with the driver alone, no kernel that calls one of them compiles. `sqrt` is an instruction.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::*;

use crate::ops::shared::{LN_2_HIGH, LN_2_LOW};

/// Below every score, and finite: infinity minus infinity is NaN.
pub(in crate::ops) const LEAST: f32 = -3.0e38;
/// Below this, `exp` is 0: its value would be subnormal, which some devices round to 0 anyway.
const EXP_LEAST: f32 = -87.3;
/// From here on the power of two stays constant and only the series grows.
const EXP_MOST: f32 = 88.0;

/// exp(r) for |r| <= ln 2 / 2 to 1e-8: 1 + r and these times r^2 to r^6.
const EXP_SERIES: [f32; 5] = [0.4999999, 0.1666642, 0.041668225, 0.008374816, 0.0013836846];

/// (ln(1 + f) - f + f^2 / 2) / f^3 between the square roots of 1/2 and 2, from f^0 to f^7.
const LN_SERIES: [f32; 8] = [
    0.3333333,
    -0.25000304,
    0.20001201,
    -0.16641581,
    0.14209945,
    -0.12989277,
    0.12655699,
    -0.079742186,
];

/// e^x for x up to 88, to a unit in the last place; NaN stays NaN.
#[cube]
pub(in crate::ops) fn exp(x: f32) -> f32 {
    let bounded = clamp(x, EXP_LEAST, EXP_MOST);
    let exponent = (bounded * comptime!(std::f32::consts::LOG2_E)).round();
    let r = fma(-exponent, LN_2_HIGH, x);
    let r = fma(-exponent, LN_2_LOW, r);
    let mut tail = comptime!(EXP_SERIES[4]).runtime();
    #[unroll]
    for i in 0..4 {
        tail = fma(tail, r, comptime!(EXP_SERIES[3 - i]));
    }
    let series = 1.0f32 + fma(r * r, tail, r);
    let power = f32::reinterpret(u32::cast_from(i32::cast_from(exponent) + 127i32) << 23u32);
    select(x < EXP_LEAST, 0.0f32, series * power)
}

/// Returns the natural logarithm of a positive, finite, normal number.
#[cube]
pub(in crate::ops) fn ln(x: f32) -> f32 {
    let bits = u32::reinterpret(x);
    let exponent = i32::cast_from(bits >> 23u32) - 127i32;
    let mantissa = f32::reinterpret((bits & 0x007f_ffffu32) | 0x3f80_0000u32);
    let large = mantissa > comptime!(std::f32::consts::SQRT_2);
    let f = select(large, mantissa * 0.5f32, mantissa) - 1.0f32;
    let exponent = f32::cast_from(select(large, exponent + 1i32, exponent));
    let mut tail = comptime!(LN_SERIES[7]).runtime();
    #[unroll]
    for i in 0..7 {
        tail = fma(tail, f, comptime!(LN_SERIES[6 - i]));
    }
    let square = f * f;
    let of_mantissa = fma(square * f, tail, fma(square, -0.5f32, f));
    fma(exponent, LN_2_HIGH, fma(exponent, LN_2_LOW, of_mantissa))
}

/// Returns the error function, to 1.5e-7: Abramowitz and Stegun, 7.1.26.
#[cube]
pub(in crate::ops) fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0f32 / (1.0f32 + 0.3275911f32 * magnitude);
    let mut series = 1.0614054f32.runtime();
    series = fma(series, t, -1.453152f32);
    series = fma(series, t, 1.4214137f32);
    series = fma(series, t, -0.28449674f32);
    series = fma(series, t, 0.2548296f32);
    let positive = 1.0f32 - series * t * exp(-magnitude * magnitude);
    select(x < 0.0f32, -positive, positive)
}
