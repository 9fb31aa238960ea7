//! Test cases of all ops, and the oracle that computes their values in plain f64 loops.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;
use proptest::sample::select;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use wgpt::config::{Gelu, RopeScaling};
use wgpt::ops::{
    self, Activation, AttentionShape, CrossEntropy, Dropout, HeadNorms, NormForm, OpsMode,
    RotaryShape,
};

pub const LOSS_SCALE: f32 = 0.25;

/// An op and its shapes. The output is `[batch * time, width]`, and `[1, 1]` for the loss. A loss that
/// `ignores` has rows without a target. The width of attention's output and of a rotation is a multiple
/// of that of a head.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub batch: usize,
    pub time: usize,
    pub width: usize,
    /// The standard deviation of the first input.
    pub spread: f32,
    pub seed: u64,
    /// True if the inputs and the output's gradient are transposed views of larger tensors.
    pub strided: bool,
}

#[derive(Clone, Debug)]
pub enum Op {
    Embed {
        vocab: usize,
        unused: usize,
    },
    /// With `rms` as epsilon, a norm without mean.
    LayerNorm {
        beta: bool,
        rms: Option<f32>,
    },
    Linear {
        inner: usize,
        bias: bool,
        residual: bool,
        activation: Option<Activation>,
    },
    /// `sharing` heads of queries share each of `kv_heads` heads of keys and values.
    Attention {
        kv_heads: usize,
        sharing: usize,
        rate: Option<f32>,
    },
    Rotary {
        kv_heads: usize,
        sharing: usize,
        norms: bool,
    },
    /// A linear layer with an adapter, `activation(x) (w + a b)`.
    Adapted {
        inner: usize,
        rank: usize,
        activation: Option<Activation>,
    },
    /// An activation by itself.
    Activated {
        activation: Activation,
    },
    CrossEntropy {
        vocab: usize,
        padding: usize,
        chunk: usize,
        ignores: bool,
    },
    Dropout {
        rate: f32,
        residual: bool,
    },
}

pub const THETA: f32 = 50.0;
pub const EPS: f32 = 1e-3;

/// Returns standard normal values.
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(len).collect()
}

impl Case {
    pub fn new(op: Op, batch: usize, time: usize, width: usize) -> Self {
        Self { op, batch, time, width, spread: 1.0, seed: 1, strided: false }
    }

    pub fn rows(&self) -> usize {
        self.batch * self.time
    }

    /// Returns a token id below `below` for each row.
    pub fn ids(&self, below: usize) -> Arc<[u32]> {
        noise(!self.seed, self.rows()).iter().map(|x| x.to_bits() % below as u32).collect()
    }

    /// Returns the target of each row.
    fn targets(&self, vocab: usize, ignores: bool) -> Arc<[u32]> {
        let ids = self.ids(vocab);
        let target = |(row, &id): (usize, &u32)| {
            if ignores && row % 3 != 1 { ops::IGNORED } else { id }
        };
        ids.iter().enumerate().map(target).collect()
    }

    /// Returns the size of a head of attention or of a rotation.
    fn head_size(&self) -> usize {
        match self.op {
            Op::Attention { kv_heads, sharing, .. } => self.width / (kv_heads * sharing),
            Op::Rotary { kv_heads, sharing, .. } => self.width / (kv_heads * (sharing + 2)),
            _ => self.width,
        }
    }

    pub fn dropout(&self, rate: f32) -> Dropout {
        Dropout::new(rate, self.seed, 7, 2, 3)
    }

    /// Returns random inputs, as matrices.
    pub fn inputs(&self) -> Vec<TensorData> {
        let (n, c) = (self.rows(), self.width);
        let (always, optional) = match self.op {
            Op::Embed { vocab, unused } => (vec![[vocab, c], [self.time + unused, c]], vec![]),
            Op::LayerNorm { beta, .. } => (vec![[n, c], [1, c]], vec![(beta, [1, c])]),
            Op::Linear { inner, bias, residual, activation } => {
                let gated = activation == Some(Activation::SwiGlu);
                let x = [n, if gated { 2 * inner } else { inner }];
                (vec![x, [inner, c]], vec![(bias, [1, c]), (residual, [n, c])])
            }
            Op::Adapted { inner, rank, activation } => {
                let gated = activation == Some(Activation::SwiGlu);
                let x = [n, if gated { 2 * inner } else { inner }];
                (vec![x, [inner, c], [inner, rank], [rank, c]], vec![])
            }
            Op::Activated { activation } => {
                let gated = activation == Activation::SwiGlu;
                (vec![[n, if gated { 2 * c } else { c }]], vec![])
            }
            Op::Attention { sharing, .. } => (vec![[n, c + 2 * (c / sharing)]], vec![]),
            Op::Rotary { norms, .. } => {
                let size = self.head_size();
                (vec![[n, c]], vec![(norms, [1, size]), (norms, [1, size])])
            }
            Op::CrossEntropy { vocab, padding, .. } => (vec![[n, c], [vocab + padding, c]], vec![]),
            Op::Dropout { residual, .. } => (vec![[n, c]], vec![(residual, [n, c])]),
        };
        let optional = optional.into_iter().filter_map(|(present, shape)| present.then_some(shape));
        let input = |(index, [rows, cols]): (usize, [usize; 2])| {
            let spread = if index == 0 { self.spread } else { 1.0 };
            let mut values = noise(self.seed + index as u64, rows * cols);
            // Large inputs are integers, so that f32 holds large logits exactly: the test compares
            // softmaxes, not the rounding of their arguments.
            let whole = self.spread > 4.0;
            values.iter_mut().for_each(|x| *x *= spread);
            values.iter_mut().filter(|_| whole).for_each(|x| *x = x.round());
            if let (Op::CrossEntropy { vocab, .. }, 1) = (&self.op, index) {
                // If padding had any influence, it would dominate the loss.
                values[vocab * cols..].fill(1e4);
            }
            TensorData::new(values, [rows, cols])
        };
        always.into_iter().chain(optional).enumerate().map(input).collect()
    }

    /// Returns the output, and the gradient of `sum(output * dy)` for every input. For the loss,
    /// `dy` is one number.
    pub fn run(
        &self,
        inputs: &[Tensor<2>],
        dy: Tensor<2>,
        mode: OpsMode,
    ) -> (Tensor<2>, Vec<Tensor<2>>) {
        let mut inputs = inputs.iter().cloned();
        let mut next = || inputs.next().expect("`inputs` returns a tensor for every operand");
        let vector = |x: Tensor<2>| x.flatten::<1>(0, 1);
        let row = |x: Tensor<1>| x.unsqueeze::<2>();
        let Case { batch, time, .. } = *self;
        match self.op {
            Op::Embed { vocab, .. } => {
                let (wte, wpe) = (shards(next()), next());
                let y = ops::embed(&wte, wpe.clone(), self.ids(vocab), time, mode);
                let zeros = wte.iter().map(|shard| Tensor::zeros(shard.dims(), &shard.device()));
                let zeros = zeros.collect();
                let positions = wpe.dims()[0];
                let ids = self.ids(vocab);
                let (dwte, dwpe) = ops::embed_backward(dy, zeros, &ids, time, positions, mode);
                (y, vec![Tensor::cat(dwte, 0), dwpe])
            }
            Op::LayerNorm { beta, rms } => {
                let (x, gamma) = (next(), vector(next()));
                let shift = beta.then(|| vector(next()));
                let form = rms.map_or(NormForm::Layer, |eps| NormForm::Rms { eps });
                let (y, statistics) = ops::layer_norm(x.clone(), gamma.clone(), shift, form, mode);
                let (dx, partial) =
                    ops::layer_norm_backward(dy, x, gamma, statistics, None, form, mode);
                let (dgamma, dbeta) =
                    ops::layer_norm_weight_gradients(vec![partial], mode).remove(0);
                let shift = beta.then(|| row(dbeta));
                (y, [dx, row(dgamma)].into_iter().chain(shift).collect())
            }
            Op::Linear { bias, residual, activation, .. } => {
                let (x, w) = (next(), next());
                let b = bias.then(|| vector(next()));
                let added = residual.then(next);
                let y = ops::linear(x.clone(), w.clone(), b, added, activation, mode);
                let grads = ops::linear_backward(dy.clone(), x, w, activation, bias, mode);
                assert_eq!(grads.b.is_some(), bias);
                let optional = grads.b.map(row).into_iter().chain(residual.then_some(dy));
                (y, [grads.x, grads.w].into_iter().chain(optional).collect())
            }
            Op::Adapted { activation, .. } => {
                let (x, w, a, b) = (next(), next(), next(), next());
                let frozen = ops::linear(x.clone(), w.clone(), None, None, activation, mode);
                let u = ops::linear(x.clone(), a.clone(), None, None, activation, mode);
                let y = ops::linear(u.clone(), b.clone(), None, Some(frozen), None, mode);
                let of_b = ops::linear_backward(dy.clone(), u, b, None, false, mode);
                let of_w =
                    ops::linear_backward(dy.clone(), x.clone(), w.clone(), activation, false, mode);
                let backward = |adapter| {
                    let (dy, x, w) = (dy.clone(), x.clone(), w.clone());
                    ops::frozen_linear_backward(dy, x, w, adapter, activation, mode)
                };
                let frozen = backward(None);
                assert!(frozen.a.is_none());
                assert_eq!(values(frozen.x), values(of_w.x), "{mode:?} without an adapter");
                let grads = backward(Some((of_b.x, a)));
                (y, vec![grads.x, of_w.w, grads.a.expect("an adapter"), of_b.w])
            }
            Op::Attention { kv_heads, sharing, rate } => {
                let dropout = rate.map(|rate| self.dropout(rate));
                let heads = kv_heads * sharing;
                let shape = AttentionShape { batch, time, heads, kv_heads, dropout };
                let qkv = next();
                let (y, log_sum_exp) = ops::attention(qkv.clone(), shape, mode);
                let dqkv = ops::attention_backward(dy, qkv, y.clone(), log_sum_exp, shape, mode);
                (y, vec![dqkv])
            }
            Op::Rotary { kv_heads, sharing, norms } => {
                let heads = kv_heads * sharing;
                let shape = RotaryShape {
                    time,
                    heads,
                    kv_heads,
                    theta: THETA,
                    scaling: RopeScaling::None,
                    eps: EPS,
                };
                let qkv = next();
                let norms = norms.then(|| HeadNorms { q: vector(next()), k: vector(next()) });
                let y = ops::rotary(qkv.clone(), norms.clone(), shape, mode);
                // In place, and where another tensor holds the input.
                let in_place = ops::rotary(qkv.clone() * 1.0, norms.clone(), shape, mode);
                assert_eq!(values(in_place), values(y.clone()), "{mode:?} in place");
                let held = dy.clone();
                let qkv = norms.is_some().then_some(qkv);
                let (dqkv, partial) =
                    ops::rotary_backward(dy.clone(), qkv, norms.clone(), shape, mode);
                assert_eq!(values(held), values(dy), "{mode:?}: a shared tensor is kept");
                let sums = partial
                    .map(|sums| ops::layer_norm_weight_gradients(vec![sums], mode).remove(0));
                assert_eq!(sums.is_some(), norms.is_some());
                let sums = sums.into_iter().flat_map(|(q, k)| [row(q), row(k)]);
                (y, [dqkv].into_iter().chain(sums).collect())
            }
            Op::CrossEntropy { vocab, chunk, ignores, .. } => {
                let loss = CrossEntropy { vocab, chunk, scale: LOSS_SCALE };
                let (x, wte, ids) = (next(), shards(next()), self.targets(vocab, ignores));
                let alone =
                    ops::linear_cross_entropy(x.clone(), wte.clone(), ids.clone(), loss, mode);
                let alone = values(alone);
                // The loss has its scale, or a loss scale in its place, which is then divided out.
                let state = Tensor::from_data([16.0 * LOSS_SCALE, 0.0, 0.0, 0.0], &x.device());
                let [(value, grads), (_, scaled)] = [None, Some(state)].map(|loss_scale| {
                    let factor = if loss_scale.is_some() { 1.0 / 16.0 } else { 1.0 };
                    let gradients = |trained| {
                        let (x, wte, ids) = (x.clone(), wte.clone(), ids.clone());
                        let scale = loss_scale.clone();
                        ops::linear_cross_entropy_gradients(x, wte, scale, ids, loss, trained, mode)
                    };
                    let (value, grads) = gradients(true);
                    assert_eq!(values(value.clone()), alone, "losses differ");
                    let (frozen_value, frozen) = gradients(false);
                    assert_eq!(values(frozen_value), alone, "losses differ");
                    assert_eq!(values(frozen.x), values(grads.x.clone()), "gradients differ");
                    assert!(frozen.wte.is_empty());
                    let grads = [grads.x, Tensor::cat(grads.wte, 0)];
                    (value, grads.map(|grad| grad.cast(FloatDType::F32) * dy.clone() * factor))
                });
                for (grad, scaled) in grads.iter().zip(scaled) {
                    let off = values((grad.clone() - scaled).abs().max())[0];
                    let largest = values(grad.clone().abs().max())[0];
                    assert!(off <= 2e-3 * largest, "a loss scale is off by {off} of {largest}");
                }
                (value.reshape([1, 1]), grads.into())
            }
            Op::Activated { activation } => {
                let x = next();
                let y = ops::activate(x.clone(), activation, mode);
                (y, vec![ops::activate_backward(dy, x, activation, mode)])
            }
            Op::Dropout { rate, residual } => {
                let mask = self.dropout(rate);
                let y = ops::dropout(next(), residual.then(&mut next), time, mask, mode);
                let dx = ops::dropout(dy.clone(), None, time, mask, mode);
                (y, [dx].into_iter().chain(residual.then_some(dy)).collect())
            }
        }
    }

    /// Returns true if an input is a weight. Weights are f32; the other inputs are activations.
    pub fn is_weight(&self, index: usize) -> bool {
        match self.op {
            Op::Embed { .. } => true,
            Op::LayerNorm { .. } | Op::CrossEntropy { .. } | Op::Rotary { .. } => index > 0,
            Op::Linear { bias, .. } => index == 1 || (index == 2 && bias),
            Op::Adapted { .. } => index > 0,
            Op::Activated { .. } | Op::Attention { .. } | Op::Dropout { .. } => false,
        }
    }

    /// Returns true if an input is a matrix or an embedding, which a model may store in half precision.
    pub fn is_matrix(&self, index: usize) -> bool {
        match self.op {
            Op::Embed { .. } => true,
            Op::CrossEntropy { .. } | Op::Linear { .. } => index == 1,
            Op::Adapted { .. } => index > 0,
            _ => false,
        }
    }

    /// Returns true if an input is a weight with a copy in half precision, where models keep copies.
    pub fn has_copy(&self, index: usize) -> bool {
        self.is_matrix(index) && !matches!(self.op, Op::Embed { .. })
    }

    /// Returns the shape of the output.
    pub fn output_shape(&self) -> [usize; 2] {
        match self.op {
            Op::CrossEntropy { .. } => [1, 1],
            _ => [self.rows(), self.width],
        }
    }

    /// Returns the dropout factors, which the oracle takes as an input: `main.rs` tests the masks.
    pub fn mask(&self) -> Option<Vec<f64>> {
        let (rate, len) = match self.op {
            Op::Attention { kv_heads, sharing, rate } => {
                (rate?, kv_heads * sharing * self.time * self.time)
            }
            Op::Dropout { rate, .. } => (rate, self.time * self.width),
            _ => return None,
        };
        let mask = mask(self.dropout(rate), self.batch, len, &Device::flex(), OpsMode::REFERENCE);
        Some(mask.into_iter().map(f64::from).collect())
    }

    /// Computes the output in f64.
    pub fn oracle(&self, inputs: &[Vec<f64>], mask: Option<&[f64]>) -> Vec<f64> {
        let (n, c, time) = (self.rows(), self.width, self.time);
        let factor = |index: usize| mask.map_or(1.0, |mask| mask[index]);
        let x = &inputs[0];
        match self.op {
            Op::Embed { vocab, .. } => {
                let ids = self.ids(vocab);
                matrix(n, c, |r, i| x[ids[r] as usize * c + i] + inputs[1][r % time * c + i])
            }
            Op::LayerNorm { beta, rms } => matrix(n, c, |r, i| {
                let row = &x[r * c..(r + 1) * c];
                if let Some(eps) = rms {
                    return row[i] * rstd(row, eps) * inputs[1][i];
                }
                let mean = row.iter().sum::<f64>() / c as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
                let scaled = (row[i] - mean) / (variance + 1e-5).sqrt() * inputs[1][i];
                scaled + if beta { inputs[2][i] } else { 0.0 }
            }),
            Op::Linear { inner, bias, residual, activation } => matrix(n, c, |r, o| {
                let activated = |k: usize| activate(x, [r, inner, k], activation);
                let product: f64 = (0..inner).map(|k| activated(k) * inputs[1][k * c + o]).sum();
                let bias = if bias { inputs[2][o] } else { 0.0 };
                let residual = if residual { inputs[inputs.len() - 1][r * c + o] } else { 0.0 };
                product + bias + residual
            }),
            Op::Adapted { inner, rank, activation } => {
                let [w, a, b] = [1, 2, 3].map(|index| &inputs[index]);
                matrix(n, c, |r, o| {
                    let weight = |k: usize| {
                        let low: f64 = (0..rank).map(|j| a[k * rank + j] * b[j * c + o]).sum();
                        w[k * c + o] + low
                    };
                    (0..inner).map(|k| activate(x, [r, inner, k], activation) * weight(k)).sum()
                })
            }
            Op::Activated { activation } => {
                matrix(n, c, |r, i| activate(x, [r, c, i], Some(activation)))
            }
            Op::Attention { kv_heads, sharing, .. } => {
                let (heads, size) = (kv_heads * sharing, self.head_size());
                let mut y = vec![0.0; n * c];
                for index in 0..self.batch * heads * time {
                    let (sequence, head, query) =
                        (index / time / heads, index / time % heads, index % time);
                    // Part 0 is the query, 1 the key and 2 the value of position t.
                    let part = |t: usize, part: usize| {
                        let shared = head / sharing;
                        let head = [head, heads + shared, heads + kv_heads + shared][part];
                        let row = (sequence * time + t) * (heads + 2 * kv_heads);
                        &x[(row + head) * size..][..size]
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
            Op::Rotary { kv_heads, sharing, norms } => {
                let (heads, size) = (kv_heads * sharing, self.head_size());
                matrix(n, c, |r, i| {
                    let (head, i) = (i / size, i % size);
                    let row = &x[r * c + head * size..][..size];
                    if head >= heads + kv_heads {
                        return row[i];
                    }
                    let weight = |i: usize| match norms {
                        true => inputs[1 + usize::from(head >= heads)][i] * rstd(row, EPS),
                        false => 1.0,
                    };
                    let half = size / 2;
                    let pair = i % half;
                    let exponent = -2.0 * pair as f64 / size as f64;
                    let (sine, cosine) =
                        ((r % time) as f64 * f64::from(THETA).powf(exponent)).sin_cos();
                    let (low, high) =
                        (row[pair] * weight(pair), row[pair + half] * weight(pair + half));
                    if i < half { low * cosine - high * sine } else { high * cosine + low * sine }
                })
            }
            Op::CrossEntropy { vocab, ignores, .. } => {
                let ids = self.targets(vocab, ignores);
                let loss = |r: usize| {
                    if ids[r] == ops::IGNORED {
                        return 0.0;
                    }
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

/// Generates cases of an op.
pub fn cases(
    op: impl Strategy<Value = Op>,
    spreads: &'static [f32],
) -> impl Strategy<Value = Case> {
    let time = prop_oneof![Just(1usize), 2..=7usize];
    let sizes = (1..=3usize, time, 1..=20usize);
    (op, sizes, select(spreads), 0..1000u64, any::<bool>()).prop_map(
        |(op, (batch, time, mut width), spread, seed, strided)| {
            match op {
                Op::Attention { kv_heads, sharing, .. } => width *= kv_heads * sharing,
                Op::Rotary { kv_heads, sharing, .. } => width *= 2 * kv_heads * (sharing + 2),
                _ => {}
            }
            Case { op, batch, time, width, spread, seed, strided }
        },
    )
}

pub const ACTIVATIONS: [Option<Activation>; 4] = [
    None,
    Some(Activation::Gelu(Gelu::Tanh)),
    Some(Activation::Gelu(Gelu::Erf)),
    Some(Activation::SwiGlu),
];

/// Generates small cases of each op.
pub fn small_cases() -> [BoxedStrategy<Case>; 9] {
    let (rates, flag) = (select(&[None, Some(0.0), Some(0.3)]), any::<bool>());
    let embed = (1..=9usize, 0..=3usize).prop_map(|(vocab, unused)| Op::Embed { vocab, unused });
    let norm = (flag, select(&[None, None, Some(1e-3)]))
        .prop_map(|(beta, rms)| Op::LayerNorm { beta: beta && rms.is_none(), rms });
    let linear = (1..=20usize, flag, flag, select(&ACTIVATIONS)).prop_map(
        |(inner, bias, residual, activation)| Op::Linear { inner, bias, residual, activation },
    );
    let adapted = (1..=20usize, 1..=5usize, select(&ACTIVATIONS))
        .prop_map(|(inner, rank, activation)| Op::Adapted { inner, rank, activation });
    let activated = select(&ACTIVATIONS[1..])
        .prop_map(|form| Op::Activated { activation: form.expect("all but the first are") });
    let heads = (1..=3usize, select(&[1usize, 1, 2, 3]));
    let attention = (heads.clone(), rates).prop_map(|((kv_heads, sharing), rate)| Op::Attention {
        kv_heads,
        sharing,
        rate,
    });
    let rotary = (heads, flag).prop_map(|((kv_heads, sharing), norms)| Op::Rotary {
        kv_heads,
        sharing,
        norms,
    });
    let loss = (1..=20usize, 0..=5usize, 1..=25usize, flag).prop_map(
        |(vocab, padding, chunk, ignores)| Op::CrossEntropy { vocab, padding, chunk, ignores },
    );
    let dropout = (select(&[0.0, 0.3]), flag);
    let dropout = dropout.prop_map(|(rate, residual)| Op::Dropout { rate, residual });
    [
        cases(embed, &[1.0]).boxed(),
        // Epsilon matters for a small spread.
        cases(norm, &[0.01, 1.0, 30.0]).boxed(),
        // A larger spread reaches both tails of GELU.
        cases(linear, &[1.0, 3.0]).boxed(),
        cases(adapted, &[1.0, 3.0]).boxed(),
        cases(activated, &[1.0, 3.0]).boxed(),
        cases(attention, &[1.0]).boxed(),
        cases(rotary, &[1.0]).boxed(),
        // A large spread gives logits for which `exp` overflows.
        cases(loss, &[1.0, 30.0]).boxed(),
        cases(dropout, &[1.0]).boxed(),
    ]
}

/// Returns a case of every op with two sequences of this length.
pub fn long_cases(time: usize) -> Vec<Case> {
    let activation = Some(Activation::Gelu(Gelu::Tanh));
    let gated = Some(Activation::SwiGlu);
    let ops = [
        Op::Embed { vocab: 51, unused: 3 },
        Op::LayerNorm { beta: true, rms: None },
        Op::LayerNorm { beta: false, rms: Some(EPS) },
        Op::Linear { inner: 35, bias: true, residual: true, activation },
        Op::Linear { inner: 35, bias: false, residual: true, activation: gated },
        Op::Adapted { inner: 35, rank: 6, activation },
        Op::Adapted { inner: 35, rank: 6, activation: gated },
        Op::Activated { activation: Activation::Gelu(Gelu::Erf) },
        Op::Activated { activation: Activation::SwiGlu },
        Op::Attention { kv_heads: 3, sharing: 1, rate: None },
        Op::Attention { kv_heads: 3, sharing: 1, rate: Some(0.3) },
        Op::Attention { kv_heads: 1, sharing: 3, rate: Some(0.3) },
        Op::CrossEntropy { vocab: 100, padding: 3, chunk: 100, ignores: false },
        Op::CrossEntropy { vocab: 100, padding: 3, chunk: 70, ignores: true },
        Op::Dropout { rate: 0.3, residual: true },
    ];
    let ops = ops.into_iter().map(|op| Case::new(op, 2, time, 39));
    let rotary = |norms| Op::Rotary { kv_heads: 2, sharing: 2, norms };
    // Heads that are read element by element, and four elements at a time.
    let rotations =
        [6, 16].map(|size| [false, true].map(|it| Case::new(rotary(it), 2, time, 8 * size)));
    ops.chain(rotations.into_iter().flatten()).collect()
}

/// Returns cases whose rows kernels read in vectors of four or eight elements, and norms.
pub fn vector_cases() -> Vec<Case> {
    let gelu = |form| Some(Activation::Gelu(form));
    let linear = |activation, residual| Op::Linear { inner: 12, bias: true, residual, activation };
    let ops = [
        Op::Embed { vocab: 51, unused: 3 },
        linear(gelu(Gelu::Tanh), true),
        linear(gelu(Gelu::Erf), false),
        linear(Some(Activation::SwiGlu), true),
        Op::Adapted { inner: 12, rank: 8, activation: None },
        Op::Adapted { inner: 12, rank: 8, activation: gelu(Gelu::Erf) },
        Op::Adapted { inner: 12, rank: 8, activation: Some(Activation::SwiGlu) },
        Op::Activated { activation: Activation::Gelu(Gelu::Tanh) },
        Op::Activated { activation: Activation::SwiGlu },
        // The last tokens share a vector with padding.
        Op::CrossEntropy { vocab: 1029, padding: 3, chunk: 100, ignores: true },
        Op::Dropout { rate: 0.3, residual: true },
    ];
    let mut cases: Vec<Case> = ops.into_iter().map(|op| Case::new(op, 2, 70, 40)).collect();
    // More rows than a workgroup takes at once.
    cases.push(Case::new(linear(None, false), 3, 400, 40));
    cases.extend(norm_cases());
    cases
}

/// Returns cases whose products consist of whole tiles of cooperative matrices, large ones too. The last sums
/// over more than one range of rows.
pub fn whole_cases() -> Vec<Case> {
    let activation = Some(Activation::Gelu(Gelu::Tanh));
    let linear = |activation, inner| Op::Linear { inner, bias: true, residual: true, activation };
    vec![
        Case::new(linear(activation, 128), 2, 128, 256),
        Case::new(linear(Some(Activation::SwiGlu), 128), 1, 128, 128),
        Case::new(linear(None, 64), 2, 512, 64),
        Case::new(Op::Adapted { inner: 128, rank: 64, activation }, 2, 128, 256),
        Case::new(
            Op::CrossEntropy { vocab: 120, padding: 8, chunk: 128, ignores: false },
            2,
            128,
            64,
        ),
    ]
}

/// Returns norms whose rows belong to a part of a subgroup or to several, some of which have no row.
pub fn norm_cases() -> Vec<Case> {
    norms([(70, 40), (70, 301), (70, 512), (70, 1604), (72, 512)])
}

/// Returns norms of as many rows as subgroups take several of in turn: all as many, or one more or less than
/// the others.
pub fn long_norm_cases() -> Vec<Case> {
    norms([(1024, 388), (1030, 388)])
}

fn norms<const N: usize>(shapes: [(usize, usize); N]) -> Vec<Case> {
    let norms =
        [Op::LayerNorm { beta: true, rms: None }, Op::LayerNorm { beta: false, rms: Some(EPS) }];
    let of_shape = |(time, width)| norms.clone().map(|op| Case::new(op, 2, time, width));
    shapes.into_iter().flat_map(of_shape).collect()
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

/// Splits an odd number of rows into two shards; returns an even number as one.
pub fn shards(rows: Tensor<2>) -> Vec<Tensor<2>> {
    let [count, _] = rows.dims();
    let first = count / 3;
    if count % 2 == 0 || first == 0 {
        return vec![rows];
    }
    vec![rows.clone().narrow(0, 0, first), rows.narrow(0, first, count - first)]
}

/// Returns the reciprocal of the root of the mean square.
fn rstd(row: &[f64], eps: f32) -> f64 {
    (dot(row, row) / row.len() as f64 + f64::from(eps)).sqrt().recip()
}

/// Returns the activation of column `k` of a row of `inner` columns.
fn activate(x: &[f64], [row, inner, k]: [usize; 3], activation: Option<Activation>) -> f64 {
    use std::f64::consts::{PI, SQRT_2};
    let at = row * inner + k;
    match activation {
        None => x[at],
        Some(Activation::Gelu(Gelu::Erf)) => 0.5 * x[at] * (1.0 + libm::erf(x[at] / SQRT_2)),
        Some(Activation::Gelu(Gelu::Tanh)) => {
            let u = (2.0 / PI).sqrt() * (x[at] + 0.044715 * x[at].powi(3));
            0.5 * x[at] * (1.0 + u.tanh())
        }
        Some(Activation::SwiGlu) => {
            let gate = x[at + row * inner];
            gate / (1.0 + (-gate).exp()) * x[at + (row + 1) * inner]
        }
    }
}

/// Returns the dropout factors of `batch` sequences of `len` elements.
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
