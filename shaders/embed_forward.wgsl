// y[row] = wte[token of row] + wpe[row mod time], a pack for each invocation. The host has checked
// that tokens are below the vocabulary.

@group(0) @binding(0) var<storage, read_write> wte: array<pack>;
@group(0) @binding(1) var<storage, read_write> wpe: array<pack>;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<pack>;

struct Params {
    packs: u32,
    // Packs in a row.
    width: u32,
    time: u32,
}
@group(0) @binding(4) var<uniform> p: Params;

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
    y[i] = wte[tokens[row] * p.width + column] + wpe[(row % p.time) * p.width + column];
}
