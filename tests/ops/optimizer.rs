//! Compares the gradient norm and AdamW with the same computation in f64.

use burn::tensor::{Device, Tensor};
use wgpt::ops::{self, AdamW, GradientNorm, Moments, OpsMode};

use crate::case::{dot, noise, values};
use crate::check::{VALUE, compare};

/// Returns the norm of two gradients, its clip factor, and `w`, `m` and `v` after three updates.
pub fn optimize(len: usize, device: &Device, mode: OpsMode) -> [Vec<f32>; 5] {
    let tensor = |values: Vec<f32>| Tensor::<1>::from_data(values.as_slice(), device);
    let mut w = tensor(noise(0, len));
    let mut moments = Moments { m: tensor(vec![0.0; len]), v: tensor(vec![0.0; len]) };
    for step in 1..=3 {
        let scalars = AdamW::new(step, 0.1, 0.2, 0.9, 0.95, 1e-3);
        let (grad, clip) = (tensor(noise(step, len)), tensor(vec![0.5]));
        (w, moments) = ops::adamw(w, grad, moments, clip, scalars, mode);
    }
    // The second tensor is one element longer than the span of a workgroup.
    let grads = [tensor(noise(1, len)), tensor(noise(2, 16_385))];
    let GradientNorm { norm, clip } = ops::gradient_norm(&grads, 1.0, mode);
    [norm, clip, w, moments.m, moments.v].map(values)
}

/// Computes the results of [`optimize`] in f64.
pub fn truth(len: usize) -> [Vec<f64>; 5] {
    let noise = |seed| noise(seed, len).into_iter().map(f64::from).collect::<Vec<f64>>();
    let (mut w, mut m, mut v) = (noise(0), vec![0.0; len], vec![0.0; len]);
    for step in 1..=3 {
        for (i, grad) in noise(step as u64).iter().map(|grad| grad * 0.5).enumerate() {
            m[i] = 0.9 * m[i] + 0.1 * grad;
            v[i] = 0.95 * v[i] + 0.05 * grad * grad;
            let (m, v) = (m[i] / (1.0 - 0.9f64.powi(step)), v[i] / (1.0 - 0.95f64.powi(step)));
            w[i] -= 0.1 * (m / (v.sqrt() + 1e-3) + 0.2 * w[i]);
        }
    }
    let second: Vec<f64> = self::noise(2, 16_385).into_iter().map(f64::from).collect();
    let norm = (dot(&noise(1), &noise(1)) + dot(&second, &second)).sqrt();
    [vec![norm], vec![1.0 / norm], w, m, v]
}

/// Compares the results for tensors of several lengths.
pub fn check_optimizer(device: &Device, mode: OpsMode) {
    // A million elements are more than an invocation of lavapipe can loop over.
    for len in [1, 17, 40_000, 1_000_000] {
        let results = optimize(len, device, mode).into_iter().zip(truth(len));
        for ((got, want), what) in results.zip(["norm", "clip", "w", "m", "v"]) {
            compare(&format!("{mode:?} {what} of {len}"), &got, &want, VALUE).unwrap();
        }
    }
}
