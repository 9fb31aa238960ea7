//! Every op of `wgpt::ops`, its value and its gradients, against an oracle of plain f64 loops: on
//! the CPU with both implementations and on every Vulkan adapter. The oracle has values only; its
//! gradients are central differences, so that no derivative is written down twice.

use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use wgpt::config::Gelu;
use wgpt::ops::{
    self, Activation, AdamW, AttentionShape, CrossEntropy, Dropout, GradientNorm, Moments, OpsMode,
};

const BOTH: [OpsMode; 2] = [OpsMode::Auto, OpsMode::Reference];
const VALUE: f64 = 1e-5;
const GRADIENT: f64 = 1e-4;
const LOSS_SCALE: f32 = 0.25;

/// An op and what decides its shapes; the output is `[batch * time, width]`, that of the loss one
/// number.
#[derive(Clone, Debug)]
struct Case {
    op: Op,
    batch: usize,
    time: usize,
    width: usize,
    /// The standard deviation of the first input.
    spread: f32,
    seed: u64,
    /// Whether the inputs and the output's gradient are transposed parts of something larger.
    strided: bool,
    /// The input that gets no gradient, if there are that many and one that does.
    frozen: usize,
}

#[derive(Clone, Debug)]
enum Op {
    Embed { vocab: usize, unused: usize },
    LayerNorm { beta: bool },
    Linear { inner: usize, bias: bool, residual: bool, activation: Activation },
    Attention { heads: usize, rate: Option<f32> },
    CrossEntropy { vocab: usize, padding: usize, chunk: usize },
    Dropout { rate: f32, residual: bool },
}

fn noise(seed: u64, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(len).collect()
}

impl Case {
    fn new(op: Op, batch: usize, time: usize, width: usize) -> Self {
        Self { op, batch, time, width, spread: 1.0, seed: 1, strided: false, frozen: usize::MAX }
    }

    fn rows(&self) -> usize {
        self.batch * self.time
    }

    fn ids(&self, below: usize) -> Arc<[u32]> {
        noise(!self.seed, self.rows()).iter().map(|x| x.to_bits() % below as u32).collect()
    }

    fn dropout(&self, rate: f32) -> Dropout {
        Dropout::new(rate, self.seed, 7, 2, 3)
    }

    fn inputs(&self) -> Vec<TensorData> {
        let (n, c) = (self.rows(), self.width);
        let (always, optional) = match self.op {
            Op::Embed { vocab, unused } => (vec![[vocab, c], [self.time + unused, c]], vec![]),
            Op::LayerNorm { beta } => (vec![[n, c], [1, c]], vec![(beta, [1, c])]),
            Op::Linear { inner, bias, residual, .. } => {
                (vec![[n, inner], [inner, c]], vec![(bias, [1, c]), (residual, [n, c])])
            }
            Op::Attention { .. } => (vec![[n, 3 * c]], vec![]),
            Op::CrossEntropy { vocab, padding, .. } => (vec![[n, c], [vocab + padding, c]], vec![]),
            Op::Dropout { residual, .. } => (vec![[n, c]], vec![(residual, [n, c])]),
        };
        let optional = optional.into_iter().filter_map(|(there, shape)| there.then_some(shape));
        let input = |(index, [rows, cols]): (usize, [usize; 2])| {
            let spread = if index == 0 { self.spread } else { 1.0 };
            let mut values = noise(self.seed + index as u64, rows * cols);
            // Large inputs are whole numbers: f32 then holds large logits exactly, and what is
            // compared is the softmax, not the rounding of its argument.
            let whole = self.spread > 4.0;
            values.iter_mut().for_each(|x| *x *= spread);
            values.iter_mut().filter(|_| whole).for_each(|x| *x = x.round());
            if let (Op::CrossEntropy { vocab, .. }, 1) = (&self.op, index) {
                // Padding that took any part would drown the loss.
                values[vocab * cols..].fill(1e30);
            }
            TensorData::new(values, [rows, cols])
        };
        always.into_iter().chain(optional).enumerate().map(input).collect()
    }

    fn apply(&self, inputs: &[Tensor<2>], mode: OpsMode) -> Tensor<2> {
        let mut inputs = inputs.iter().cloned();
        let mut next = || inputs.next().expect("what `inputs` made");
        let vector = |x: Tensor<2>| x.flatten::<1>(0, 1);
        let Case { batch, time, .. } = *self;
        match self.op {
            Op::Embed { vocab, .. } => {
                ops::embed(&tables(next()), next(), self.ids(vocab), time, mode)
            }
            Op::LayerNorm { beta } => {
                ops::layer_norm(next(), vector(next()), beta.then(|| vector(next())), mode)
            }
            Op::Linear { bias, residual, activation, .. } => {
                let (x, w) = (next(), next());
                let bias = bias.then(|| vector(next()));
                ops::linear(x, w, bias, residual.then(next), activation, mode)
            }
            Op::Attention { heads, rate } => {
                let dropout = rate.map(|rate| self.dropout(rate));
                ops::attention(next(), AttentionShape { batch, time, heads, dropout }, mode)
            }
            Op::CrossEntropy { vocab, chunk, .. } => {
                let loss = CrossEntropy { vocab, chunk, scale: LOSS_SCALE };
                let ids = self.ids(vocab);
                ops::linear_cross_entropy(next(), tables(next()), ids, loss, mode).reshape([1, 1])
            }
            Op::Dropout { rate, residual } => {
                ops::dropout(next(), residual.then(&mut next), time, self.dropout(rate), mode)
            }
        }
    }

    /// The dropout factors, which the oracle takes as given: their own tests are below.
    fn mask(&self) -> Option<Vec<f64>> {
        let (rate, len) = match self.op {
            Op::Attention { heads, rate } => (rate?, heads * self.time * self.time),
            Op::Dropout { rate, .. } => (rate, self.time * self.width),
            _ => return None,
        };
        let mask = mask(self.dropout(rate), self.batch, len, &Device::flex(), OpsMode::Reference);
        Some(mask.into_iter().map(f64::from).collect())
    }

    fn oracle(&self, inputs: &[Vec<f64>], mask: Option<&[f64]>) -> Vec<f64> {
        let (n, c, time) = (self.rows(), self.width, self.time);
        let factor = |index: usize| mask.map_or(1.0, |mask| mask[index]);
        let x = &inputs[0];
        match self.op {
            Op::Embed { vocab, .. } => {
                let ids = self.ids(vocab);
                matrix(n, c, |r, i| x[ids[r] as usize * c + i] + inputs[1][r % time * c + i])
            }
            Op::LayerNorm { beta } => matrix(n, c, |r, i| {
                let row = &x[r * c..(r + 1) * c];
                let mean = row.iter().sum::<f64>() / c as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
                let scaled = (row[i] - mean) / (variance + 1e-5).sqrt() * inputs[1][i];
                scaled + if beta { inputs[2][i] } else { 0.0 }
            }),
            Op::Linear { inner, bias, residual, activation } => matrix(n, c, |r, o| {
                let activated = |k: usize| activate(x[r * inner + k], activation);
                let product: f64 = (0..inner).map(|k| activated(k) * inputs[1][k * c + o]).sum();
                let bias = if bias { inputs[2][o] } else { 0.0 };
                let residual = if residual { inputs[inputs.len() - 1][r * c + o] } else { 0.0 };
                product + bias + residual
            }),
            Op::Attention { heads, .. } => {
                let size = c / heads;
                let mut y = vec![0.0; n * c];
                for index in 0..self.batch * heads * time {
                    let (sequence, head, query) =
                        (index / time / heads, index / time % heads, index % time);
                    // Part 0 is the query, 1 the key and 2 the value of position t.
                    let part = |t: usize, part: usize| {
                        &x[((sequence * time + t) * 3 + part) * c + head * size..][..size]
                    };
                    let score = |key| dot(part(query, 0), part(key, 1)) / (size as f64).sqrt();
                    let p = softmax((0..=query).map(score).collect());
                    let y = &mut y[(sequence * time + query) * c + head * size..][..size];
                    for (key, p) in p.iter().enumerate() {
                        let p = p * factor(index * time + key);
                        y.iter_mut().zip(part(key, 2)).for_each(|(y, v)| *y += p * v);
                    }
                }
                y
            }
            Op::CrossEntropy { vocab, .. } => {
                let ids = self.ids(vocab);
                let loss = |r: usize| {
                    let logit = |id: usize| dot(&x[r * c..][..c], &inputs[1][id * c..][..c]);
                    -softmax((0..vocab).map(logit).collect())[ids[r] as usize].ln()
                };
                vec![(0..n).map(loss).sum::<f64>() * f64::from(LOSS_SCALE)]
            }
            Op::Dropout { residual, .. } => matrix(n, c, |r, i| {
                let at = r * c + i;
                x[at] * factor(at) + if residual { inputs[1][at] } else { 0.0 }
            }),
        }
    }
}

fn matrix(rows: usize, cols: usize, element: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..rows * cols).map(|at| element(at / cols, at % cols)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|exp| exp / sum).collect()
}

/// Rows in one tensor, or, for odd numbers of them, in two.
fn tables(rows: Tensor<2>) -> Vec<Tensor<2>> {
    let [count, _] = rows.dims();
    let first = count / 3;
    if count % 2 == 0 || first == 0 {
        return vec![rows];
    }
    vec![rows.clone().narrow(0, 0, first), rows.narrow(0, first, count - first)]
}

fn activate(x: f64, activation: Activation) -> f64 {
    use std::f64::consts::{PI, SQRT_2};
    match activation {
        Activation::Identity => x,
        Activation::Gelu(Gelu::Erf) => 0.5 * x * (1.0 + libm::erf(x / SQRT_2)),
        Activation::Gelu(Gelu::Tanh) => {
            0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

fn mask(dropout: Dropout, batch: usize, len: usize, device: &Device, mode: OpsMode) -> Vec<f32> {
    values(ops::dropout(Tensor::ones([batch, len], device), None, 1, dropout, mode))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// What an op gave: its output with and without autodiff, and the gradient of `sum(output * r)`
/// for every input but the frozen one.
struct Outcome {
    value: Vec<f32>,
    untracked: Vec<f32>,
    grads: Vec<Option<Vec<f32>>>,
}

/// `r`, the random functional of the output.
fn functional(len: usize) -> Vec<f32> {
    noise(u64::MAX, len)
}

/// The same matrix, as a transposed view of a part of a buffer.
fn strided(x: Tensor<2>) -> Tensor<2> {
    let [rows, cols] = x.dims();
    let outside = Tensor::full([1, rows], f32::NAN, &x.device());
    Tensor::cat(vec![outside, x.transpose()], 0).slice([1..cols + 1, 0..rows]).transpose()
}

/// Leaves memory full of NaN where the next tensors will be, so that an output that a kernel does not
/// write shows.
fn poison(device: &Device) {
    let tensors = [64, 1024, 16_384, 65_536].map(|len| Tensor::<1>::full([len], f32::NAN, device));
    for tensor in tensors {
        // Read, so that it was written before it is given back.
        assert!(values(tensor.narrow(0, 0, 1))[0].is_nan());
    }
}

fn run(case: &Case, device: &Device, mode: OpsMode) -> Outcome {
    poison(device);
    let device = device.clone().autodiff();
    let view = |x: Tensor<2>| if case.strided { strided(x) } else { x };
    let inputs = case.inputs();
    let several = inputs.len() > 1;
    let leaf = |(index, input)| {
        let leaf = Tensor::<2>::from_data(input, &device);
        if several && index == case.frozen { leaf } else { leaf.require_grad() }
    };
    let leaves: Vec<_> = inputs.into_iter().enumerate().map(leaf).collect();
    let tracked: Vec<_> = leaves.iter().map(|leaf| view(leaf.clone())).collect();
    let untracked: Vec<_> = tracked.iter().map(|x| x.clone().inner()).collect();
    let y = case.apply(&tracked, mode);
    let r = functional(y.dims().iter().product());
    let r = Tensor::from_data(TensorData::new(r, y.dims()), &device);
    let grads = (view(y.clone()) * view(r)).sum().backward();
    Outcome {
        value: values(y.inner()),
        untracked: values(case.apply(&untracked, mode)),
        grads: leaves.iter().map(|leaf| leaf.grad(&grads).map(values)).collect(),
    }
}

/// What is right for a case.
struct Truth {
    value: Vec<f64>,
    grads: Vec<Vec<f64>>,
}

fn oracle_inputs(case: &Case) -> Vec<Vec<f64>> {
    case.inputs().iter().map(|input| input.iter().collect()).collect()
}

fn truth(case: &Case) -> Truth {
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

/// Fails where an element of `got` is off by more than `tolerance` times the largest of `want`, or
/// times `FLOOR` where all are smaller: a sum that cancels is as exact as its terms.
fn compare(what: &str, got: &[f32], want: &[f64], tolerance: f64) -> Result<(), String> {
    const FLOOR: f64 = 0.1;
    if got.len() != want.len() {
        return Err(format!("{what}: {} elements for {}", got.len(), want.len()));
    }
    let scale = want.iter().fold(FLOOR, |max, x| max.max(x.abs()));
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(got) - want).abs() / scale;
        if off.is_nan() || off > tolerance {
            return Err(format!("{what}[{at}]: {got} for {want}, off by {off:.1e}"));
        }
    }
    Ok(())
}

fn check(case: &Case, truth: &Truth, device: &Device, mode: OpsMode) -> Result<(), String> {
    let got = run(case, device, mode);
    compare(&format!("{mode:?} value"), &got.value, &truth.value, VALUE)?;
    compare(&format!("{mode:?} value without autodiff"), &got.untracked, &truth.value, VALUE)?;
    for (index, (got, want)) in got.grads.iter().zip(&truth.grads).enumerate() {
        match got {
            Some(got) => compare(&format!("{mode:?} gradient {index}"), got, want, GRADIENT)?,
            None if index == case.frozen => {}
            None => return Err(format!("{mode:?} gradient {index} is missing")),
        }
    }
    if let (Op::CrossEntropy { vocab, .. }, Some(grad)) = (&case.op, got.grads.last().unwrap())
        && grad[vocab * case.width..].iter().any(|&x| x != 0.0)
    {
        return Err(format!("{mode:?}: padding has a gradient"));
    }
    Ok(())
}

fn cases(op: impl Strategy<Value = Op>, spreads: &'static [f32]) -> impl Strategy<Value = Case> {
    let time = prop_oneof![Just(1usize), 2..=7usize];
    let sizes = (1..=3usize, time, 1..=20usize);
    (op, sizes, select(spreads), 0..1000u64, any::<bool>(), 0..6usize).prop_map(
        |(op, (batch, time, mut width), spread, seed, strided, frozen)| {
            if let Op::Attention { heads, .. } = op {
                width *= heads;
            }
            Case { op, batch, time, width, spread, seed, strided, frozen }
        },
    )
}

const ACTIVATIONS: [Activation; 3] =
    [Activation::Identity, Activation::Gelu(Gelu::Tanh), Activation::Gelu(Gelu::Erf)];

fn small_cases() -> [BoxedStrategy<Case>; 6] {
    let (rates, flag) = (select(&[None, Some(0.0), Some(0.3)]), any::<bool>());
    let embed = (1..=9usize, 0..=3usize).prop_map(|(vocab, unused)| Op::Embed { vocab, unused });
    let norm = flag.prop_map(|beta| Op::LayerNorm { beta });
    let linear = (1..=20usize, flag, flag, select(&ACTIVATIONS)).prop_map(
        |(inner, bias, residual, activation)| Op::Linear { inner, bias, residual, activation },
    );
    let attention = (1..=3usize, rates).prop_map(|(heads, rate)| Op::Attention { heads, rate });
    let loss = (1..=20usize, 0..=5usize, 1..=25usize)
        .prop_map(|(vocab, padding, chunk)| Op::CrossEntropy { vocab, padding, chunk });
    let dropout = (select(&[0.0, 0.3]), flag);
    let dropout = dropout.prop_map(|(rate, residual)| Op::Dropout { rate, residual });
    [
        cases(embed, &[1.0]).boxed(),
        // Epsilon counts where the spread is small.
        cases(norm, &[0.01, 1.0, 30.0]).boxed(),
        // A larger spread reaches both tails of GELU.
        cases(linear, &[1.0, 3.0]).boxed(),
        cases(attention, &[1.0]).boxed(),
        // A large spread gives logits that overflow `exp`.
        cases(loss, &[1.0, 30.0]).boxed(),
        cases(dropout, &[1.0]).boxed(),
    ]
}

/// Tries `count` cases of each op, the same on every call.
fn check_small(count: u32, device: &Device, modes: &[OpsMode]) {
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

#[test]
fn small_shapes() {
    check_small(100, &Device::flex(), &BOTH);
}

/// Scores in the thousands, where a softmax that does not subtract the largest overflows.
#[test]
fn large_attention_scores_stay_finite() {
    let op = Op::Attention { heads: 2, rate: None };
    // Heads of 4, so that the scale is a half and the scores are exact.
    let case = Case { spread: 30.0, ..Case::new(op, 2, 5, 8) };
    let truth = truth(&case);
    for mode in BOTH {
        check(&case, &truth, &Device::flex(), mode).unwrap();
    }
}

/// Every op on two sequences of this length.
fn long_cases(time: usize) -> Vec<Case> {
    let activation = Activation::Gelu(Gelu::Tanh);
    let ops = [
        Op::Embed { vocab: 51, unused: 3 },
        Op::LayerNorm { beta: true },
        Op::Linear { inner: 35, bias: true, residual: true, activation },
        Op::Attention { heads: 3, rate: None },
        Op::Attention { heads: 3, rate: Some(0.3) },
        Op::CrossEntropy { vocab: 100, padding: 3, chunk: 100 },
        Op::Dropout { rate: 0.3, residual: true },
    ];
    ops.into_iter().map(|op| Case::new(op, 2, time, 39)).collect()
}

/// Heads of the sizes that models have, and one larger than the kernels take.
fn head_cases() -> Vec<Case> {
    let op = Op::Attention { heads: 2, rate: Some(0.1) };
    let sizes = [16, 64, 132];
    sizes.into_iter().map(|size| Case::new(op.clone(), 1, 37, 2 * size)).collect()
}

/// The values against the oracle, the gradients of `mode` against those of the reference on the
/// CPU: of cases too large for the oracle's differences.
fn check_large(cases: Vec<Case>, device: &Device, mode: OpsMode) {
    for case in cases {
        let value = case.oracle(&oracle_inputs(&case), case.mask().as_deref());
        let reference = run(&case, &Device::flex(), OpsMode::Reference);
        compare("the reference", &reference.value, &value, VALUE).unwrap();
        let widen = |grad: Vec<f32>| grad.into_iter().map(f64::from).collect();
        let grads = reference.grads.into_iter().flatten().map(widen).collect();
        let checked = check(&case, &Truth { value, grads }, device, mode);
        checked.unwrap_or_else(|error| panic!("{error} in {case:?}"));
    }
}

/// Across the reference's blocks of 128 queries.
#[test]
fn long_sequences() {
    for time in [130, 257] {
        check_large(long_cases(time), &Device::flex(), OpsMode::Auto);
    }
}

/// The norm of two gradients and its clip factor, then `w`, `m` and `v` after three updates.
fn optimize(len: usize, device: &Device, mode: OpsMode) -> [Vec<f32>; 5] {
    let tensor = |values: Vec<f32>| Tensor::<1>::from_data(values.as_slice(), device);
    let mut w = tensor(noise(0, len));
    let mut moments = Moments { m: tensor(vec![0.0; len]), v: tensor(vec![0.0; len]) };
    for step in 1..=3 {
        let scalars = AdamW::new(step, 0.1, 0.2, 0.9, 0.95, 1e-3);
        let (grad, clip) = (tensor(noise(step, len)), tensor(vec![0.5]));
        (w, moments) = ops::adamw(w, grad, moments, clip, scalars, mode);
    }
    // Of two tensors, the second as long as a span and one.
    let grads = [tensor(noise(1, len)), tensor(noise(2, 16_385))];
    let GradientNorm { norm, clip } = ops::gradient_norm(&grads, 1.0, mode);
    [norm, clip, w, moments.m, moments.v].map(values)
}

fn optimize_truth(len: usize) -> [Vec<f64>; 5] {
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

fn check_optimizer(device: &Device, mode: OpsMode) {
    // A million is more than one invocation of a software Vulkan can loop over.
    for len in [1, 17, 40_000, 1_000_000] {
        let results = optimize(len, device, mode).into_iter().zip(optimize_truth(len));
        for ((got, want), what) in results.zip(["norm", "clip", "w", "m", "v"]) {
            compare(&format!("{mode:?} {what} of {len}"), &got, &want, VALUE).unwrap();
        }
    }
}

#[test]
fn optimizer() {
    for mode in BOTH {
        check_optimizer(&Device::flex(), mode);
    }
}

/// Whether the count is what chance gives. The masks are fixed: a test that passes stays so.
fn within_four_standard_errors(what: &str, hits: usize, of: usize, share: f64) {
    let error = (share * (1.0 - share) * of as f64).sqrt();
    let off = (hits as f64 - share * of as f64).abs();
    assert!(off <= 4.0 * error, "{what}: {hits} of {of} for a share of {share}");
}

#[test]
fn dropout_keeps_its_share_and_scales_it() {
    const LEN: usize = 100_000;
    for rate in [0.0f32, 0.1, 0.3, 0.5, 0.9] {
        let dropout = Dropout::new(rate, 1, 2, 3, 4);
        let [auto, reference] = BOTH.map(|mode| mask(dropout, 3, LEN, &Device::flex(), mode));
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
        mask(dropout, 1, LEN, &Device::flex(), OpsMode::Auto)
    };
    let base = draw(1, 2, 3, 4);
    assert_eq!(base, draw(1, 2, 3, 4));
    let others = [draw(5, 2, 3, 4), draw(1, 3, 3, 4), draw(1, 2, 4, 4), draw(1, 2, 3, 5)];
    for (part, other) in ["seed", "step", "site", "sequence"].iter().zip(&others) {
        let different = base.iter().zip(other).filter(|(a, b)| a != b).count();
        within_four_standard_errors(part, different, LEN, 2.0 * 0.3 * 0.7);
    }
}

/// A step must not depend on how its sequences were cut into micro-batches.
#[test]
fn masks_follow_the_sequence_through_micro_batches() {
    let (batch, time, width) = (3, 5, 6);
    let qkv = noise(1, batch * time * 3 * width);
    let qkv = TensorData::new(qkv, [batch * time, 3 * width]);
    let qkv = Tensor::<2>::from_data(qkv, &Device::flex());
    for mode in BOTH {
        let both = |qkv: Tensor<2>, batch, first| {
            let dropout = Dropout::new(0.3, 1, 2, 3, first);
            let shape = AttentionShape { batch, time, heads: 2, dropout: Some(dropout) };
            let dropped = ops::dropout(qkv.clone(), None, time, dropout, mode);
            [dropped, ops::attention(qkv, shape, mode)].map(values)
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
            let Outcome { value, untracked, grads } = run(&case, &device, OpsMode::Auto);
            [value, untracked].into_iter().chain(grads.into_iter().flatten())
        });
        let all = ops.chain(optimize(100_000, &device, OpsMode::Auto));
        all.map(|values| values.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
    };
    let first = all();
    assert!(first == all(), "a second run gives other bits");
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(first == pool.install(all), "{threads} threads give other bits");
    }
}

/// The devices of a backend. There is at least one.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn devices(backend: wgpt::gpu::Backend) -> Vec<Device> {
    use wgpt::gpu::{self, DeviceChoice};
    let infos: Vec<_> =
        gpu::devices().into_iter().filter(|info| info.id.backend == backend).collect();
    assert!(
        !infos.is_empty(),
        "no {backend} device: install a driver; for Vulkan, mesa-vulkan-drivers has one in software"
    );
    let open = |info: gpu::DeviceInfo| {
        eprintln!("{}: {}", info.id, info.name);
        gpu::open(DeviceChoice::Named(info.id)).unwrap().device
    };
    infos.into_iter().map(open).collect()
}

/// Compares every op in this mode with the oracle.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn check_kernels(device: &Device, mode: OpsMode) {
    check_small(20, device, &[mode]);
    check_large(long_cases(130), device, mode);
    check_large(head_cases(), device, mode);
    check_optimizer(device, mode);
    let dropout = Dropout::new(0.3, 1, 2, 3, 4);
    let on_the_cpu = mask(dropout, 2, 999, &Device::flex(), OpsMode::Auto);
    let there = mask(dropout, 2, 999, device, mode);
    assert_eq!(there, on_the_cpu, "{mode:?}: the mask differs from the CPU's");
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle() {
    for device in devices(wgpt::gpu::Backend::Vulkan) {
        for mode in [OpsMode::Auto, OpsMode::Wide] {
            check_kernels(&device, mode);
        }
    }
}

/// The kernels for CUDA, where there may be no such card.
#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle_with_cube_kernels() {
    for device in devices(wgpt::gpu::Backend::Vulkan) {
        check_kernels(&device, OpsMode::Cube);
    }
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn every_cuda_card_matches_the_oracle() {
    for device in devices(wgpt::gpu::Backend::Cuda) {
        check_kernels(&device, OpsMode::Auto);
    }
}

/// No sum's order is left to chance.
#[cfg(feature = "wgpu")]
#[test]
fn cube_kernels_give_the_same_bits_again() {
    for device in devices(wgpt::gpu::Backend::Vulkan) {
        let all = || {
            let ops = long_cases(130).into_iter().flat_map(|case| {
                let Outcome { value, untracked, grads } = run(&case, &device, OpsMode::Cube);
                [value, untracked].into_iter().chain(grads.into_iter().flatten())
            });
            let all = ops.chain(optimize(100_000, &device, OpsMode::Cube));
            all.map(|x| x.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
        };
        assert!(all() == all(), "a second run gives other bits");
    }
}
