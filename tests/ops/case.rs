//! Ops with their shapes, and the oracle of plain f64 loops.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use wgpt::config::Gelu;
use wgpt::ops::{self, Activation, AttentionShape, CrossEntropy, Dropout, OpsMode};

pub const LOSS_SCALE: f32 = 0.25;

/// An op and what decides its shapes; the output is `[batch * time, width]`, that of the loss one
/// number.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub batch: usize,
    pub time: usize,
    pub width: usize,
    /// The standard deviation of the first input.
    pub spread: f32,
    pub seed: u64,
    /// Whether the inputs and the output's gradient are transposed parts of something larger.
    pub strided: bool,
    /// The input that gets no gradient, if there are that many and one that does.
    pub frozen: usize,
}

#[derive(Clone, Debug)]
pub enum Op {
    Embed { vocab: usize, unused: usize },
    LayerNorm { beta: bool },
    Linear { inner: usize, bias: bool, residual: bool, activation: Activation },
    Attention { heads: usize, rate: Option<f32> },
    CrossEntropy { vocab: usize, padding: usize, chunk: usize },
    Dropout { rate: f32, residual: bool },
}

pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(len).collect()
}

impl Case {
    pub fn new(op: Op, batch: usize, time: usize, width: usize) -> Self {
        Self { op, batch, time, width, spread: 1.0, seed: 1, strided: false, frozen: usize::MAX }
    }

    pub fn rows(&self) -> usize {
        self.batch * self.time
    }

    pub fn ids(&self, below: usize) -> Arc<[u32]> {
        noise(!self.seed, self.rows()).iter().map(|x| x.to_bits() % below as u32).collect()
    }

    pub fn dropout(&self, rate: f32) -> Dropout {
        Dropout::new(rate, self.seed, 7, 2, 3)
    }

    pub fn inputs(&self) -> Vec<TensorData> {
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
                values[vocab * cols..].fill(1e4);
            }
            TensorData::new(values, [rows, cols])
        };
        always.into_iter().chain(optional).enumerate().map(input).collect()
    }

    pub fn apply(&self, inputs: &[Tensor<2>], mode: OpsMode) -> Tensor<2> {
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
    pub fn mask(&self) -> Option<Vec<f64>> {
        let (rate, len) = match self.op {
            Op::Attention { heads, rate } => (rate?, heads * self.time * self.time),
            Op::Dropout { rate, .. } => (rate, self.time * self.width),
            _ => return None,
        };
        let mask = mask(self.dropout(rate), self.batch, len, &Device::flex(), OpsMode::REFERENCE);
        Some(mask.into_iter().map(f64::from).collect())
    }

    pub fn oracle(&self, inputs: &[Vec<f64>], mask: Option<&[f64]>) -> Vec<f64> {
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

pub fn matrix(rows: usize, cols: usize, element: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..rows * cols).map(|at| element(at / cols, at % cols)).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|exp| exp / sum).collect()
}

/// Rows in one tensor, or, for odd numbers of them, in two.
pub fn tables(rows: Tensor<2>) -> Vec<Tensor<2>> {
    let [count, _] = rows.dims();
    let first = count / 3;
    if count % 2 == 0 || first == 0 {
        return vec![rows];
    }
    vec![rows.clone().narrow(0, 0, first), rows.narrow(0, first, count - first)]
}

pub fn activate(x: f64, activation: Activation) -> f64 {
    use std::f64::consts::{PI, SQRT_2};
    match activation {
        Activation::Identity => x,
        Activation::Gelu(Gelu::Erf) => 0.5 * x * (1.0 + libm::erf(x / SQRT_2)),
        Activation::Gelu(Gelu::Tanh) => {
            0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

pub fn mask(
    dropout: Dropout,
    batch: usize,
    len: usize,
    device: &Device,
    mode: OpsMode,
) -> Vec<f32> {
    values(ops::dropout(Tensor::ones([batch, len], device), None, 1, dropout, mode))
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.cast(FloatDType::F32).into_data().try_to_vec().unwrap()
}
