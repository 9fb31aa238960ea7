//! Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of the queries and keys in packed qkv, in
//! the half convention of Hugging Face: with `angle = position * theta^(-2 i / size)`, which may be scaled, elements `i` and
//! `i + size / 2` of a head become `x_i cos - x_j sin` and `x_j cos + x_i sin`. Qwen3 normalises each head
//! before that: `x * weight / sqrt(mean(x^2) + eps)`.
//!
//! It is a separate pass over q and k, in place. Fused into attention, each tile of queries would rotate
//! the keys before it again; docs/kernels.md counts the bytes.

use std::f64::consts::TAU;

use burn::tensor::Tensor;

use super::attention::MAX_HEAD;
use super::shared::dispatch::{op, tensors};
use crate::config::RopeScaling;

#[cfg(not(target_arch = "wasm32"))]
mod cpu;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube;
mod reference;
#[cfg(feature = "wgpu")]
pub(super) mod wgsl;

/// The dimensions of packed `qkv` `[n, (heads + 2 kv_heads) size]` and its rotation. The size is even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryShape {
    /// The positions of a sequence; divides `n`.
    pub time: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// The base of the angles.
    pub theta: f32,
    pub scaling: RopeScaling,
    /// Added to the mean square of a head, if heads are normalised.
    pub eps: f32,
}

impl RotaryShape {
    /// Returns the size of a head in rows of `width` elements.
    fn size(&self, width: usize) -> usize {
        width / (self.heads + 2 * self.kv_heads)
    }

    /// Returns the heads of a row that are rotated, which come first.
    fn rotated(&self) -> usize {
        self.heads + self.kv_heads
    }

    /// Returns true if the kernels of GPUs support the heads of `qkv`, as for attention.
    fn has_kernels(&self, qkv: &Tensor<2>) -> bool {
        self.size(qkv.dims()[1]) <= MAX_HEAD
    }

    /// Returns the angle in radians from one position to the next of pair `i` of elements.
    fn angle(&self, i: usize, size: usize) -> f64 {
        let exponent = -2.0 * i as f64 / size as f64;
        self.scaling.scaled(libm::pow(f64::from(self.theta), exponent))
    }

    /// Returns the angle from one position to the next of each pair of elements, in units of 2^-32 turns.
    ///
    /// A product with a position wraps around to the exact angle modulo one turn, and a polynomial gives
    /// its sine. The rounding of a unit grows with the position: to 8e-7 at 1024 and 2e-5 at
    /// 32,768. Products in f32 are off by 6e-5 and 1e-3 there, and the sines of WGSL by up to 5e-4.
    fn turns(&self, size: usize) -> Vec<u32> {
        let per_position = |i: usize| self.angle(i, size) / TAU;
        (0..size / 2).map(|i| (per_position(i) * 2f64.powi(32)).round() as u64 as u32).collect()
    }
}

tensors! {
    /// The weights of the normalisation of heads, `[size]` both.
    #[derive(Clone, Debug)]
    pub struct HeadNorms {
        pub q: Tensor<1>,
        pub k: Tensor<1>,
    }
}

op! {
    /// Normalises, if there are `norms`, and rotates q and k of `qkv` `[n, (heads + 2 kv_heads) size]`.
    /// Returns `qkv` with its values unchanged, in place if nothing else holds it.
    pub fn rotary(
        qkv: Tensor<2>,
        norms: Option<HeadNorms>;
        shape: RotaryShape,
    ) -> Tensor<2> = forward(RotaryInputs) if shape.has_kernels(&qkv);
}

op! {
    /// Returns the gradient of [`rotary`]'s input from `dqkv`, the gradient of its output, in place if
    /// nothing else holds it. With `norms`, it needs the input `qkv` of [`rotary`], and also returns partial
    /// sums `[groups, 2, size]` of the gradients of the weights of q and k, for
    /// [`layer_norm_weight_gradients`](super::layer_norm_weight_gradients).
    ///
    /// # Panics
    /// If there are norms but no `qkv`.
    pub fn rotary_backward(
        dqkv: Tensor<2>,
        qkv: Option<Tensor<2>>,
        norms: Option<HeadNorms>;
        shape: RotaryShape,
    ) -> (Tensor<2>, Option<Tensor<3>>) = backward(RotaryBackwardInputs) if shape.has_kernels(&dqkv);
}

/// `2 pi / 2^32`: the radians of a unit of an angle.
const RADIANS: f32 = 1.462_918_1e-9;
/// The coefficients of the sine and the cosine between -pi / 4 and pi / 4, by powers of the square
/// (Cephes' `sinf` and `cosf`).
const SINE: [f32; 3] = [-1.666_665_5e-1, 8.332_161e-3, -1.951_529_6e-4];
const COSINE: [f32; 3] = [4.166_664_6e-2, -1.388_731_6e-3, 2.443_315_7e-5];

/// Returns the cosine and the sine of an angle in units of 2^-32 turns, to 1e-7.
#[cfg(not(target_arch = "wasm32"))]
#[inline(always)]
fn cosine_and_sine(angle: u32) -> [f32; 2] {
    let quadrant = angle.wrapping_add(1 << 29) >> 30;
    let x = angle.wrapping_sub(quadrant << 30) as i32 as f32 * RADIANS;
    let square = x * x;
    let sine = x + x * square * (SINE[0] + square * (SINE[1] + square * SINE[2]));
    let tail = COSINE[0] + square * (COSINE[1] + square * COSINE[2]);
    let cosine = 1.0 - 0.5 * square + square * square * tail;
    let [cosine, sine] = if quadrant % 2 == 1 { [sine, cosine] } else { [cosine, sine] };
    [
        if quadrant == 1 || quadrant == 2 { -cosine } else { cosine },
        if quadrant >= 2 { -sine } else { sine },
    ]
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn angles_match_f64_at_every_position() {
        let scaling = RopeScaling::None;
        let shape = RotaryShape { time: 1, heads: 1, kv_heads: 1, theta: 1e6, scaling, eps: 1e-6 };
        for (i, turns) in shape.turns(128).into_iter().enumerate() {
            for position in [0u32, 1, 2, 3, 5, 63, 64, 1000, 4097, 32_767] {
                let angle = f64::from(position) * 1e6f64.powf(-2.0 * i as f64 / 128.0);
                let got = cosine_and_sine(position.wrapping_mul(turns)).map(f64::from);
                let allowed = 2e-7 + f64::from(position) * 8e-10;
                for (got, want) in got.into_iter().zip([angle.cos(), angle.sin()]) {
                    let off = (got - want).abs();
                    assert!(off < allowed, "pair {i} at {position} is off by {off}");
                }
            }
        }
    }
}
