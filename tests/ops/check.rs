//! Runs ops and compares their values and gradients with the oracle.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use wgpt::config::{Dtype, Gelu, Precision};
use wgpt::gpu::DriverTraits;
use wgpt::ops::{self, Activation, OpsMode};

use crate::case::{
    ACTIVATIONS, Case, Op, dot, long_cases, noise, small_cases, values, vector_cases, whole_cases,
};

/// The tolerances of values and gradients in f32.
pub const VALUE: f64 = 1e-5;
pub const GRADIENT: f64 = 1e-4;

/// Returns the tolerances of values and gradients. f16 has 11 bits of precision, bfloat16 8, and
/// tensor cores read 11 bits of an f32.
fn tolerance(dtype: Dtype) -> (f64, f64) {
    match dtype {
        Dtype::Auto | Dtype::Float32 => (VALUE, GRADIENT),
        Dtype::Tf32 | Dtype::Float16 => (5e-3, 5e-3),
        Dtype::Bfloat16 => (4e-2, 4e-2),
    }
}

/// The output of an op, and the gradient of `sum(output * r)` for every input, with `r` of
/// [`functional`].
pub struct Outcome {
    pub value: Vec<f32>,
    pub grads: Vec<Vec<f32>>,
}

/// Returns the random weights `r` of the output that gradients are tested with.
pub fn functional(len: usize) -> Vec<f32> {
    noise(u64::MAX, len)
}

/// Returns the same matrix as a transposed view of a part of a buffer.
pub fn strided(x: Tensor<2>) -> Tensor<2> {
    let [rows, cols] = x.dims();
    let border = Tensor::full([1, rows], f32::NAN, &x.device());
    Tensor::cat(vec![border, x.transpose()], 0).slice([1..cols + 1, 0..rows]).transpose()
}

/// Fills the memory of the next tensors with NaN, so that outputs that a kernel does not write are
/// detected.
pub fn poison(device: &Device) {
    let tensors = [64, 1024, 16_384, 65_536].map(|len| Tensor::<1>::full([len], f32::NAN, device));
    // A device works in order, so this read returns after all are written. Only then are they freed.
    let [.., last] = &tensors;
    assert!(values(last.clone().narrow(0, 0, 1))[0].is_nan());
}

/// Returns the dtype of activations in this mode.
fn activations(mode: OpsMode) -> FloatDType {
    match mode.precision.dtype() {
        Dtype::Auto | Dtype::Float32 | Dtype::Tf32 => FloatDType::F32,
        Dtype::Bfloat16 => FloatDType::BF16,
        Dtype::Float16 => FloatDType::F16,
    }
}

/// Casts activations, and weights with copies in half precision, to the dtype of the mode, as in the
/// model. `stored` is the dtype of matrices and embeddings, if given.
fn in_dtype(
    case: &Case,
    inputs: Vec<Tensor<2>>,
    mode: OpsMode,
    stored: Option<FloatDType>,
) -> Vec<Tensor<2>> {
    let is_half = |index| {
        !case.is_weight(index) || mode.precision.keeps_half_weights() && case.has_copy(index)
    };
    let cast = |(index, x): (usize, Tensor<2>)| match stored {
        Some(stored) if case.is_matrix(index) => x.cast(stored),
        _ if is_half(index) => x.cast(activations(mode)),
        _ => x,
    };
    inputs.into_iter().enumerate().map(cast).collect()
}

/// Runs an op.
pub fn run(case: &Case, device: &Device, mode: OpsMode) -> Outcome {
    run_stored(case, device, mode, None)
}

/// Runs an op. Matrices and embeddings are stored in `stored`, if it is given.
fn run_stored(case: &Case, device: &Device, mode: OpsMode, stored: Option<FloatDType>) -> Outcome {
    poison(device);
    let view = |x: Tensor<2>| if case.strided { strided(x) } else { x };
    let inputs = case.inputs().into_iter();
    let inputs = inputs.map(|input| view(Tensor::from_data(input, device))).collect();
    let inputs = in_dtype(case, inputs, mode, stored);
    let r = TensorData::new(functional(case.output_shape().iter().product()), case.output_shape());
    let mut dy = view(Tensor::from_data(r, device));
    if !matches!(case.op, Op::CrossEntropy { .. }) {
        dy = dy.cast(activations(mode));
    }
    let (value, grads) = case.run(&inputs, dy, mode);
    Outcome { value: values(value), grads: grads.into_iter().map(values).collect() }
}

/// The exact value and gradients of a case.
pub struct Truth {
    pub value: Vec<f64>,
    pub grads: Vec<Vec<f64>>,
}

pub fn oracle_inputs(case: &Case) -> Vec<Vec<f64>> {
    case.inputs().iter().map(|input| input.iter().collect()).collect()
}

/// Computes a value by the oracle, and its gradients by central differences.
pub fn truth(case: &Case) -> Truth {
    const H: f64 = 1e-5;
    let mut inputs = oracle_inputs(case);
    let mask = case.mask();
    let value = case.oracle(&inputs, mask.as_deref());
    let r: Vec<f64> = functional(value.len()).into_iter().map(f64::from).collect();
    let mut grads: Vec<_> = inputs.iter().map(|input| vec![0.0; input.len()]).collect();
    for index in 0..inputs.len() {
        for at in 0..inputs[index].len() {
            let x = inputs[index][at];
            let mut moved = |by: f64| {
                inputs[index][at] = x + by;
                dot(&case.oracle(&inputs, mask.as_deref()), &r)
            };
            grads[index][at] = (moved(H) - moved(-H)) / (2.0 * H);
            moved(0.0);
        }
    }
    Truth { value, grads }
}

/// Compares elements. Each may be off by `tolerance` times the largest of `want`, or times `FLOOR` if
/// all are smaller, because a sum that cancels has the errors of its terms.
pub fn compare(what: &str, got: &[f32], want: &[f64], tolerance: f64) -> Result<(), String> {
    const FLOOR: f64 = 0.1;
    if got.len() != want.len() {
        return Err(format!("{what}: {} elements, expected {}", got.len(), want.len()));
    }
    let scale = want.iter().fold(FLOOR, |max, x| max.max(x.abs()));
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(got) - want).abs() / scale;
        if off.is_nan() || off > tolerance {
            return Err(format!("{what}[{at}]: {got}, expected {want}, off by {off:.1e}"));
        }
    }
    Ok(())
}

/// Runs a case and compares value and gradients.
pub fn check(case: &Case, truth: &Truth, device: &Device, mode: OpsMode) -> Result<(), String> {
    let got = run(case, device, mode);
    let (value, gradient) = tolerance(mode.precision.dtype());
    compare(&format!("{mode:?} value"), &got.value, &truth.value, value)?;
    if got.grads.len() != truth.grads.len() {
        return Err(format!(
            "{mode:?}: {} gradients, expected {}",
            got.grads.len(),
            truth.grads.len()
        ));
    }
    for (index, (got, want)) in got.grads.iter().zip(&truth.grads).enumerate() {
        compare(&format!("{mode:?} gradient {index}"), got, want, gradient)?;
    }
    if let Op::CrossEntropy { vocab, .. } = case.op
        && got.grads[1][vocab * case.width..].iter().any(|&x| x != 0.0)
    {
        return Err(format!("{mode:?}: the gradient of padding is not zero"));
    }
    Ok(())
}

/// Checks `count` cases of each op, the same on every call.
pub fn check_small(count: u32, device: &Device, modes: &[OpsMode]) {
    let config = Config {
        cases: count,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        max_shrink_time: 5000,
        ..Config::default()
    };
    let test = |case: Case| {
        let truth = truth(&case);
        let mut checks = modes.iter().map(|&mode| check(&case, &truth, device, mode));
        checks.try_for_each(|result| result.map_err(TestCaseError::fail))
    };
    for cases in small_cases() {
        if let Err(error) = TestRunner::new(config.clone()).run(&cases, test) {
            panic!("{error}");
        }
    }
}

/// Returns cases of attention whose last tile of keys has one key.
pub fn last_key_cases() -> Vec<Case> {
    let op = Op::Attention { kv_heads: 3, sharing: 1, rate: None };
    [65, 129].into_iter().map(|time| Case::new(op.clone(), 2, time, 39)).collect()
}

/// Returns cases of attention with common head sizes, and one larger than the kernels support.
pub fn head_cases() -> Vec<Case> {
    let op = |kv_heads, sharing| Op::Attention { kv_heads, sharing, rate: Some(0.1) };
    // One head of each size has keys of its own, or shares them.
    let sizes = [(16, 2), (64, 1), (80, 2), (128, 1), (132, 1)];
    let case =
        |(size, kv_heads): (usize, usize)| Case::new(op(kv_heads, 2 / kv_heads), 1, 130, 2 * size);
    sizes.into_iter().map(case).collect()
}

/// Checks cases that are too large for central differences. Compares values with the oracle, and
/// gradients with the reference on the CPU.
pub fn check_large(cases: Vec<Case>, device: &Device, mode: OpsMode) {
    for case in cases {
        let value = case.oracle(&oracle_inputs(&case), case.mask().as_deref());
        let reference = reference(&case);
        let rounded: Vec<f32> = reference.value.iter().map(|&x| x as f32).collect();
        compare("the reference", &rounded, &value, VALUE).unwrap();
        let checked = check(&case, &Truth { value, ..reference }, device, mode);
        checked.unwrap_or_else(|error| panic!("{error} in {case:?}"));
    }
}

/// Checks cases that are too large for the oracle as well. Compares all with the reference on the CPU.
pub fn check_larger(cases: Vec<Case>, device: &Device, mode: OpsMode) {
    for case in cases {
        let checked = check(&case, &reference(&case), device, mode);
        checked.unwrap_or_else(|error| panic!("{error} in {case:?}"));
    }
}

fn reference(case: &Case) -> Truth {
    let Outcome { value, grads } = run(case, &Device::flex(), OpsMode::REFERENCE);
    let widen = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
    Truth { value: widen(value), grads: grads.into_iter().map(widen).collect() }
}

/// Checks half precision on cases with small rounding errors, with a spread of one and sums of a few
/// hundred terms.
pub fn check_half(device: &Device, mode: OpsMode) {
    check_large(long_cases(130), device, mode);
    check_large(whole_cases(), device, mode);
    check_large(vector_cases(), device, mode);
    check_large(last_key_cases(), device, mode);
    check_large(head_cases(), device, mode);
    for activation in ACTIVATIONS {
        for (bias, residual) in [(false, false), (true, true)] {
            let op = Op::Linear { inner: 64, bias, residual, activation };
            check_large(vec![Case::new(op, 1, 48, 96)], device, mode);
        }
    }
    // Several chunks of logits, the last one shorter, and a sequence that uses all positions.
    let loss = Op::CrossEntropy { vocab: 61, padding: 3, chunk: 20, ignores: true };
    let embed = Op::Embed { vocab: 7, unused: 0 };
    check_large(vec![Case::new(loss, 1, 48, 32), Case::new(embed, 1, 9, 8)], device, mode);
    // Rows whose sum and squares exceed the range of f16.
    let norm = Case::new(Op::LayerNorm { beta: true, rms: None }, 1, 48, 96);
    check_large(vec![Case { spread: 1e4, ..norm }], device, mode);
}

/// Checks the ops whose matrices or embeddings a model may store in half precision `half`. Compares
/// value and gradients in the precision of `mode`, and the value in float32, which such a model uses
/// for sampling.
pub fn check_half_weights(device: &Device, mode: OpsMode, half: FloatDType) {
    let mut cases = vec![Case::new(Op::Embed { vocab: 8, unused: 2 }, 2, 9, 8)];
    // An embedding in two shards, and rows that are read element by element.
    cases.extend([24, 39].map(|width| Case::new(Op::Embed { vocab: 51, unused: 0 }, 1, 60, width)));
    let loss = Op::CrossEntropy { vocab: 61, padding: 3, chunk: 20, ignores: true };
    cases.push(Case::new(loss, 1, 48, 32));
    for activation in ACTIVATIONS {
        for (bias, residual) in [(false, false), (true, true)] {
            let op = Op::Linear { inner: 64, bias, residual, activation };
            cases.extend([96, 35].map(|width| Case::new(op.clone(), 1, 48, width)));
        }
    }
    let (value, gradient) = tolerance(mode.precision.dtype());
    for case in cases {
        let want = case.oracle(&oracle_inputs(&case), case.mask().as_deref());
        let reference = run(&case, &Device::flex(), OpsMode::REFERENCE).grads;
        let got = run_stored(&case, device, mode, Some(half));
        compare(&format!("{case:?}"), &got.value, &want, value).unwrap();
        for (got, want) in got.grads.iter().zip(reference) {
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            compare(&format!("gradient of {case:?}"), got, &want, gradient).unwrap();
        }
        if !matches!(case.op, Op::CrossEntropy { .. }) {
            let mode = mode.in_precision(Precision::FLOAT32);
            let got = run_stored(&case, device, mode, Some(half)).value;
            compare(&format!("float32 of {case:?}"), &got, &want, value).unwrap();
        }
    }
}

/// Checks half precision on one case of each op that uses cooperative matrices, because software
/// adapters take seconds to compile such a kernel, and minutes for the largest heads.
pub fn check_matrices(device: &Device, mode: OpsMode) {
    let uses_matrices = |case: &Case| {
        matches!(
            case.op,
            Op::Linear { .. } | Op::CrossEntropy { .. } | Op::Attention { rate: Some(_), .. }
        )
    };
    check_large(long_cases(130).into_iter().filter(uses_matrices).collect(), device, mode);
    check_whole(device, mode);
    check_overflow(device, mode);
}

/// Returns the mode on GPUs of which one takes large tiles and one small ones, on drivers of which one loads
/// transposed matrices: four variants of a product of whole tiles.
pub fn tilings(mode: OpsMode) -> [OpsMode; 4] {
    [(1, false), (1, true), (1000, false), (1000, true)].map(|(multiprocessors, transposed)| {
        mode.for_driver(DriverTraits {
            multiprocessors: Some(multiprocessors),
            loads_transposed: transposed,
            ..DriverTraits::UNKNOWN
        })
    })
}

/// Checks products of whole tiles, in large tiles whose matrices are loaded transposed, and in small ones.
pub fn check_whole(device: &Device, mode: OpsMode) {
    let [_, large, small, _] = tilings(mode);
    for mode in [large, small] {
        check_large(whole_cases(), device, mode);
    }
}

/// Checks that neither the tile nor how it is staged changes a bit of a product: the order of a sum is the
/// same. A row of zeros makes tiles ragged, and adds nothing to the sums over the rows.
pub fn check_bits(device: &Device, mode: OpsMode) {
    const ROWS: usize = 256;
    const INNER: usize = 128;
    const WIDTH: usize = 384;
    let run = |rows: usize, mode: OpsMode| {
        let tensor = |seed, rows, columns| {
            let mut data = noise(seed, ROWS.min(rows) * columns);
            data.resize(rows * columns, 0.0);
            Tensor::<2>::from_data(TensorData::new(data, [rows, columns]), device)
        };
        let half = |tensor: Tensor<2>| tensor.cast(activations(mode));
        let (x, w) = (half(tensor(1, rows, INNER)), half(tensor(2, INNER, WIDTH)));
        let (bias, dy) = (tensor(3, 1, WIDTH).reshape([WIDTH]), half(tensor(4, rows, WIDTH)));
        let activation = Some(Activation::Gelu(Gelu::Tanh));
        let y = ops::linear(x.clone(), w.clone(), Some(bias), None, activation, mode);
        let grads = ops::linear_backward(dy, x, w, activation, true, mode);
        let db = grads.b.unwrap().reshape([1, WIDTH]);
        let of_rows = [y, grads.x].map(|it| it.narrow(0, 0, ROWS));
        let all = of_rows.into_iter().chain([grads.w, db]);
        all.flat_map(values).map(f32::to_bits).collect::<Vec<_>>()
    };
    let ragged = run(ROWS + 1, mode);
    for mode in tilings(mode) {
        assert!(run(ROWS, mode) == ragged, "{mode:?}");
        assert!(run(ROWS + 1, mode) == ragged, "{mode:?}, ragged");
    }
}

/// Checks that a product beyond the range of f16 becomes infinite, by which an overflow is
/// detected, and neither the largest finite value nor NaN.
pub fn check_overflow(device: &Device, mode: OpsMode) {
    for width in [5, 8] {
        let full = |value: f32| Tensor::<2>::full([width, width], value, device);
        let x = full(-256.0).cast(activations(mode));
        let y = ops::linear(x, full(256.0), None, None, None, mode);
        assert!(values(y).iter().all(|&y| y == f32::NEG_INFINITY), "{mode:?}");
    }
}
