//! Dropout (Srivastava et al. 2014) whose mask is a hash of where it falls, not a generator's
//! state.
//!
//! An element is kept or dropped by (seed, step, site, sequence, index in the sequence) alone. So
//! the backward pass recomputes the mask instead of keeping it, and a step does not depend on how
//! its sequences were cut into micro-batches.

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::tensor::{Device, FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{FloatDType, IntDType, Tensor, TensorData};

use super::{OpsMode, Optional, split};

/// Where a mask falls: everything that decides it but the sequence and the index within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share of elements that is zeroed, in `[0, 1)`.
    rate: f32,
    pub(super) key: [u32; 2],
    /// The number, within the step's global batch, of the micro-batch's first sequence.
    pub(super) first_sequence: u32,
}

impl Dropout {
    /// The mask of `site` (a number for each place in the model that drops out) at one step.
    pub fn new(rate: f32, seed: u64, step: u64, site: u32, first_sequence: u32) -> Self {
        let mut key = splitmix64(seed);
        key = splitmix64(key ^ step);
        key = splitmix64(key ^ u64::from(site));
        Self { rate, key: [key as u32, (key >> 32) as u32], first_sequence }
    }

    /// What a kept element is multiplied with, so that the mean stays.
    pub(super) fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }

    /// The 32-bit key of the micro-batch's `sequence`-th sequence.
    #[inline(always)]
    pub(super) fn sequence_key(&self, sequence: usize) -> u32 {
        let sequence = self.first_sequence.wrapping_add(sequence as u32);
        mix32(mix32(sequence ^ self.key[0]) ^ self.key[1])
    }

    /// Whether element `index` of the sequence with this key is kept.
    #[cfg(not(target_arch = "wasm32"))]
    #[inline(always)]
    pub(super) fn keeps(&self, sequence_key: u32, index: u32) -> bool {
        mix32(mix32(index ^ sequence_key) ^ self.key[1]) >> 8 >= self.threshold()
    }

    /// A hash whose upper 24 bits are below this is dropped: 24 bits, so that the comparison is
    /// the same in signed and in unsigned integers.
    #[inline(always)]
    pub(super) fn threshold(&self) -> u32 {
        (f64::from(self.rate) * f64::from(1u32 << 24)) as u32
    }

    /// The factors `0` or `1 / (1 - rate)` of the elements `index` `[1, len]` of each of `batch`
    /// sequences, as `[batch, len]`, by integer tensor ops.
    pub(super) fn reference_mask<B: Backend>(
        &self,
        batch: usize,
        index: IntTensor<B>,
        device: &Device<B>,
    ) -> FloatTensor<B> {
        let keys: Vec<i32> = (0..batch).map(|s| self.sequence_key(s) as i32).collect();
        let keys = B::int_from_data(TensorData::new(keys, [batch, 1]), device);
        let hash = mix32_tensor::<B>(B::bitwise_xor(index, keys));
        let hash = mix32_tensor::<B>(B::bitwise_xor_scalar(hash, (self.key[1] as i32).into()));
        let hash = logical_shift::<B>(hash, 8);
        // 1 where hash >= threshold, else 0.
        let kept = B::int_sub_scalar(hash, (self.threshold() as i32 - 1).into());
        let kept = B::int_clamp(kept, 0.into(), 1.into());
        let kept = B::int_into_float(kept, FloatDType::F32);
        B::float_mul_scalar(kept, self.scale().into())
    }
}

/// `y = dropout(x) + residual`.
#[backend_extension(
    Cube: cfg(any(feature = "wgpu", feature = "cuda")),
    Flex: cfg(not(target_arch = "wasm32")),
    Autodiff
)]
pub trait DropoutAdd: Backend {
    /// The differentiable op: `x` and `residual` are `[n, c]`, the rows of `n / time` sequences.
    fn dropout(
        x: FloatTensor<Self>,
        #[extension_type] residual: Optional<Self>,
        time: usize,
        dropout: Dropout,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let _ = mode;
        reference::<Self>(x, residual.into_option(), time, &dropout)
    }
}

/// Drops out elements of `x` `[n, c]` and adds the residual, if any. `n` is a multiple of `time`.
pub fn dropout(
    x: Tensor<2>,
    residual: Option<Tensor<2>>,
    time: usize,
    dropout: Dropout,
    mode: OpsMode,
) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::dropout(
        x.into_dispatch(),
        residual.map(Tensor::into_dispatch).into(),
        time,
        dropout,
        mode,
    ))
}

#[derive(Debug)]
struct DropoutBackward;

impl<B: DropoutAdd> Backward<B, 2> for DropoutBackward {
    type State = (usize, Dropout, OpsMode);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (time, dropout, mode) = ops.state;
        let dy = grads.consume::<B>(&ops.node);
        let [x, residual] = ops.parents;
        if let Some(residual) = residual {
            grads.register::<B>(residual.id, dy.clone());
        }
        if let Some(x) = x {
            // The mask is linear: its backward pass is the same mask on the gradient.
            grads.register::<B>(x.id, B::dropout(dy, Optional::None, time, dropout, mode));
        }
    }
}

impl<B: DropoutAdd, C: CheckpointStrategy> DropoutAdd for Autodiff<B, C> {
    fn dropout(
        x: FloatTensor<Self>,
        residual: Optional<Self>,
        time: usize,
        dropout: Dropout,
        mode: OpsMode,
    ) -> FloatTensor<Self> {
        let (residual, residual_node) = split::<B, C>(residual, &x);
        let nodes = [x.node(), residual_node];
        let y = B::dropout(x.into_primitive(), residual, time, dropout, mode);
        match DropoutBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((time, dropout, mode), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

pub(super) fn reference<B: Backend>(
    x: FloatTensor<B>,
    residual: Option<FloatTensor<B>>,
    time: usize,
    dropout: &Dropout,
) -> FloatTensor<B> {
    let shape = super::shape::<B>(&x);
    let [n, c] = shape.dims();
    let device = super::device::<B>(&x);
    let index = B::int_arange(0..(time * c) as i64, &device, IntDType::I32);
    let index = B::int_reshape(index, [1, time * c].into());
    let mask = dropout.reference_mask::<B>(n / time, index, &device);
    let y = B::float_mul(x, B::float_reshape(mask, shape));
    match residual {
        Some(residual) => B::float_add(y, residual),
        None => y,
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood 2014), for keys on the host.
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Multipliers of the 32-bit finaliser found by Wellons' hash prospector ("lowbias32").
pub(super) const MIX: [u32; 2] = [0x7feb_352d, 0x846c_a68b];

#[inline(always)]
fn mix32(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(MIX[0]);
    x = (x ^ (x >> 15)).wrapping_mul(MIX[1]);
    x ^ (x >> 16)
}

fn mix32_tensor<B: Backend>(x: IntTensor<B>) -> IntTensor<B> {
    let fold = |x: IntTensor<B>, by| B::bitwise_xor(x.clone(), logical_shift::<B>(x, by));
    let x = B::int_mul_scalar(fold(x, 16), (MIX[0] as i32).into());
    let x = B::int_mul_scalar(fold(x, 15), (MIX[1] as i32).into());
    fold(x, 16)
}

/// Tensor ops shift i32 with the sign; the copies of the sign bit are masked off.
fn logical_shift<B: Backend>(x: IntTensor<B>, by: u32) -> IntTensor<B> {
    let shifted = B::bitwise_right_shift_scalar(x, (by as i32).into());
    B::bitwise_and_scalar(shifted, ((u32::MAX >> by) as i32).into())
}
