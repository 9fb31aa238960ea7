//! Dropout (Srivastava et al. 2014) with a mask that is a hash of an element's place, not the state of a generator.
//!
//! An element is kept or dropped by (seed, step, site, sequence, index in the sequence) alone. So
//! the backward pass recomputes the mask instead of saving it, and a step does not depend on how
//! its sequences are split into micro-batches.

use burn::tensor::Tensor;

use super::shared::dispatch::op;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub(super) mod cube;
pub(super) mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// A mask: everything that decides it but the sequence and the index within the sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of elements that is zeroed, in `[0, 1)`.
    rate: f32,
    key: [u32; 2],
    /// The index of the micro-batch's first sequence in the step's global batch.
    first_sequence: u32,
}

impl Dropout {
    /// Returns the mask of one step at `site`, a number for each place in the model with dropout.
    pub fn new(rate: f32, seed: u64, step: u64, site: u32, first_sequence: u32) -> Self {
        let mut key = splitmix64(seed);
        key = splitmix64(key ^ step);
        key = splitmix64(key ^ u64::from(site));
        Self { rate, key: [key as u32, (key >> 32) as u32], first_sequence }
    }

    /// Returns the factor of a kept element, which preserves the mean.
    pub(super) fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }

    /// Returns what kernels make the mask of: the key, the first sequence and the threshold.
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    pub(super) fn words(&self) -> [u32; 4] {
        let [key0, key1] = self.key;
        [key0, key1, self.first_sequence, self.threshold()]
    }

    /// Returns the 32-bit key of the micro-batch's `sequence`-th sequence.
    #[inline(always)]
    pub(super) fn sequence_key(&self, sequence: usize) -> u32 {
        let sequence = self.first_sequence.wrapping_add(sequence as u32);
        mix32(mix32(sequence ^ self.key[0]) ^ self.key[1])
    }

    /// Returns true if element `index` of the sequence with this key is kept.
    #[cfg(not(target_arch = "wasm32"))]
    #[inline(always)]
    pub(super) fn keeps(&self, sequence_key: u32, index: u32) -> bool {
        mix32(mix32(index ^ sequence_key) ^ self.key[1]) >> 8 >= self.threshold()
    }

    /// Returns the limit below which the upper 24 bits of a hash drop the element: 24 bits, so that the
    /// comparison is the same in signed and in unsigned integers.
    #[inline(always)]
    fn threshold(&self) -> u32 {
        (f64::from(self.rate) * f64::from(1u32 << 24)) as u32
    }
}

op! {
    /// Drops out elements of `x` `[n, c]` and adds the residual, if any: `dropout(x) + residual`. `n`
    /// is a multiple of `time`.
    ///
    /// The mask is linear, so the backward pass is the same mask on the gradient, without a residual.
    pub fn dropout(
        x: Tensor<2>,
        residual: Option<Tensor<2>>;
        time: usize,
        dropout: Dropout,
    ) -> Tensor<2> = forward(DropoutInputs);
}

/// Mixes 64 bits for keys on the host: SplitMix64 (Steele, Lea and Flood 2014).
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Multipliers of the 32-bit finaliser found by Wellons' hash prospector ("lowbias32").
const MIX: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

#[inline(always)]
fn mix32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(MIX[0]);
    x = (x ^ (x >> 15)).wrapping_mul(MIX[1]);
    x ^ (x >> 16)
}
