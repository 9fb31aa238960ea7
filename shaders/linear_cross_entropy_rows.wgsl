// Computes the loss of each row of logits, -log softmax(logits)[target], and, if GRADIENT,
// overwrites the logits with their gradient, (p - onehot) * scale. One workgroup per row makes one
// pass for maximum and sum, and one to write. Columns from p.vocab on are padding, with zero
// probability and gradient. If SCALED, the scale is loss_scale[0], else p.scale. A target from
// p.vocab on counts as none:
// the loss of its row and the gradient are zero. Needs reduce.wgsl.

// [rows, width].
@group(0) @binding(0) var<storage, read_write> logits: array<activation>;
@group(0) @binding(1) var<storage, read_write> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;
@group(0) @binding(3) var<storage, read_write> loss_scale: array<f32>;

struct Params {
    rows: u32,
    // In packs.
    width: u32,
    vocab: u32,
    // The row of `targets` and `losses` that belongs to row 0 of the logits.
    first: u32,
    scale: f32,
}
@group(0) @binding(4) var<uniform> p: Params;

// Stands for minus infinity. It is finite, because the difference of two infinities is NaN.
const LOWEST = -3.0e38;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.x + group.y * groups.x;
    if (row >= p.rows) {
        return;
    }
    let base = row * p.width;
    // This invocation's maximum, and its sum of exponentials relative to that maximum.
    var local_max = LOWEST;
    var local_sum = 0.0;
    for (var column = lane; column < p.width; column += WG) {
        let v = widen(pack(logits[base + column]));
        for (var i = 0u; i < VEC; i++) {
            if (column * VEC + i < p.vocab) {
                if (v[i] > local_max) {
                    local_sum *= exp(local_max - v[i]);
                    local_max = v[i];
                }
                local_sum += exp(v[i] - local_max);
            }
        }
    }
    let row_max = workgroup_max(local_max, lane);
    let row_sum = workgroup_sum(local_sum * exp(local_max - row_max), lane);
    let target_id = targets[p.first + row];
    if (lane == 0u) {
        // This stays in the row even without a target.
        let column = min(target_id, p.vocab - 1u);
        let at = widen(pack(logits[base + column / VEC]))[column % VEC];
        losses[p.first + row] = select(0.0, log(row_sum) - (at - row_max), column == target_id);
    }
    if (!GRADIENT) {
        return;
    }
    // The target's logit, read above, is overwritten below.
    workgroupBarrier();
    storageBarrier();
    let scale = select(p.scale, loss_scale[0], SCALED);
    let factor = scale / row_sum;
    let learned = select(0u, p.vocab, target_id < p.vocab);
    for (var column = lane; column < p.width; column += WG) {
        let v = widen(pack(logits[base + column]));
        // This stores whole vectors only, because FXC, the compiler that DX12 falls back to,
        // refuses to store an element by its index.
        let columns = vec4(column * VEC) + vec4(0u, 1u, 2u, 3u);
        let hit = select(vec4<f32>(), vec4(scale), columns == vec4(target_id));
        let d = exp(v - row_max) * factor - hit;
        let gradient = select(vec4<f32>(), d, columns < vec4(learned));
        logits[base + column] = to_activation(narrow(gradient, 0u));
    }
}
