// Gradients of normalised heads: rotates the gradients of q and k in packed d_qkv back, to d, and turns them
// into rstd * (g - x_hat * mean(g * x_hat)) with g = d * weight. A workgroup takes p.rows_per_group rows in
// order, HEADS of their heads at a time, and keeps its sums of d * x_hat, the gradients of the weights, in
// registers. Needs rotary_angles.wgsl.

@group(0) @binding(0) var<storage, read_write> d_qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(2) var<storage, read_write> q_norm: array<pack>;
@group(0) @binding(3) var<storage, read_write> k_norm: array<pack>;
// [groups, 2, SIZE]: the sums for the weights of q, and those of k.
@group(0) @binding(4) var<storage, read_write> partial: array<pack>;
@group(0) @binding(5) var<uniform> p: Params;

var<workgroup> packs: array<pack, WG>;

// Writes the sum of the heads of the workgroup to `partial`.
fn write_sum(value: pack, at: u32, lane: u32) {
    packs[lane] = value;
    workgroupBarrier();
    if (lane < HALF) {
        var sum = packs[lane];
        for (var i = 1u; i < HEADS; i++) {
            sum += packs[i * HALF + lane];
        }
        partial[at + lane] = sum;
    }
    workgroupBarrier();
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let nth = lane / HALF;
    let d = lane % HALF;
    let heads = p.heads + p.kv_heads;
    let size = f32(SIZE * VEC);
    let first = group.x * p.rows_per_group * heads;
    let last = min((group.x + 1u) * p.rows_per_group, p.rows) * heads;
    // Of the weights of q and of k, each in two halves.
    var sums = array<pack, 4>();
    for (var begin = first; begin < last; begin += HEADS) {
        let index = begin + nth;
        let present = nth < HEADS && index < last;
        // Past the end, this reads the last head again.
        let row = min(index, last - 1u) / heads;
        let head = min(index, last - 1u) % heads;
        let is_key = head >= p.heads;
        let at = head_at(row, head) + d;
        let low = pack(qkv[at]);
        let high = pack(qkv[at + HALF]);
        let d_low = pack(d_qkv[at]);
        let d_high = pack(d_qkv[at + HALF]);
        let squares = head_sum(sum_of(low * low) + sum_of(high * high), nth, lane);
        let rstd = inverseSqrt(squares / size + p.eps);
        let by = rotation(row % p.time, d);
        var g_low = d_low * by.cosine - d_high * by.sine;
        var g_high = d_high * by.cosine + d_low * by.sine;
        if (present && is_key) {
            sums[2] += g_low * low * rstd;
            sums[3] += g_high * high * rstd;
            g_low *= k_norm[d];
            g_high *= k_norm[d + HALF];
        } else if (present) {
            sums[0] += g_low * low * rstd;
            sums[1] += g_high * high * rstd;
            g_low *= q_norm[d];
            g_high *= q_norm[d + HALF];
        }
        let products = sum_of(g_low * low) + sum_of(g_high * high);
        let mean = head_sum(products, nth, lane) * rstd * rstd / size;
        if (present) {
            d_qkv[at] = to_activation((g_low - low * mean) * rstd);
            d_qkv[at + HALF] = to_activation((g_high - high * mean) * rstd);
        }
    }
    // unroll
    for (var i = 0u; i < 4u; i++) {
        write_sum(sums[i], (4u * group.x + i) * HALF, lane);
    }
}
