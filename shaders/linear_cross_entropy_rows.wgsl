// The loss of each row of logits, -log softmax(logits)[target], and in place of the logits its
// gradient, (p - onehot) * scale. A workgroup for each row: one pass for maximum and sum, one to
// write. Columns from p.vocab on are padding: never predicted, gradient zero. Needs reduce.wgsl.

// [rows, WIDTH].
@group(0) @binding(0) var<storage, read_write> logits: array<pack>;
@group(0) @binding(1) var<storage, read_write> targets: array<u32>;
@group(0) @binding(2) var<storage, read_write> losses: array<f32>;

struct Params {
    rows: u32,
    // In packs.
    width: u32,
    vocab: u32,
    // The row of targets and losses that row 0 of the logits is.
    first: u32,
    scale: f32,
}
@group(0) @binding(3) var<uniform> p: Params;

const LEAST = -3.0e38;

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
    // Each invocation's own maximum, and its sum relative to that.
    var largest = LEAST;
    var sum = 0.0;
    for (var column = lane; column < p.width; column += WG) {
        let v = widen(logits[base + column]);
        for (var i = 0u; i < VEC; i++) {
            if (column * VEC + i < p.vocab) {
                if (v[i] > largest) {
                    sum *= exp(largest - v[i]);
                    largest = v[i];
                }
                sum += exp(v[i] - largest);
            }
        }
    }
    let row_max = workgroup_max(largest, lane);
    let row_sum = workgroup_sum(sum * exp(largest - row_max), lane);
    let goal = targets[p.first + row];
    if (lane == 0u) {
        let at = widen(logits[base + goal / VEC])[goal % VEC];
        losses[p.first + row] = log(row_sum) - (at - row_max);
    }
    if (!GRADIENT) {
        return;
    }
    // The target's logit is read above before its place is written below.
    workgroupBarrier();
    storageBarrier();
    let factor = p.scale / row_sum;
    for (var column = lane; column < p.width; column += WG) {
        let v = widen(logits[base + column]);
        // No element by its index: FXC, the compiler that DX12 falls back to, writes none.
        let id = vec4(column * VEC) + vec4(0u, 1u, 2u, 3u);
        let hit = select(vec4<f32>(), vec4(p.scale), id == vec4(goal));
        let d = exp(v - row_max) * factor - hit;
        logits[base + column] = part(select(vec4<f32>(), d, id < vec4(p.vocab)), 0u);
    }
}
