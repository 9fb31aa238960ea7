//! Compares the value and the gradients of every op with an oracle of plain f64 loops, on the CPU with
//! both implementations and on every Vulkan adapter. The oracle computes only values. Its gradients are
//! central differences, so that no derivative is written twice.

mod case;
mod check;
mod dequantize;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod devices;
mod layer_norm;
mod optimizer;

use burn::tensor::{Device, Tensor, TensorData};
use wgpt::ops::{self, AttentionShape, Dropout, OpsMode};

use case::{Case, Op, long_cases, mask, noise, values};
use check::{Outcome, check, check_large, check_small, run, truth};
use dequantize::check_dequantize;
use layer_norm::check_layer_norms;
use optimizer::{check_optimizer, optimize};

const MODES: [OpsMode; 2] = [OpsMode::AUTO, OpsMode::REFERENCE];

#[test]
fn small_shapes() {
    check_small(100, &Device::flex(), &MODES);
}

/// Scores in the thousands, for which a softmax overflows unless it subtracts the maximum.
#[test]
fn large_attention_scores_stay_finite() {
    let op = Op::Attention { kv_heads: 2, sharing: 1, rate: None };
    // With heads of size 4, the scale is 1/2, and the scores are exact.
    let case = Case { spread: 30.0, ..Case::new(op, 2, 5, 8) };
    let truth = truth(&case);
    for mode in MODES {
        check(&case, &truth, &Device::flex(), mode).unwrap();
    }
}

/// Sequences longer than one of the reference's blocks of 128 queries.
#[test]
fn long_sequences() {
    for time in [130, 257] {
        check_large(long_cases(time), &Device::flex(), OpsMode::AUTO);
    }
}

#[test]
fn optimizer() {
    for mode in MODES {
        check_optimizer(&Device::flex(), mode);
    }
}

#[test]
fn matrices_in_8_bits() {
    for mode in MODES {
        check_dequantize(&Device::flex(), mode);
    }
}

#[test]
fn layer_norms() {
    for mode in MODES {
        check_layer_norms(&Device::flex(), mode);
    }
}

/// Checks a count of random hits against its expectation. The masks are deterministic, so a test
/// that passes keeps passing.
fn within_four_standard_errors(what: &str, hits: usize, of: usize, share: f64) {
    let error = (share * (1.0 - share) * of as f64).sqrt();
    let off = (hits as f64 - share * of as f64).abs();
    assert!(off <= 4.0 * error, "{what}: {hits} of {of}, expected a share of {share}");
}

#[test]
fn dropout_keeps_the_right_share_and_scales_it() {
    const LEN: usize = 100_000;
    for rate in [0.0f32, 0.1, 0.3, 0.5, 0.9] {
        let dropout = Dropout::new(rate, 1, 2, 3, 4);
        let [auto, reference] = MODES.map(|mode| mask(dropout, 3, LEN, &Device::flex(), mode));
        assert_eq!(auto, reference, "rate {rate}");
        assert!(auto.iter().all(|&x| x == 0.0 || x == 1.0 / (1.0 - rate)), "rate {rate}");
        for (sequence, mask) in auto.chunks(LEN).enumerate() {
            let kept = mask.iter().filter(|&&x| x != 0.0).count();
            let what = format!("rate {rate}, sequence {sequence}");
            within_four_standard_errors(&what, kept, LEN, 1.0 - f64::from(rate));
        }
    }
}

#[test]
fn every_part_of_the_key_gives_an_independent_mask() {
    const LEN: usize = 100_000;
    let draw = |seed, step, site, sequence| {
        let dropout = Dropout::new(0.3, seed, step, site, sequence);
        mask(dropout, 1, LEN, &Device::flex(), OpsMode::AUTO)
    };
    let base = draw(1, 2, 3, 4);
    assert_eq!(base, draw(1, 2, 3, 4));
    let others = [draw(5, 2, 3, 4), draw(1, 3, 3, 4), draw(1, 2, 4, 4), draw(1, 2, 3, 5)];
    for (part, other) in ["seed", "step", "site", "sequence"].iter().zip(&others) {
        let different = base.iter().zip(other).filter(|(a, b)| a != b).count();
        within_four_standard_errors(part, different, LEN, 2.0 * 0.3 * 0.7);
    }
}

/// A step must not depend on how its sequences are split into micro-batches.
#[test]
fn masks_do_not_depend_on_the_micro_batch() {
    let (batch, time, width) = (3, 5, 6);
    let qkv = noise(1, batch * time * 3 * width);
    let qkv = TensorData::new(qkv, [batch * time, 3 * width]);
    let qkv = Tensor::<2>::from_data(qkv, &Device::flex());
    for mode in MODES {
        let both = |qkv: Tensor<2>, batch, first| {
            let dropout = Dropout::new(0.3, 1, 2, 3, first);
            let shape =
                AttentionShape { batch, time, heads: 2, kv_heads: 2, dropout: Some(dropout) };
            let dropped = ops::dropout(qkv.clone(), None, time, dropout, mode);
            [dropped, ops::attention(qkv, shape, mode).0].map(values)
        };
        let whole = both(qkv.clone(), batch, 7);
        for sequence in 0..batch {
            let rows = sequence * time..(sequence + 1) * time;
            let alone = both(qkv.clone().slice([rows]), 1, 7 + sequence as u32);
            for (whole, alone) in whole.iter().zip(alone) {
                assert_eq!(whole[sequence * alone.len()..][..alone.len()], alone, "{mode:?}");
            }
        }
    }
}

#[test]
fn results_depend_on_neither_the_run_nor_the_number_of_threads() {
    let device = Device::flex();
    let all = || {
        let ops = long_cases(257).into_iter().flat_map(|case| {
            let Outcome { value, grads } = run(&case, &device, OpsMode::AUTO);
            [value].into_iter().chain(grads)
        });
        let all = ops.chain(optimize(100_000, &device, OpsMode::AUTO));
        all.map(|values| values.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
    };
    let first = all();
    assert!(first == all(), "a second run differs");
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(first == pool.install(all), "{threads} threads differ");
    }
}
