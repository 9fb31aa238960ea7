//! The checks: each op and its gradients, in the variants that a model of some shapes launches.

use std::iter::zip;
use std::sync::Arc;

use burn::tensor::Tensor;

use super::inputs::{TestInputs, ids};
use super::{KernelCheck, KernelOutput, KernelShapes};
use crate::config::{Dtype, RopeScaling};
use crate::ops::{
    self, Activation, AdamW, AttentionShape, CrossEntropy, HeadNorms, IGNORED, Moments, NormForm,
    RotaryShape, UpdateControl, UpdateSettings, WeightUpdate,
};

pub(super) const ALL: &[KernelCheck] = &[
    KernelCheck { name: "embed", run: embed },
    KernelCheck { name: "layer_norm", run: layer_norm },
    KernelCheck { name: "linear", run: linear },
    KernelCheck { name: "linear with a residual", run: linear_residual },
    KernelCheck { name: "linear backward", run: linear_backward },
    KernelCheck { name: "linear in large tiles", run: large_forward },
    KernelCheck { name: "linear backward in large tiles", run: large_backward },
    KernelCheck { name: "products of whole tiles", run: whole_tiles },
    KernelCheck { name: "attention", run: attention },
    KernelCheck { name: "attention backward", run: attention_backward },
    KernelCheck { name: "linear_cross_entropy", run: loss },
    KernelCheck { name: "linear_cross_entropy with gradients", run: loss_gradients },
    KernelCheck { name: "dropout", run: dropout },
    KernelCheck { name: "activation", run: activation },
    KernelCheck { name: "dequantize", run: dequantize },
    KernelCheck { name: "update_control", run: update_control },
    KernelCheck { name: "adamw", run: adamw },
];

/// The epsilon of RMS norms.
const EPS: f32 = 1e-5;

/// Rows of the checks: more than two of the largest tiles, and a ragged last one.
const ROWS: usize = 150;

/// The elements of a norm's input.
const NORM_ELEMENTS: usize = 2048 * 768;

/// Sequences of three tiles of queries, the last with two positions.
const TIME: usize = 130;

/// The sizes of a product with small tiles, `[m, k, n]`. Kernels read their rows like the model's, four
/// elements at a time if its width is a multiple of four.
fn small(inputs: &TestInputs) -> [usize; 3] {
    let odd = usize::from(!inputs.shapes.width.is_multiple_of(4));
    [ROWS, 100 + odd, 140 + odd]
}

fn embed(inputs: &TestInputs) -> Vec<KernelOutput> {
    const TOKENS: usize = 70;
    let width = inputs.shapes.width;
    let time = 37;
    let positions = 40;
    let tokens = ids(2 * time, TOKENS);
    let mode = inputs.mode;
    let [wte, wpe] = [(1, TOKENS), (2, positions)].map(|(seed, n)| inputs.weight(seed, [n, width]));
    let y = ops::embed(&[wte], wpe, tokens.clone(), time, mode);
    let dy = inputs.activation(3, [tokens.len(), width]);
    let into = vec![inputs.zeros([TOKENS, width])];
    let (mut dwte, dwpe) = ops::embed_backward(dy, into, &tokens, time, positions, mode);
    vec![
        KernelOutput::new("embed", y),
        KernelOutput::new("embed backward: tokens", dwte.remove(0)),
        KernelOutput::new("embed backward: positions", dwpe),
    ]
}

/// Checks norms of as many rows as let each subgroup of a workgroup take several in turn, and of fewer, so
/// that the last ones have no row.
fn layer_norm(inputs: &TestInputs) -> Vec<KernelOutput> {
    let rows = (NORM_ELEMENTS / inputs.shapes.width).clamp(32, 2048) / 32 * 32;
    let mut outputs = layer_norm_of("layer_norm", rows, inputs);
    outputs.extend(layer_norm_of("layer_norm of ragged groups", rows - 6, inputs));
    outputs
}

fn layer_norm_of(name: &str, rows: usize, inputs: &TestInputs) -> Vec<KernelOutput> {
    let width = inputs.shapes.width;
    let mode = inputs.mode;
    let [x, dy, residual] = [1, 2, 3].map(|seed| inputs.activation(seed, [rows, width]));
    let gamma = inputs.vector(4, width);
    let (form, beta) = match inputs.shapes.activation {
        Activation::Gelu(_) => (NormForm::Layer, inputs.bias(5, width)),
        Activation::SwiGlu => (NormForm::Rms { eps: EPS }, None),
    };
    let (y, statistics) = ops::layer_norm(x.clone(), gamma.clone(), beta, form, mode);
    let (dx, partial) =
        ops::layer_norm_backward(dy, x, gamma, statistics, Some(residual), form, mode);
    let (dgamma, dbeta) = ops::layer_norm_weight_gradients(vec![partial], mode).remove(0);
    let mut outputs = vec![
        KernelOutput::new(name, y),
        KernelOutput::new(format!("{name} backward: input"), dx),
        KernelOutput::new(format!("{name} backward: gamma"), dgamma),
    ];
    if form == NormForm::Layer {
        outputs.push(KernelOutput::new(format!("{name} backward: beta"), dbeta));
    }
    outputs
}

/// The inputs of a layer of `k` inputs: twice as many with SwiGLU, gate and up.
fn input_width(k: usize, activation: Option<Activation>) -> usize {
    if activation == Some(Activation::SwiGlu) { 2 * k } else { k }
}

/// Computes a linear layer of rows, inputs and outputs `[m, k, n]`.
fn forward(
    inputs: &TestInputs,
    kernel: &'static str,
    [m, k, n]: [usize; 3],
    activation: Option<Activation>,
    residual: bool,
) -> KernelOutput {
    let x = inputs.activation(1, [m, input_width(k, activation)]);
    let w = inputs.matrix(2, [k, n]);
    let residual = residual.then(|| inputs.activation(4, [m, n]));
    let y = ops::linear(x, w, inputs.bias(3, n), residual, activation, inputs.mode);
    KernelOutput::new(kernel, y)
}

/// Computes the gradients of such a layer. `notes` end the names of those of `w`, `x` and the bias.
fn backward(
    inputs: &TestInputs,
    layer: &str,
    notes: [&str; 3],
    [m, k, n]: [usize; 3],
    activation: Option<Activation>,
) -> Vec<KernelOutput> {
    let x = inputs.activation(1, [m, input_width(k, activation)]);
    let w = inputs.matrix(2, [k, n]);
    let dy = inputs.activation(5, [m, n]);
    let gradients = ops::linear_backward(dy, x, w, activation, inputs.shapes.bias, inputs.mode);
    let name = |gradient: &str, note: &str| format!("{layer} backward: {gradient}{note}");
    let mut outputs = vec![
        KernelOutput::new(name("weight", notes[0]), gradients.w),
        KernelOutput::new(name("input", notes[1]), gradients.x),
    ];
    outputs.extend(gradients.b.map(|b| KernelOutput::new(name("bias", notes[2]), b)));
    outputs
}

fn linear(inputs: &TestInputs) -> Vec<KernelOutput> {
    let activation = Some(inputs.shapes.activation);
    let mut outputs = vec![forward(inputs, "linear", small(inputs), None, false)];
    if inputs.shapes.dropout {
        outputs.push(forward(inputs, "linear of an activation", small(inputs), activation, false));
    }
    outputs
}

fn linear_residual(inputs: &TestInputs) -> Vec<KernelOutput> {
    let activation = Some(inputs.shapes.activation);
    vec![
        forward(inputs, "linear + residual", small(inputs), None, true),
        forward(inputs, "linear of an activation + residual", small(inputs), activation, true),
    ]
}

fn linear_backward(inputs: &TestInputs) -> Vec<KernelOutput> {
    let activation = Some(inputs.shapes.activation);
    let layer = "linear of an activation";
    let mut outputs = backward(inputs, "linear", [""; 3], small(inputs), None);
    outputs.extend(backward(inputs, layer, [""; 3], small(inputs), activation));
    outputs
}

/// The sides of an output with enough tiles for the largest ones, and a product of few elements.
const LARGE: [usize; 2] = [1420, 900];
const SHALLOW: usize = 36;

fn large_forward(inputs: &TestInputs) -> Vec<KernelOutput> {
    let odd = small(inputs)[1] - 100;
    let [m, n] = LARGE.map(|side| side + odd);
    let activation = Some(inputs.shapes.activation);
    vec![forward(inputs, "linear in large tiles", [m, SHALLOW + odd, n], activation, true)]
}

/// In each of the two, one gradient has large tiles, and the other one sums over many elements: on
/// cooperative matrices in several ranges.
fn large_backward(inputs: &TestInputs) -> Vec<KernelOutput> {
    let odd = small(inputs)[1] - 100;
    let [long, wide] = LARGE.map(|side| side + odd);
    let activation = Some(inputs.shapes.activation);
    let shallow = SHALLOW + odd;
    let of_input = [", over many rows", ", in large tiles", ", over many rows"];
    let of_weight = [", in large tiles", ", over many outputs", ", in large tiles"];
    let mut outputs = backward(inputs, "linear", of_input, [long, wide, shallow], activation);
    outputs.extend(backward(inputs, "linear", of_weight, [shallow, wide, long], activation));
    outputs
}

/// The sizes `[m, k, n]` of products with small and with large tiles, and of one that sums over many rows, as
/// wgpt's own CUDA kernels need them: 16 bytes in each access, and stages of 32 elements along each sum. The
/// last tile is ragged.
const ALIGNED: [[usize; 3]; 3] = [[160, 128, 144], [1440, 64, 928], [1536, 928, 64]];

/// Such sizes for products on cooperative matrices, with no ragged tile, for which they have variants: with the
/// multiprocessors of a GPU that takes small tiles, or large ones.
const WHOLE: [([usize; 3], usize); 3] =
    [([128, 64, 128], 1000), ([256, 128, 128], 1), ([1024, 64, 64], 1000)];

/// The products of a layer and of the loss in such sizes, which only dtypes with kernels of their own need.
fn whole_tiles(inputs: &TestInputs) -> Vec<KernelOutput> {
    if inputs.precision.dtype() == Dtype::Float32 {
        return Vec::new();
    }
    let activation = Some(inputs.shapes.activation);
    let notes = ["", ", in large tiles", ", over many rows"];
    let mut outputs = Vec::new();
    let has_matrices = inputs.precision.matrices().is_some();
    let known = inputs.mode.driver.multiprocessors;
    let sizes = if has_matrices {
        WHOLE.map(|(sizes, multiprocessors)| (sizes, Some(multiprocessors)))
    } else {
        ALIGNED.map(|sizes| (sizes, known))
    };
    for ((sizes, multiprocessors), note) in zip(sizes, notes) {
        let inputs = &inputs.with_multiprocessors(multiprocessors);
        outputs.push(forward(inputs, "linear of whole tiles", sizes, None, true));
        outputs.extend(backward(inputs, "linear of whole tiles", [note; 3], sizes, None));
        let layer = "linear of an activation, whole tiles";
        outputs.extend(backward(inputs, layer, [note; 3], sizes, activation));
    }
    let chunks = CrossEntropy { chunk: 64, ..LOSS };
    outputs.extend(gradients_of_loss(inputs, [96, 128], chunks));
    let [out, dqkv] = attention_gradients(inputs, heads(inputs, inputs.shapes.dropout));
    outputs.push(KernelOutput::new("attention of whole tiles", out));
    outputs.push(KernelOutput::new("attention of whole tiles backward", dqkv));
    outputs
}

/// Returns a shape of attention with the model's size of heads, and the size. Three heads, or four if
/// the model's rows are read four elements at a time and three heads' would not be, or if two share keys.
fn heads(inputs: &TestInputs, dropout: bool) -> (AttentionShape, usize) {
    let KernelShapes { width, heads, kv_heads, head_size, .. } = inputs.shapes;
    let shared = kv_heads < heads;
    let four = shared || width.is_multiple_of(4) && !head_size.is_multiple_of(4);
    let heads = if four { 4 } else { 3 };
    let kv_heads = if shared { 2 } else { heads };
    let dropout = dropout.then(|| inputs.dropout());
    (AttentionShape { batch: 2, time: TIME, heads, kv_heads, dropout }, head_size)
}

/// Returns packed qkv of such heads.
fn packed(inputs: &TestInputs, seed: u64, (shape, size): (AttentionShape, usize)) -> Tensor<2> {
    inputs.activation(seed, [2 * TIME, (shape.heads + 2 * shape.kv_heads) * size])
}

/// Returns the rotation of such heads and their norms, if the model rotates q and k.
fn rotation(
    inputs: &TestInputs,
    (shape, size): (AttentionShape, usize),
) -> Option<(RotaryShape, Option<HeadNorms>)> {
    let AttentionShape { time, heads, kv_heads, .. } = shape;
    let norms = || HeadNorms { q: inputs.vector(6, size), k: inputs.vector(7, size) };
    let norms = inputs.shapes.head_norms.then(norms);
    let rotates = inputs.shapes.activation == Activation::SwiGlu;
    let scaling = RopeScaling::None;
    rotates.then_some((RotaryShape { time, heads, kv_heads, theta: 1e4, scaling, eps: EPS }, norms))
}

fn attention(inputs: &TestInputs) -> Vec<KernelOutput> {
    // Evaluations have no dropout.
    let all = heads(inputs, false);
    let (shape, _) = all;
    let qkv = packed(inputs, 1, all);
    let (out, log_sum_exp) = ops::attention(qkv.clone(), shape, inputs.mode);
    let mut outputs = vec![
        KernelOutput::new("attention", out),
        KernelOutput::new("attention: log_sum_exp", log_sum_exp),
    ];
    if inputs.shapes.dropout {
        let (shape, _) = heads(inputs, true);
        let out = ops::attention(qkv.clone(), shape, inputs.mode).0;
        outputs.push(KernelOutput::new("attention with dropout", out));
    }
    if let Some((shape, norms)) = rotation(inputs, all) {
        let kept = ops::rotary(qkv.clone(), norms.clone(), shape, inputs.mode);
        outputs.push(KernelOutput::new("rotary", kept));
        outputs.push(KernelOutput::new(
            "rotary in place",
            ops::rotary(qkv, norms, shape, inputs.mode),
        ));
    }
    outputs
}

/// Returns the output of attention and the gradient of packed qkv.
fn attention_gradients(inputs: &TestInputs, all: (AttentionShape, usize)) -> [Tensor<2>; 2] {
    let (shape, size) = all;
    let qkv = packed(inputs, 1, all);
    let dout = inputs.activation(2, [2 * TIME, shape.heads * size]);
    let (out, log_sum_exp) = ops::attention(qkv.clone(), shape, inputs.mode);
    let dqkv = ops::attention_backward(dout, qkv, out.clone(), log_sum_exp, shape, inputs.mode);
    [out, dqkv]
}

fn attention_backward(inputs: &TestInputs) -> Vec<KernelOutput> {
    let all = heads(inputs, inputs.shapes.dropout);
    let mode = inputs.mode;
    let (AttentionShape { heads, kv_heads, .. }, size) = all;
    let [_, dqkv] = attention_gradients(inputs, all);
    let columns = |first, heads| dqkv.clone().narrow(1, first * size, heads * size);
    let mut outputs = vec![
        KernelOutput::new("attention backward: queries", columns(0, heads)),
        KernelOutput::new("attention backward: keys", columns(heads, kv_heads)),
        KernelOutput::new("attention backward: values", columns(heads + kv_heads, kv_heads)),
    ];
    let qkv = packed(inputs, 1, all);
    if let Some((shape, norms)) = rotation(inputs, all) {
        let dqkv = packed(inputs, 3, all);
        let (dqkv, partial) = ops::rotary_backward(dqkv, Some(qkv), norms, shape, mode);
        outputs.push(KernelOutput::new("rotary backward", dqkv));
        let sums = partial.map(|sums| ops::layer_norm_weight_gradients(vec![sums], mode).remove(0));
        outputs.extend(sums.into_iter().flat_map(|(q, k)| {
            [KernelOutput::new("rotary backward: q", q), KernelOutput::new("rotary backward: k", k)]
        }));
    }
    outputs
}

/// Rows and vocabulary of the loss, with padding. The last chunk of logits is ragged.
const LOSS: CrossEntropy = CrossEntropy { vocab: 101, chunk: 40, scale: 1.0 / 70.0 };
const LOSS_ROWS: usize = 70;
const PADDED: usize = 128;

fn targets(rows: usize) -> Arc<[u32]> {
    let mut targets = ids(rows, LOSS.vocab).to_vec();
    targets[5] = IGNORED;
    targets.into()
}

fn loss(inputs: &TestInputs) -> Vec<KernelOutput> {
    let [_, c, _] = small(inputs);
    let x = inputs.activation(1, [LOSS_ROWS, c]);
    let wte = inputs.matrix(2, [PADDED, c]);
    let loss = ops::linear_cross_entropy(x, vec![wte], targets(LOSS_ROWS), LOSS, inputs.mode);
    vec![KernelOutput::new("linear_cross_entropy", loss)]
}

fn loss_gradients(inputs: &TestInputs) -> Vec<KernelOutput> {
    let [_, c, _] = small(inputs);
    gradients_of_loss(inputs, [LOSS_ROWS, c], LOSS)
}

fn gradients_of_loss(
    inputs: &TestInputs,
    [rows, c]: [usize; 2],
    loss: CrossEntropy,
) -> Vec<KernelOutput> {
    let x = inputs.activation(1, [rows, c]);
    let wte = vec![inputs.matrix(2, [PADDED, c])];
    let scaled = inputs.precision.scales_loss();
    let loss_scale = scaled.then(|| inputs.values(&[256.0, 0.0, 0.0, 0.0]));
    let targets = targets(rows);
    let (loss, mut gradients) =
        ops::linear_cross_entropy_gradients(x, wte, loss_scale, targets, loss, true, inputs.mode);
    vec![
        KernelOutput::new("linear_cross_entropy with gradients", loss),
        KernelOutput::new("linear_cross_entropy: gradient of the input", gradients.x),
        KernelOutput::new(
            "linear_cross_entropy: gradient of the embedding",
            gradients.wte.remove(0),
        ),
    ]
}

fn dropout(inputs: &TestInputs) -> Vec<KernelOutput> {
    let [m, _, n] = small(inputs);
    let [x, residual] = [1, 2].map(|seed| inputs.activation(seed, [m, n]));
    let dropped = |residual| ops::dropout(x.clone(), residual, 75, inputs.dropout(), inputs.mode);
    vec![
        KernelOutput::new("dropout", dropped(None)),
        KernelOutput::new("dropout + residual", dropped(Some(residual))),
    ]
}

/// The activation by itself, for adapters with dropout.
fn activation(inputs: &TestInputs) -> Vec<KernelOutput> {
    let [m, k, _] = small(inputs);
    let activation = inputs.shapes.activation;
    let x = inputs.activation(1, [m, input_width(k, Some(activation))]);
    let dy = inputs.activation(2, [m, k]);
    let dx = ops::activate_backward(dy, x.clone(), activation, inputs.mode);
    vec![
        KernelOutput::new("activation", ops::activate(x, activation, inputs.mode)),
        KernelOutput::new("activation backward", dx),
    ]
}

fn dequantize(inputs: &TestInputs) -> Vec<KernelOutput> {
    let [_, _, out] = small(inputs);
    let (codes, scales) = (inputs.words(1, [24, out]), inputs.activation(2, [3, out]));
    let dtype = scales.dtype();
    vec![KernelOutput::new("dequantize", ops::dequantize(codes, scales, dtype, inputs.mode))]
}

/// The lengths of weights: of more than one workgroup and read four elements at a time, and of neither.
const LENGTHS: [usize; 2] = [16_388, 35];

fn update_control(inputs: &TestInputs) -> Vec<KernelOutput> {
    let grads = LENGTHS.map(|len| inputs.vector(len as u64, len)).to_vec();
    let settings = UpdateSettings {
        grad_clip: 1.0,
        divisor: 0.5,
        step: 3,
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        scales_loss: inputs.precision.scales_loss(),
    };
    let loss_scale = inputs.values(&[8.0, 1999.0, 1.0, 0.0]);
    let UpdateControl { norm, control, loss_scale } =
        ops::update_control(grads, loss_scale, settings, inputs.mode);
    vec![
        KernelOutput::new("update_control: norm", norm),
        KernelOutput::new("update_control", control),
        KernelOutput::new("update_control: loss scale", loss_scale),
    ]
}

fn adamw(inputs: &TestInputs) -> Vec<KernelOutput> {
    let weight = |len: usize| WeightUpdate {
        w: inputs.vector(1, len),
        half: inputs.half_copy(1, len),
        grad: inputs.vector(2, len),
        moments: Moments { m: inputs.vector(3, len), v: inputs.positive(4, len) },
        decays: len == LENGTHS[0],
    };
    let scalars = AdamW { decay: 0.98, beta1: 0.9, beta2: 0.95, eps: 1e-3 };
    let control = inputs.values(&[0.5, 1.0, 0.1, 1.5]);
    // Each tensor has one owner, so that it is updated in place.
    let weights = Vec::from(LENGTHS.map(weight));
    let mut outputs = Vec::new();
    for (w, half, Moments { m, v }) in ops::adamw(weights, control, scalars, inputs.mode) {
        outputs.push(KernelOutput::new("adamw: weight", w));
        outputs.extend(half.map(|half| KernelOutput::new("adamw: copy in half precision", half)));
        outputs
            .extend([KernelOutput::new("adamw: mean", m), KernelOutput::new("adamw: square", v)]);
    }
    outputs
}
