//! Compares the control of updates and AdamW with the same computation in f64.

use burn::tensor::{Device, FloatDType, Tensor};
use wgpt::ops::{
    self, AdamW, Moments, OpsMode, UpdateControl, UpdateSettings, UpdatedWeight, WeightUpdate,
};

use crate::case::{dot, noise, values};
use crate::check::{VALUE, compare};

/// Divides the gradients of the tests, together with the loss scale.
const DIVISOR: f32 = 0.25;
/// This is below the norm of the tests' gradients.
const CLIP: f32 = 100.0;
const SCALARS: AdamW = AdamW { decay: 1.0 - 0.1 * 0.2, beta1: 0.9, beta2: 0.95, eps: 1e-3 };

/// Returns the settings of update number `step` with a scaled loss.
fn settings(step: u64) -> UpdateSettings {
    UpdateSettings {
        grad_clip: CLIP,
        divisor: DIVISOR,
        step,
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        scales_loss: true,
    }
}

fn tensor(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(values, device)
}

/// Updates one weight, which decays.
fn adamw(
    w: Tensor<1>,
    half: Option<Tensor<1>>,
    grad: Tensor<1>,
    moments: Moments,
    control: Tensor<1>,
    mode: OpsMode,
) -> UpdatedWeight {
    let weight = WeightUpdate { w, half, grad, moments, decays: true };
    ops::adamw(vec![weight], control, SCALARS, mode).pop().expect("the weight")
}

/// Returns the gradients of two weights in an update. The second is one element longer than the span
/// of a workgroup. The second update overflows.
fn gradients(step: u64, len: usize) -> [Vec<f32>; 2] {
    let mut grads = [noise(step, len), noise(9, 16_385)];
    if step == 2 {
        grads[0][len / 2] = f32::INFINITY;
    }
    grads
}

/// Makes three updates. The second is skipped. Returns norm and control of the last, the
/// state of loss scaling after it, and `w`, `m` and `v`.
pub fn optimize(len: usize, device: &Device, mode: OpsMode) -> [Vec<f32>; 6] {
    let mut w = tensor(&noise(0, len), device);
    let mut moments = Moments { m: w.zeros_like(), v: w.zeros_like() };
    let mut loss_scale = tensor(&[8.0, 0.0, 0.0, 0.0], device);
    let mut last = None;
    for step in 1..=3 {
        let grads = gradients(step, len).map(|grad| tensor(&grad, device));
        let update = ops::update_control(grads.to_vec(), loss_scale, settings(step), mode);
        let [grad, _] = grads;
        let control = update.control.clone();
        (w, _, moments) = adamw(w, None, grad, moments, control, mode);
        loss_scale = update.loss_scale.clone();
        last = Some(update);
    }
    let UpdateControl { norm, control, loss_scale } = last.expect("three updates");
    [norm, control, loss_scale, w, moments.m, moments.v].map(values)
}

/// Computes the results of [`optimize`] in f64.
fn truth(len: usize) -> [Vec<f64>; 6] {
    let mut w: Vec<f64> = noise(0, len).into_iter().map(f64::from).collect();
    let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
    let (mut norm, mut control) = (0.0, vec![]);
    // The skipped update halves the scale, and does not count as one of Adam's steps.
    for (step, t, scale) in [(1, 1, 8.0), (3, 2, 4.0)] {
        let divisor = scale * f64::from(DIVISOR);
        let [grad, other] = gradients(step, len)
            .map(|grad| grad.into_iter().map(|x| f64::from(x) / divisor).collect::<Vec<f64>>());
        norm = (dot(&grad, &grad) + dot(&other, &other)).sqrt();
        let clip = (f64::from(CLIP) / (norm + 1e-6)).min(1.0);
        let corrections = [1.0 - 0.9f64.powi(t), 1.0 - 0.95f64.powi(t)];
        for (i, grad) in grad.iter().map(|grad| grad * clip).enumerate() {
            m[i] = 0.9 * m[i] + 0.1 * grad;
            v[i] = 0.95 * v[i] + 0.05 * grad * grad;
            let (m, v) = (m[i] / corrections[0], v[i] / corrections[1]);
            w[i] -= 0.1 * (m / (v.sqrt() + 1e-3) + 0.2 * w[i]);
        }
        control = vec![clip / divisor, 1.0, 0.1 / corrections[0], corrections[1].sqrt().recip()];
    }
    [vec![norm], control, vec![4.0, 1.0, 1.0, 0.0], w, m, v]
}

/// Compares the results for tensors of several lengths, and checks the decisions.
pub fn check_optimizer(device: &Device, mode: OpsMode) {
    // A million elements are more than an invocation of lavapipe can loop over.
    for len in [1, 17, 40_000, 1_000_000] {
        let results = optimize(len, device, mode).into_iter().zip(truth(len));
        let names = ["norm", "control", "loss scale", "w", "m", "v"];
        for ((got, want), what) in results.zip(names) {
            compare(&format!("{mode:?} {what} of {len}"), &got, &want, VALUE).unwrap();
        }
    }
    check_corrections(device, mode);
    check_loss_scale(device, mode);
    check_large_gradients(device, mode);
    check_skipped_update(device, mode);
    check_many_weights(device, mode);
}

/// Adam's bias corrections lose no digits, however many updates were made.
fn check_corrections(device: &Device, mode: OpsMode) {
    let grads = vec![tensor(&[1.0], device)];
    let steps = (0..=20).flat_map(|power| [1u64 << power, (3 << power) / 2]).chain([1_000_000]);
    for step in steps {
        for (beta1, beta2) in [(0.9, 0.95), (0.99, 0.999)] {
            // The 7 skipped updates do not count.
            let loss_scale = tensor(&[1.0, 0.0, 7.0, 0.0], device);
            let settings = UpdateSettings {
                learning_rate: 0.25,
                step: step + 7,
                beta1,
                beta2,
                ..settings(step)
            };
            let control = ops::update_control(grads.clone(), loss_scale, settings, mode).control;
            let control = values(control);
            let [first, second] =
                [beta1, beta2].map(|beta: f64| -(beta.ln() * step as f64).exp_m1());
            for (got, want) in [(control[2], 0.25 / first), (control[3], second.sqrt().recip())] {
                let off = (f64::from(got) / want - 1.0).abs();
                assert!(off < 1e-6, "{mode:?}, {beta1}, {beta2}, step {step}: off by {off:e}");
            }
        }
    }
}

/// The scale halves and doubles as it should, and the counts are right.
fn check_loss_scale(device: &Device, mode: OpsMode) {
    let (nan, one) = ([f32::NAN], [1.0]);
    for (scales, grad, before, after) in [
        (true, one, [8.0, 1998.0, 3.0, 2.0], [8.0, 1999.0, 3.0, 0.0]),
        (true, one, [8.0, 1999.0, 3.0, 0.0], [16.0, 0.0, 3.0, 0.0]),
        (true, one, [32_768.0, 1999.0, 3.0, 0.0], [32_768.0, 0.0, 3.0, 0.0]),
        (true, nan, [8.0, 1999.0, 3.0, 0.0], [4.0, 0.0, 4.0, 1.0]),
        (true, nan, [2f32.powi(30), 0.0, 4.0, 1.0], [2f32.powi(29), 0.0, 5.0, 2.0]),
        (true, nan, [1.0, 0.0, 5.0, 2.0], [1.0, 0.0, 6.0, 3.0]),
        (false, one, [1.0, 1999.0, 0.0, 0.0], [1.0, 2000.0, 0.0, 0.0]),
        (false, nan, [1.0, 2000.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0]),
    ] {
        let grads = vec![tensor(&grad, device)];
        let settings = UpdateSettings { scales_loss: scales, ..settings(20) };
        let update = ops::update_control(grads, tensor(&before, device), settings, mode);
        assert_eq!(values(update.loss_scale), after, "{mode:?} after {before:?}");
        let [norm, control] = [update.norm, update.control].map(values);
        let finite = grad == one;
        assert_eq!((norm[0].is_finite(), control[1]), (finite, f32::from(u8::from(finite))));
        assert_eq!(control[0] > 0.0, finite, "{mode:?}: {control:?}");
    }
}

/// The squares of scaled gradients leave the range of f32, but the squares of the gradients do not.
fn check_large_gradients(device: &Device, mode: OpsMode) {
    const LEN: usize = 100_000;
    let settings = UpdateSettings { divisor: 5e5, grad_clip: 0.0, ..settings(1) };
    let loss_scale = tensor(&[32_768.0, 0.0, 0.0, 0.0], device);
    let grads = vec![Tensor::<1>::full([LEN], 1e19, device)];
    let update = ops::update_control(grads, loss_scale, settings, mode);
    let factor = 1.0 / (32_768.0 * 5e5);
    let norm = 1e19 * factor * (LEN as f64).sqrt();
    compare("norm", &values(update.norm), &[norm], VALUE).unwrap();
    let got = f64::from(values(update.control)[0]);
    assert!((got / factor - 1.0).abs() < 1e-6, "{mode:?}: {got:e}");
}

/// A skipped update changes no bit, and the copy in float16 follows the weights.
fn check_skipped_update(device: &Device, mode: OpsMode) {
    let has_half = device.supports_dtype(FloatDType::F16);
    for (len, finite) in [(19, false), (16_384, false), (19, true), (16_384, true)] {
        let before = [0, 1, 2].map(|seed| noise(seed, len));
        let [w, m, v] = before.each_ref().map(|values| tensor(values, device));
        let half = has_half.then(|| w.clone().cast(FloatDType::F16));
        let grad = Tensor::full([len], if finite { 1.0 } else { f32::INFINITY }, device);
        let control = tensor(&[0.5, f32::from(u8::from(finite)), 0.1, 1.5], device);
        let moments = Moments { m, v: v.abs() };
        let (w, half, moments) = adamw(w, half, grad, moments, control, mode);
        assert_eq!(half.is_some(), has_half);
        let w = values(w);
        if let Some(half) = half {
            assert_eq!(half.dtype(), FloatDType::F16.into());
            let want: Vec<f64> = w.iter().copied().map(f64::from).collect();
            compare(&format!("{mode:?} copy of {len}"), &values(half), &want, 1e-3).unwrap();
        }
        let [was, m, v] = before;
        let v: Vec<f32> = v.into_iter().map(f32::abs).collect();
        let is_same =
            [(was, w), (m, values(moments.m)), (v, values(moments.v))].map(|(a, b)| a == b);
        assert_eq!(is_same, [!finite; 3], "{mode:?}, {len} elements");
    }
}

/// Weights that are updated together get the same bits as each alone, whatever their number, their
/// lengths and their copies in float16. The norm of all their gradients is the same up to rounding.
fn check_many_weights(device: &Device, mode: OpsMode) {
    let has_half = device.supports_dtype(FloatDType::F16);
    let lens = [4, 5, 16_384, 16_388, 40_001, 1, 12];
    for count in [2, 7, 40] {
        let control = tensor(&[0.5, 1.0, 0.1, 1.5], device);
        let weights = || {
            let weight = |index: usize| {
                let len = lens[index % lens.len()];
                let [w, grad, m, v] =
                    [0, 1, 2, 3].map(|seed| tensor(&noise(4 * index as u64 + seed, len), device));
                let half =
                    (has_half && index.is_multiple_of(3)).then(|| w.clone().cast(FloatDType::F16));
                let moments = Moments { m, v: v.abs() };
                WeightUpdate { w, half, grad, moments, decays: index.is_multiple_of(2) }
            };
            (0..count).map(weight).collect::<Vec<_>>()
        };
        let results = |updated: Vec<UpdatedWeight>| {
            let of_weight = |(w, half, Moments { m, v }): UpdatedWeight| {
                [Some(w), half, Some(m), Some(v)].map(|tensor| tensor.map(values))
            };
            updated.into_iter().map(of_weight).collect::<Vec<_>>()
        };
        let alone = weights()
            .into_iter()
            .flat_map(|weight| ops::adamw(vec![weight], control.clone(), SCALARS, mode));
        let alone = results(alone.collect());
        let together = results(ops::adamw(weights(), control, SCALARS, mode));
        assert_eq!(together.len(), count);
        for (index, (together, alone)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(together[1].is_some(), has_half && index.is_multiple_of(3));
            assert!(together == alone, "{mode:?}: weight {index} of {count} differs");
        }

        let grads: Vec<Tensor<1>> = weights().into_iter().map(|weight| weight.grad).collect();
        let all: Vec<f32> = grads.iter().cloned().flat_map(values).collect();
        let one = tensor(&[1.0, 0.0, 0.0, 0.0], device);
        let norm = ops::update_control(grads, one, settings(1), mode).norm;
        let want = dot(
            &all.iter().copied().map(f64::from).collect::<Vec<_>>(),
            &all.iter().copied().map(f64::from).collect::<Vec<_>>(),
        )
        .sqrt()
            / f64::from(DIVISOR);
        compare("the norm of many", &values(norm), &[want], VALUE).unwrap();
    }
}
