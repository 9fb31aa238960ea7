// Decodes a matrix of q8_0: four rows of a pack of columns per invocation.

@group(0) @binding(0) var<storage, read_write> codes: array<i32>;
@group(0) @binding(1) var<storage, read_write> scales: array<stored_scale>;
@group(0) @binding(2) var<storage, read_write> weights: array<weight>;

struct Params {
    packs: u32,
    // Packs in a row.
    width: u32,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.x + group.y * groups.x) * WG + lane;
    if (i >= p.packs) {
        return;
    }
    let row = i / p.width;
    let column = i - row * p.width;
    let first = i * VEC;
    var words = vec4<i32>(codes[first]);
    if (VEC == 4u) {
        words = vec4<i32>(words.x, codes[first + 1u], codes[first + 2u], codes[first + 3u]);
    }
    // A scale has 32 rows, 8 of words.
    let scale = pack(scales[row / 8u * p.width + column]);
    for (var byte = 0u; byte < 4u; byte++) {
        let code = narrow(vec4<f32>(extractBits(words, 8u * byte, 8u)), 0u);
        weights[(4u * row + byte) * p.width + column] = to_weight(code * scale);
    }
}
