//! The cases of the benchmark: each op at the sizes of GPT-2, with the same work by burn's stock ops.

use std::sync::Arc;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData, activation, module};

use super::attention::{
    attention_backward, attention_forward, rotary_backward, rotary_forward, shared,
};
use super::kernels::{Bench, Case, Cost, OpSizes};
use super::{OpRow, best_seconds};
use crate::config::Gelu;
use crate::gpu::DeviceError;
use crate::ops::{
    self, Activation, AdamW, CrossEntropy, Dropout, Moments, NormForm, OpsMode, UpdateSettings,
    WeightUpdate,
};

pub(super) const CASES: &[Case] = &[
    embed_forward,
    embed_backward,
    layer_norm_forward,
    layer_norm_backward,
    |bench, s| linear_forward(bench, "gemm", mlp_in(s), None),
    |bench, s| linear_backward(bench, "gemm backward", mlp_in(s), None),
    |bench, s| linear_forward(bench, "gelu + gemm + bias + residual", mlp_out(s), GELU),
    |bench, s| linear_backward(bench, "gelu + gemm + bias + residual backward", mlp_out(s), GELU),
    |bench, s| attention_forward(bench, "attention", s, s.attention),
    |bench, s| attention_backward(bench, "attention backward", s, s.attention),
    dropout,
    loss,
    adamw,
    // Of Llama-shaped models.
    rotary_forward,
    rotary_backward,
    |bench, s| attention_forward(bench, "attention, 4 heads share keys", s, shared(s)),
    |bench, s| attention_backward(bench, "attention backward, 4 heads share keys", s, shared(s)),
    |bench, s| linear_forward(bench, "swiglu + gemm + residual", gated_out(s), SWIGLU),
    |bench, s| linear_backward(bench, "swiglu + gemm + residual backward", gated_out(s), SWIGLU),
];

const NORM: NormForm = NormForm::Layer;
const GELU: Option<Activation> = Some(Activation::Gelu(Gelu::Tanh));
const SWIGLU: Option<Activation> = Some(Activation::SwiGlu);

/// Returns token ids that are scattered over the vocabulary.
pub(super) fn ids(first: usize, count: usize, vocab: usize) -> Arc<[u32]> {
    let numbers = first as u32..(first + count) as u32;
    numbers.map(|i| i.wrapping_mul(2_654_435_761) % vocab as u32).collect()
}

fn indices(ids: &[u32], device: &Device) -> Tensor<1, Int> {
    let data = ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(data, [ids.len()]), device)
}

/// Returns the cost of an embedding that reads or writes each element `in_f32` times in f32 and
/// `activations` times in the dtype of activations.
fn embedding(bench: &Bench, s: &OpSizes, in_f32: usize, activations: usize) -> Cost {
    let operations = s.norm_rows * s.c;
    Cost {
        size: format!("{} of {} x {}", s.norm_rows, s.vocab, s.c),
        bytes: 4 * in_f32 * operations + activations * bench.bytes(operations),
        operations,
    }
}

fn embed_forward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let rows = s.norm_rows;
    let tokens = ids(0, rows, s.vocab);
    let indices = indices(&tokens, bench.device);
    let wte = bench.random([s.vocab, s.c]);
    let wpe = bench.random([rows, s.c]);
    bench.forward(
        "embed",
        embedding(bench, s, 2, 1),
        || ops::embed(std::slice::from_ref(&wte), wpe.clone(), tokens.clone(), rows, bench.mode),
        || {
            let y = module::embedding(wte.clone(), indices.clone().unsqueeze());
            y.squeeze_dim::<2>(0) + wpe.clone()
        },
    )
}

/// Adds to the gradient that the output head has for the same weights, as in training.
fn embed_backward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let rows = s.norm_rows;
    let tokens = ids(0, rows, s.vocab);
    let dy = bench.activations([rows, s.c]);
    let head = || bench.random([s.vocab, s.c]);
    let ours = |head| {
        drop(ops::embed_backward(dy.clone(), vec![head], &tokens, rows, rows, bench.mode));
    };
    let leaf = bench.leaf([s.vocab, s.c]);
    let indices = indices(&tokens, &bench.device.clone().autodiff());
    // burn's autodiff computes the gradient of the embedding and adds it to the head's.
    let embedded = || {
        let y = module::embedding(leaf.clone(), indices.clone().unsqueeze::<2>());
        let y = y.squeeze_dim::<2>(0) * Tensor::from_inner(dy.clone());
        (y, head())
    };
    let stock = |(y, head): (Tensor<2>, Tensor<2>)| {
        drop(leaf.grad(&y.backward()).map(|grad| grad + head));
    };
    bench.row(
        "embed backward",
        embedding(bench, s, 3, 2),
        || best_seconds(bench.device, head, ours),
        || best_seconds(bench.device, embedded, stock),
    )
}

/// Returns the cost of an op that reads or writes `tensors` tensors of `[norm_rows, c]`, with
/// `operations` for each element.
fn elementwise(bench: &Bench, s: &OpSizes, tensors: usize, operations: usize) -> Cost {
    let elements = s.norm_rows * s.c;
    Cost {
        size: format!("{} x {}", s.norm_rows, s.c),
        bytes: tensors * bench.bytes(elements),
        operations: operations * elements,
    }
}

fn stock_norm(x: Tensor<2>, gamma: Tensor<1>, beta: Tensor<1>) -> Tensor<2> {
    let centered = x.clone() - x.mean_dim(1);
    let variance = (centered.clone() * centered.clone()).mean_dim(1);
    centered / (variance + 1e-5).sqrt() * gamma.unsqueeze() + beta.unsqueeze()
}

fn layer_norm_forward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let x = bench.activations([s.norm_rows, s.c]);
    let gamma = bench.random([s.c]);
    let beta = bench.random([s.c]);
    bench.forward(
        "layer_norm",
        elementwise(bench, s, 2, 8),
        || ops::layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), NORM, bench.mode).0,
        || stock_norm(x.clone(), gamma.clone(), beta.clone()),
    )
}

fn layer_norm_backward(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let shape = [s.norm_rows, s.c];
    let mode = bench.mode;
    let x = bench.activations(shape);
    let dy = bench.activations(shape);
    let gamma = bench.random([s.c]);
    let (_, statistics) = ops::layer_norm(x.clone(), gamma.clone(), None, NORM, mode);
    let leaves = (bench.leaf(shape), bench.leaf([s.c]), bench.leaf([s.c]));
    bench.backward(
        "layer_norm backward",
        elementwise(bench, s, 3, 14),
        || {
            let statistics = statistics.clone();
            let (dx, partial) = ops::layer_norm_backward(
                dy.clone(),
                x.clone(),
                gamma.clone(),
                statistics,
                None,
                NORM,
                mode,
            );
            (dx, ops::layer_norm_weight_gradients(vec![partial], mode))
        },
        || {
            let (x, gamma, beta) = leaves.clone();
            stock_norm(x, gamma, beta)
        },
    )
}

/// Returns rows, inputs and outputs of the first layer of the MLP, `[rows, c]` to `[rows, 4c]`.
fn mlp_in(s: &OpSizes) -> [usize; 3] {
    [s.rows, s.c, 4 * s.c]
}

/// Returns rows, inputs and outputs of the second layer of the MLP, `[rows, 4c]` to `[rows, c]`.
fn mlp_out(s: &OpSizes) -> [usize; 3] {
    [s.rows, 4 * s.c, s.c]
}

/// Returns the cost of a matrix product that reads `more` further activations.
fn product(bench: &Bench, [m, k, n]: [usize; 3], more: usize) -> Cost {
    Cost {
        size: format!("{m} x {k} x {n}"),
        bytes: bench.bytes(m * k + m * n + more) + bench.weight_bytes(k * n),
        operations: 2 * m * k * n,
    }
}

/// Returns the second layer of Llama's MLP. Its inputs are half as wide as its activation's.
fn gated_out(s: &OpSizes) -> [usize; 3] {
    [s.rows, (8 * s.c / 3).next_multiple_of(64), s.c]
}

/// Returns the width of the inputs of a layer's activation with outputs of width `k`.
fn before(form: Option<Activation>, k: usize) -> usize {
    if form == SWIGLU { 2 * k } else { k }
}

/// Computes a layer as the op does.
fn stock_linear(
    x: Tensor<2>,
    w: Tensor<2>,
    b: Option<Tensor<1>>,
    residual: Option<Tensor<2>>,
    form: Option<Activation>,
) -> Tensor<2> {
    let inner = w.dims()[0];
    let h = match form {
        None => x,
        Some(Activation::Gelu(_)) => activation::gelu_approximate(x),
        Some(Activation::SwiGlu) => {
            activation::silu(x.clone().narrow(1, 0, inner)) * x.narrow(1, inner, inner)
        }
    };
    let y = h.matmul(w);
    let y = if let Some(b) = b { y + b.unsqueeze() } else { y };
    if let Some(residual) = residual { y + residual } else { y }
}

/// Measures a layer of rows, inputs and outputs `[m, k, n]`: a bare product, or with an activation a layer
/// with a residual, and with a bias if it is GPT-2's.
fn linear_forward(
    bench: &Bench,
    name: &'static str,
    [m, k, n]: [usize; 3],
    form: Option<Activation>,
) -> Result<OpRow, DeviceError> {
    let width = before(form, k);
    let x = bench.activations([m, width]);
    let w = bench.weight([k, n]);
    let b = (form == GELU).then(|| bench.random([n]));
    let residual = form.map(|_| bench.activations([m, n]));
    let more = m * (width - k) + if form.is_some() { m * n } else { 0 };
    bench.forward(
        name,
        product(bench, [m, k, n], more),
        || ops::linear(x.clone(), w.clone(), b.clone(), residual.clone(), form, bench.mode),
        || stock_linear(x.clone(), w.clone(), b.clone(), residual.clone(), form),
    )
}

/// Measures the gradients of [`linear_forward`]. The weight's is f32.
fn linear_backward(
    bench: &Bench,
    name: &'static str,
    [m, k, n]: [usize; 3],
    form: Option<Activation>,
) -> Result<OpRow, DeviceError> {
    let width = before(form, k);
    let biased = form == GELU;
    let x = bench.activations([m, width]);
    let w = bench.weight([k, n]);
    let dy = bench.activations([m, n]);
    let leaves = (
        bench.leaf([m, width]),
        bench.leaf([k, n]),
        biased.then(|| bench.leaf([n])),
        form.map(|_| bench.leaf([m, n])),
    );
    // The inputs of an activation are read for both gradients, and theirs are written.
    let passes = if form.is_some() { 3 } else { 2 };
    let once = product(bench, [m, k, n], passes * m * width - m * k + m * n);
    bench.backward(
        name,
        Cost { bytes: once.bytes + 4 * k * n, operations: 2 * once.operations, ..once },
        || ops::linear_backward(dy.clone(), x.clone(), w.clone(), form, biased, bench.mode),
        || {
            let (x, w, b, residual) = leaves.clone();
            stock_linear(x, w, b, residual, form)
        },
    )
}

fn dropout(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let shape = [s.norm_rows, s.c];
    let x = bench.activations(shape);
    let residual = bench.activations(shape);
    let mask = Dropout::new(0.2, 1, 1, 1, 0);
    bench.forward(
        "dropout + residual",
        elementwise(bench, s, 3, 2),
        || ops::dropout(x.clone(), Some(residual.clone()), s.norm_rows, mask, bench.mode),
        || {
            // burn draws the mask from a random generator.
            let kept = x.random_like(Distribution::Bernoulli(0.8));
            x.clone() * kept * 1.25 + residual.clone()
        },
    )
}

fn loss(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let [rows, chunk] = s.loss;
    let x = bench.activations([rows, s.c]);
    let wte = bench.weight([s.vocab, s.c]);
    let leaves = (bench.leaf([rows, s.c]), bench.leaf([s.vocab, s.c]));
    let targets = ids(0, rows, s.vocab);
    let indices = indices(&targets, &bench.device.clone().autodiff()).reshape([rows, 1]);
    let loss = CrossEntropy { vocab: s.vocab, chunk, scale: 1.0 / rows as f32 };
    let cost = Cost {
        size: format!("{rows} x {} x {}, chunks of {chunk}", s.c, s.vocab),
        // Logits are written, read twice, and overwritten by their gradient, which is read twice.
        bytes: bench.bytes(2 * rows * s.c + 6 * rows * s.vocab)
            + bench.weight_bytes(s.vocab * s.c)
            + 4 * s.vocab * s.c,
        operations: 6 * rows * s.c * s.vocab,
    };
    bench.forward(
        "linear_cross_entropy, with gradients",
        cost,
        || {
            let wte = vec![wte.clone()];
            ops::linear_cross_entropy_gradients(
                x.clone(),
                wte,
                None,
                targets.clone(),
                loss,
                true,
                bench.mode,
            )
        },
        || {
            let logits = leaves.0.clone().matmul(leaves.1.clone().transpose());
            let of_targets = activation::log_softmax(logits, 1).gather(1, indices.clone());
            of_targets.mean().neg().backward()
        },
    )
}

fn adamw(bench: &Bench, s: &OpSizes) -> Result<OpRow, DeviceError> {
    let elements = s.weights;
    let cost = Cost {
        size: format!("{elements} weights"),
        // The gradient is read for its norm too.
        bytes: 32 * elements,
        operations: 18 * elements,
    };
    let scalars = AdamW { decay: 1.0 - 1e-5, beta1: 0.9, beta2: 0.95, eps: 1e-8 };
    let settings = UpdateSettings {
        grad_clip: 1.0,
        divisor: 1.0,
        step: 1,
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        scales_loss: false,
    };
    let loss_scale = Tensor::<1>::from_data([1.0, 0.0, 0.0, 0.0], bench.device);
    let grad: Tensor<1> = bench.random([elements]);
    // The state is moved in and out, so that its tensors have one owner and the update is in place.
    let time = |mode| {
        let mut state = Some((
            bench.random([elements]),
            Moments { m: grad.zeros_like(), v: grad.zeros_like() },
        ));
        let update = |()| {
            let Some((w, moments)) = state.take() else { return };
            let grads = vec![grad.clone()];
            let control = ops::update_control(grads, loss_scale.clone(), settings, mode).control;
            let weight = WeightUpdate { w, half: None, grad: grad.clone(), moments, decays: true };
            let updated = ops::adamw(vec![weight], control, scalars, mode).pop();
            state = updated.map(|(w, _, moments)| (w, moments));
        };
        best_seconds(bench.device, || (), update)
    };
    bench.row("gradient norm + adamw", cost, || time(bench.mode), || time(OpsMode::REFERENCE))
}
