//! Loops over rows in vectors, where a compiler's own loop would spend its time on checks of indices
//! or on the elements beyond the last whole vector.

use pulp::Simd;

use crate::ops::shared::{LN_2_HIGH, LN_2_LOW};

/// Elements of the widest vector of any CPU.
pub(in crate::ops) const WIDEST: usize = 16;

/// Adding this to an f32 rounds it to the nearest integer and leaves that in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `e^x` to about 1 unit in the last place (range reduction and polynomial of Cephes' `expf`), clamped to the
/// range of normal numbers. NaN stays NaN.
#[inline(always)]
pub(in crate::ops) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    const POLYNOMIAL: [f32; 5] =
        [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let splat = |value| simd.splat_f32s(value);
    // The second operand is the result where one is NaN.
    let x = simd.min_f32s(splat(88.0), simd.max_f32s(splat(-87.3), x));
    let shifted = simd.mul_add_e_f32s(x, splat(std::f32::consts::LOG2_E), splat(ROUND));
    let n = simd.sub_f32s(shifted, splat(ROUND));
    let r = simd.mul_add_e_f32s(n, splat(-LN_2_HIGH), x);
    let r = simd.mul_add_e_f32s(n, splat(-LN_2_LOW), r);
    let mut p = splat(1.987_569_1e-4);
    for coefficient in POLYNOMIAL {
        p = simd.mul_add_e_f32s(p, r, splat(coefficient));
    }
    let p = simd.add_f32s(simd.mul_add_e_f32s(simd.mul_f32s(p, r), r, r), splat(1.0));
    let exponent = simd.sub_u32s(
        simd.transmute_u32s_f32s(shifted),
        simd.splat_u32s(ROUND.to_bits().wrapping_sub(127)),
    );
    let factor = simd.wrapping_dyn_shl_u32s(exponent, simd.splat_u32s(23));
    simd.mul_f32s(p, simd.transmute_f32s_u32s(factor))
}

/// Returns the vectors that hold the first `len` elements of a row, which has whole ones.
#[inline(always)]
pub(in crate::ops) fn vectors<S: Simd>(row: &mut [f32], len: usize) -> &mut [S::f32s] {
    &mut S::as_mut_simd_f32s(row).0[..len.div_ceil(S::F32_LANES)]
}

/// Returns the sum of a term of the elements at the same place of all rows, as long as the first row.
#[inline(always)]
pub(in crate::ops) fn sum<S: Simd, const N: usize>(
    simd: S,
    rows: [&[f32]; N],
    term: impl Fn([S::f32s; N]) -> S::f32s,
) -> f32 {
    let len = rows[0].len();
    let rows = rows.map(|row| &row[..len]);
    let (whole, rest) = (rows.map(|row| S::as_simd_f32s(row).0), len % S::F32_LANES);
    let mut sums = [simd.splat_f32s(0.0); 2];
    for at in 0..len / S::F32_LANES {
        // Two sums: additions to one would wait for each other.
        sums[at % 2] = simd.add_f32s(sums[at % 2], term(whole.map(|row| row[at])));
    }
    let mut sum = simd.add_f32s(sums[0], sums[1]);
    if rest > 0 {
        let mut terms = [0.0; WIDEST];
        let last = term(rows.map(|row| simd.partial_load_f32s(&row[len - rest..])));
        simd.partial_store_f32s(&mut terms[..rest], last);
        sum = simd.add_f32s(sum, simd.partial_load_f32s(&terms[..S::F32_LANES]));
    }
    simd.reduce_sum_f32s(sum)
}

/// Sets each element to a function of itself and of the elements at the same place of all rows.
#[inline(always)]
pub(in crate::ops) fn map<S: Simd, const N: usize>(
    simd: S,
    out: &mut [f32],
    rows: [&[f32]; N],
    f: impl Fn(S::f32s, [S::f32s; N]) -> S::f32s,
) {
    let len = out.len();
    let rows = rows.map(|row| &row[..len]);
    let (whole, rest) = S::as_mut_simd_f32s(out);
    let from = len - rest.len();
    let vectors = rows.map(|row| S::as_simd_f32s(row).0);
    for (at, out) in whole.iter_mut().enumerate() {
        *out = f(*out, vectors.map(|row| row[at]));
    }
    if !rest.is_empty() {
        let value =
            f(simd.partial_load_f32s(rest), rows.map(|row| simd.partial_load_f32s(&row[from..])));
        simd.partial_store_f32s(rest, value);
    }
}

/// Replaces each element `x` by `e^(x - shift)` and returns the sum. Not a [`map`]: a closure as long as
/// `exp` is not inlined, so it would be compiled for the oldest instruction set.
#[inline(always)]
pub(in crate::ops) fn exponentials<S: Simd>(simd: S, row: &mut [f32], shift: f32) -> f32 {
    let shift = simd.splat_f32s(shift);
    let mut sum = simd.splat_f32s(0.0);
    let (whole, rest) = S::as_mut_simd_f32s(row);
    for x in whole {
        *x = exp(simd, simd.sub_f32s(*x, shift));
        sum = simd.add_f32s(sum, *x);
    }
    if !rest.is_empty() {
        let last = exp(simd, simd.sub_f32s(simd.partial_load_f32s(rest), shift));
        simd.partial_store_f32s(rest, last);
        // Beyond the row, this loads zeros.
        sum = simd.add_f32s(sum, simd.partial_load_f32s(rest));
    }
    simd.reduce_sum_f32s(sum)
}

/// Returns the largest element; NaN or any element if one is NaN.
#[inline(always)]
pub(in crate::ops) fn max<S: Simd>(simd: S, row: &[f32]) -> f32 {
    let (whole, rest) = S::as_simd_f32s(row);
    let mut max = simd.splat_f32s(f32::NEG_INFINITY);
    for x in whole {
        max = simd.max_f32s(max, *x);
    }
    rest.iter().copied().fold(simd.reduce_max_f32s(max), f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::shared::cpu::vectorised;

    vectorised! {
        fn exponentials<S>(simd; values: &mut [f32]) {
            for x in S::as_mut_simd_f32s(values).0 {
                *x = exp(simd, *x);
            }
        }
    }

    #[test]
    fn exp_matches_the_standard_library() {
        let x: Vec<f32> = (-8700..8788).map(|i| i as f32 * 0.01 + 0.003).collect();
        let mut y = x.clone();
        exponentials(&mut y);
        for (x, y) in x.iter().zip(y) {
            let relative = (f64::from(y) / f64::from(*x).exp() - 1.0).abs();
            assert!(relative < 3e-7, "exp({x}) is off by {relative}");
        }
        let mut special = [f32::NAN, -1e30].repeat(8);
        exponentials(&mut special);
        assert!(special[0].is_nan() && special[1] < 1e-37, "{special:?}");
    }
}
