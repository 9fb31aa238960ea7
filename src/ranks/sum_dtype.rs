//! The dtype of sums over ranks, and the messages that carry their terms.

use half::f16;

use crate::config::SumDtype;

/// Bytes of a value in either form.
const FULL: usize = 4;
const HALF: usize = 2;

/// Bytes of the scale in front of the values of a message.
const SCALE: usize = 4;

/// The exponent that the scale gives to the largest value, below the one of the largest float16,
/// 65504.
const LARGEST_EXPONENT: i32 = 14;

/// The smallest exponent of a normal f32, and the bits of its fraction.
const MIN_EXPONENT: i32 = -126;
const FRACTION_BITS: u32 = 23;

impl SumDtype {
    /// Returns the most values in a message of `bytes`.
    pub(super) fn values_in(self, bytes: usize) -> usize {
        match self {
            SumDtype::Float32 => bytes / FULL,
            SumDtype::Float16 => (bytes - SCALE) / HALF,
        }
    }

    /// Returns the bytes of a message with this number of values.
    pub(super) fn bytes_of(self, values: usize) -> usize {
        match self {
            SumDtype::Float32 => values * FULL,
            SumDtype::Float16 => SCALE + values * HALF,
        }
    }

    /// Writes values as a message.
    pub(super) fn write(self, values: &[f32], message: &mut [u8]) {
        match self {
            SumDtype::Float32 => {
                for (bytes, value) in message.as_chunks_mut::<FULL>().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
            }
            SumDtype::Float16 => {
                let scale = scale(values);
                let (head, rest) = message.split_at_mut(SCALE);
                head.copy_from_slice(&scale.to_le_bytes());
                let factor = scale.recip();
                for (bytes, value) in rest.as_chunks_mut::<HALF>().0.iter_mut().zip(values) {
                    *bytes = f16::from_f32(value * factor).to_le_bytes();
                }
            }
        }
    }

    /// Calls `take` with each of `values` and the value of a message that belongs to it.
    pub(super) fn read(self, message: &[u8], values: &mut [f32], take: impl Fn(&mut f32, f32)) {
        match self {
            SumDtype::Float32 => {
                for (value, bytes) in values.iter_mut().zip(message.as_chunks::<FULL>().0) {
                    take(value, f32::from_le_bytes(*bytes));
                }
            }
            SumDtype::Float16 => {
                let Some((head, rest)) = message.split_first_chunk::<SCALE>() else { return };
                let scale = f32::from_le_bytes(*head);
                for (value, bytes) in values.iter_mut().zip(rest.as_chunks::<HALF>().0) {
                    take(value, f16::from_le_bytes(*bytes).to_f32() * scale);
                }
            }
        }
    }

    /// Rounds values to what another rank reads of them, in one message.
    pub(super) fn round(self, values: &mut [f32], message: &mut [u8]) {
        if self == SumDtype::Float16 {
            self.write(values, message);
            self.read(message, values, |value, read| *value = read);
        }
    }
}

/// Returns the scale of values in float16, a power of two; NaN if one of them is not finite, so that
/// none that is read is.
///
/// Values that were read have a scale with which they are read again as they are, so that all ranks that
/// pass a sum on have the same. That is why the largest is rounded first: its exponent could grow.
fn scale(values: &[f32]) -> f32 {
    // As integers: NaN is above infinity, which is above all numbers.
    let largest = values.iter().map(|value| value.abs().to_bits()).max().unwrap_or(0);
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return f32::NAN;
    }
    let bits = (largest.to_bits() >> FRACTION_BITS) as i32;
    let exponent = (bits - 127 - LARGEST_EXPONENT).max(MIN_EXPONENT);
    let power = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << FRACTION_BITS);
    let rounded = f16::from_f32(largest * power(exponent).recip()).to_f32();
    let grows = rounded >= power(LARGEST_EXPONENT + 1);
    power(if grows { exponent + 1 } else { exponent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(values: &[f32]) -> Vec<f32> {
        let mut values = values.to_vec();
        let mut message = vec![0; SumDtype::Float16.bytes_of(values.len())];
        SumDtype::Float16.round(&mut values, &mut message);
        values
    }

    #[test]
    fn values_of_any_size_keep_eleven_bits_and_are_stable() {
        for largest in [1e-30, 3e-7, 0.12, 1.0, 32767.9, 65504.0, 1e30, 1e38] {
            let values: Vec<f32> =
                (0..2000).map(|index| largest * (1.0 - index as f32 / 1999.0).powi(3)).collect();
            let read = rounded(&values);
            for (read, value) in read.iter().zip(&values) {
                let allowed = value.abs() / 2048.0 + largest * 1e-9;
                assert!((read - value).abs() <= allowed, "{read} for {value} of {largest}");
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&rounded(&read)), bits(&read), "{largest}");
        }
        // Every fraction near the next power of two.
        for step in 0..4096u32 {
            let largest = f32::from_bits(0x46ff_f000 + step);
            let read = rounded(&[largest, 1.5, 3e-5, -1e-7, 0.0]);
            assert_eq!(rounded(&read), read, "{largest}");
        }
        assert_eq!(rounded(&[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(rounded(&[]), [0.0; 0]);
    }

    #[test]
    fn values_that_are_not_finite_stay_so() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(rounded(&[1.0, bad, 2.0]).iter().all(|value| !value.is_finite()));
        }
    }
}
