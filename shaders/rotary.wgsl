// Rotates q and k of packed qkv, each invocation a pack of both halves of a head. If NORMED, a head is
// divided by the root of its mean square and multiplied by its weights before that. If not IN_PLACE, it also
// copies the values. Needs rotary_angles.wgsl.

// The source, unless IN_PLACE.
@group(0) @binding(0) var<storage, read_write> qkv: array<activation>;
@group(0) @binding(1) var<storage, read_write> rotated: array<activation>;
@group(0) @binding(2) var<storage, read_write> q_norm: array<pack>;
@group(0) @binding(3) var<storage, read_write> k_norm: array<pack>;
@group(0) @binding(4) var<uniform> p: Params;

fn load(at: u32) -> pack {
    if (IN_PLACE) {
        return pack(rotated[at]);
    }
    return pack(qkv[at]);
}

fn weight(is_key: bool, d: u32) -> pack {
    if (is_key) {
        return k_norm[d];
    }
    return q_norm[d];
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let nth = lane / HALF;
    let d = lane % HALF;
    let index = (group.y * groups.x + group.x) * HEADS + nth;
    let heads = p.heads + p.kv_heads * select(2u, 1u, IN_PLACE);
    let row = index / heads;
    let head = index % heads;
    let present = nth < HEADS && row < p.rows;
    let turns = head < p.heads + p.kv_heads;
    let at = head_at(min(row, p.rows - 1u), head) + d;
    var low = load(at);
    var high = load(at + HALF);
    if (NORMED) {
        let squares = head_sum(sum_of(low * low) + sum_of(high * high), nth, lane);
        if (turns) {
            let scale = inverseSqrt(squares / f32(SIZE * VEC) + p.eps);
            low *= scale * weight(head >= p.heads, d);
            high *= scale * weight(head >= p.heads, d + HALF);
        }
    }
    if (turns) {
        let by = rotation(row % p.time, d);
        let first = low * by.cosine - high * by.sine;
        high = high * by.cosine + low * by.sine;
        low = first;
    }
    if (present) {
        rotated[at] = to_activation(low);
        rotated[at + HALF] = to_activation(high);
    }
}
