// Second stage of the control of an update, in one workgroup. Computes the global gradient norm
// from the partial sums of squares, and skips an update whose norm is not finite. If SCALES_LOSS, a
// skipped update also halves the loss scale, and GROWTH_INTERVAL updates in a
// row that are made double it, as in PyTorch's GradScaler. Needs reduce.wgsl.

@group(0) @binding(0) var<storage, read_write> partial: array<f32>;
// The scale; the updates made since the scale last changed or an update was skipped; the updates
// skipped; the updates skipped in a row.
@group(0) @binding(1) var<storage, read_write> loss_scale: array<f32>;
@group(0) @binding(2) var<storage, read_write> norm: array<f32>;
// The factor of the gradients; 1 if the update is made, else 0; learning_rate / (1 - beta1^t);
// 1 / sqrt(1 - beta2^t), with t the updates made, this one included.
@group(0) @binding(3) var<storage, read_write> control: array<f32>;
// `loss_scale` after this update.
@group(0) @binding(4) var<storage, read_write> next: array<f32>;

struct Params {
    elements: u32,
    // The norm to which gradients are clipped; 0 for no clipping.
    grad_clip: f32,
    // Divides the gradients, together with the loss scale.
    divisor: f32,
    // The number of this update from 1, skipped ones included.
    step: f32,
    learning_rate: f32,
    log_beta1: f32,
    log_beta2: f32,
}
@group(0) @binding(5) var<uniform> p: Params;

// Returns 1 - e^x for x <= 0, by its series where the difference would cancel.
fn one_minus_exp(x: f32) -> f32 {
    if (x <= -1.0) {
        return 1.0 - exp(x);
    }
    var series = 1.0;
    for (var n = 10.0; n > 1.0; n -= 1.0) {
        series = 1.0 + x / n * series;
    }
    return -x * series;
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var i = lane; i < p.elements; i += WG) {
        sum += partial[i];
    }
    let total = workgroup_sum(sum, lane);
    if (lane != 0u) {
        return;
    }
    // This looks at the bits, because compilers may assume that floats are finite.
    let finite = (bitcast<u32>(total) & 0x7f800000u) != 0x7f800000u;
    let root = sqrt(total);
    norm[0] = root;
    let scale = loss_scale[0];
    // As in PyTorch's clip_grad_norm_.
    let clip = select(min(p.grad_clip / (root + 1e-6), 1.0), 1.0, p.grad_clip == 0.0);
    let made = p.step - loss_scale[2];
    control[0] = select(0.0, clip / (scale * p.divisor), finite);
    control[1] = select(0.0, 1.0, finite);
    control[2] = p.learning_rate / one_minus_exp(made * p.log_beta1);
    control[3] = 1.0 / sqrt(one_minus_exp(made * p.log_beta2));
    var next_scale = scale;
    var clean = select(0.0, loss_scale[1] + 1.0, finite);
    if (SCALES_LOSS) {
        let grows = clean >= f32(GROWTH_INTERVAL);
        let fits = 2.0 * scale <= f32(MAX_GROWN_SCALE);
        let halved = max(0.5 * scale, f32(MIN_SCALE));
        next_scale = select(halved, select(scale, 2.0 * scale, grows && fits), finite);
        clean = select(clean, 0.0, grows);
    }
    next[0] = next_scale;
    next[1] = clean;
    next[2] = loss_scale[2] + select(1.0, 0.0, finite);
    next[3] = select(loss_scale[3] + 1.0, 0.0, finite);
}
