//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>): the momentum of a matrix,
//! orthogonalized, with the constants and the formulas of PyTorch's `torch.optim.Muon`.
//!
//! The update has singular values of about 1 in place of the momentum's, which differ by
//! orders of magnitude: directions in which the gradient is small are learned as fast as the others.
//! Multiplied by `0.2 sqrt(max(rows, columns))`, its elements have the root mean square of AdamW's
//! updates, so that the learning rate and the weight decay of AdamW serve (Liu et al. 2025,
//! arXiv:2502.16982; PyTorch's `adjust_lr_fn="match_rms_adamw"`).
//!
//! PyTorch stores a linear layer as `[out, in]`, wgpt as `[in, out]`. Orthogonalization is
//! equivariant under transposition: the singular vectors change sides, and the singular values,
//! which are all that it changes, are the same.

use burn::tensor::{FloatDType, Tensor};

use crate::config::{Config, Precision};
use crate::ops::{self, OpsMode};

/// The decay of the momentum, which is Nesterov's.
const MOMENTUM: f64 = 0.95;
const STEPS: usize = 5;
/// The coefficients of `x`, `x^3` and `x^5` in an iteration. They have a large slope at 0, and do not
/// converge: singular values end between about 0.7 and 1.2, which serves as well as 1.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// The least norm by which a matrix is divided.
const EPS: f64 = 1e-7;
/// The root mean square of AdamW's updates, in units of the learning rate.
const ADAMW_RMS: f64 = 0.2;

/// The shares of up to three matrices side by side in the columns of a weight; 0 after the last one.
pub type MatrixShares = [usize; 3];

/// Returns the matrices that the parameter `name` consists of for Muon: queries, keys and values, or gate
/// and up, are separate matrices. `None` for embeddings, biases and norms, which are left to AdamW.
pub(super) fn matrices_of(config: &Config, name: &str) -> Option<MatrixShares> {
    let layer = name.strip_prefix("h.")?.strip_suffix(".weight")?;
    match layer.rsplit('.').next()? {
        "c_attn" => Some([1, 1, 1]),
        "qkv_proj" => {
            let kv_heads = config.kv_heads() as usize;
            Some([config.n_head.get() as usize, kv_heads, kv_heads])
        }
        "gate_up_proj" => Some([1, 1, 0]),
        "c_proj" | "c_fc" | "o_proj" | "down_proj" => Some([1, 0, 0]),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(super) struct Muon {
    pub learning_rate: f64,
    pub weight_decay: f64,
    /// That of [`UpdateControl`](crate::ops::UpdateControl), `[4]`. Muon reads the factor of the
    /// gradients, and whether the update is made.
    pub control: Tensor<1>,
    pub mode: OpsMode,
}

impl Muon {
    /// Updates a weight `w` of `shape` `[in, out]` and its momentum `m` by `grad`, all `[elements]` in
    /// f32. An update that `control` skips changes no bit, whatever is in the gradient.
    /// `half`, if any, is the copy of `w` in half precision, which follows it.
    ///
    /// The iterates take the memory of the gradient, if nothing else holds that. In addition to it, the
    /// weight and the momentum, a block of width `c` needs at most `5 c^2` elements: for a matrix of
    /// `[c, 4c]` its transpose and `[c, c]`, for `c_attn` the updates of q and k and three matrices
    /// for that of v. The CPU needs no transpose, but `9 c^2`: it copies each product once.
    pub fn update(
        &self,
        w: Tensor<1>,
        half: Option<Tensor<1>>,
        grad: Tensor<1>,
        m: Tensor<1>,
        matrices: MatrixShares,
        shape: [usize; 2],
    ) -> (Tensor<1>, Option<Tensor<1>>, Tensor<1>) {
        let elements = w.dims();
        let applied = self.control.clone().narrow(0, 1, 1).greater_scalar(0.0).expand(elements);

        let grad = grad * self.control.clone().narrow(0, 0, 1);
        let new_m = lerp(m.clone(), grad.clone(), 1.0 - MOMENTUM);
        let direction = lerp(new_m.clone(), grad, 1.0 - MOMENTUM);
        // Selected, not multiplied by 0: what is skipped may be NaN.
        let m = m.mask_where(applied.clone(), new_m);

        let step = self.step(direction.reshape(shape), matrices).reshape(elements);
        let decay = 1.0 - self.learning_rate * self.weight_decay;
        let new_w = w.clone() * decay - step;
        let w = w.mask_where(applied, new_w);
        let half = half.map(|old| {
            let dtype = FloatDType::from(old.dtype());
            drop(old);
            w.clone().cast(dtype)
        });
        (w, half, m)
    }

    /// Returns the step along each of the matrices that `x` consists of, side by side.
    fn step(&self, x: Tensor<2>, matrices: MatrixShares) -> Tensor<2> {
        // The matrices are f32, whatever activations are stored in, and are not rounded to TF32.
        let mode = self.mode.in_precision(Precision::FLOAT32);
        let step = |x: Tensor<2>| {
            let [rows, columns] = x.dims();
            let longer = rows.max(columns) as f64;
            orthogonalize(x, mode) * (self.learning_rate * ADAMW_RMS * longer.sqrt())
        };
        if matrices[1] == 0 {
            return step(x);
        }
        let share = x.dims()[1] / matrices.iter().sum::<usize>();
        let mut first = 0;
        let part = |shares: usize| {
            let columns = shares * share;
            first += columns;
            step(x.clone().narrow(1, first - columns, columns))
        };
        let parts = matrices.into_iter().filter(|&shares| shares > 0).map(part).collect();
        drop(x);
        Tensor::cat(parts, 1)
    }
}

/// `from + weight (to - from)`, in the memory of `to` if nothing else holds it.
fn lerp(from: Tensor<1>, to: Tensor<1>, weight: f64) -> Tensor<1> {
    (to - from.clone()) * weight + from
}

/// Returns a matrix with the singular vectors of `x` and singular values of about 1, by Newton-Schulz
/// iterations in f32.
///
/// It computes the polynomial of the smaller of `x x^T` and `x^T x`, and multiplies from that side.
fn orthogonalize(x: Tensor<2>, mode: OpsMode) -> Tensor<2> {
    let product = |left, right, sum| ops::linear(left, right, None, sum, None, mode);
    let [rows, columns] = x.dims();
    let wide = rows <= columns;
    let [a, b, c] = COEFFICIENTS;
    // With a Frobenius norm of 1, no singular value is above 1.
    let norm = frobenius_norm(x.clone()).clamp_min(EPS);
    let mut x = x / norm;
    // The iterate is `scale x`. With `h = (b / a) scale^2 x x^T`, or `x^T x`, the next one is
    // `a scale (x + (h + (a c / b^2) h^2) x)`: products can add both sums.
    let mut scale = 1.0;
    for _ in 0..STEPS {
        let transposed = x.clone().transpose();
        let gram = if wide {
            product(x.clone(), transposed, None)
        } else {
            product(transposed, x.clone(), None)
        };
        let h = gram * (b / a * scale * scale);
        let polynomial = product(h.clone() * (a * c / (b * b)), h.clone(), Some(h));
        x = if wide {
            product(polynomial, x.clone(), Some(x))
        } else {
            product(x.clone(), polynomial, Some(x))
        };
        scale *= a;
    }
    x * scale
}

/// The Frobenius norm as `[1, 1]`. Summed by rows, then over the rows: a sum of all elements at once
/// loses digits on some adapters, and burn's adds by atomics, in any order.
fn frobenius_norm(x: Tensor<2>) -> Tensor<2> {
    (x.clone() * x).sum_dim(1).sum_dim(0).sqrt()
}
