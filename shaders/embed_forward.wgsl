// Computes y[row] = base[row mod period] + shard[tokens[row] - first], one pack per invocation.
// Adds nothing for tokens outside the shard. The base of the first shard is the positions, a
// weight; the base of each other shard is the output of the shard before.

@group(0) @binding(0) var<storage, read_write> shard: array<weight>;
@group(0) @binding(1) var<storage, read_write> base: array<addend>;
@group(0) @binding(2) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<activation>;

struct Params {
    packs: u32,
    // Packs in a row.
    width: u32,
    period: u32,
    // The shard's first token, and its number of rows.
    first: u32,
    rows: u32,
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
    var value = pack(base[(row % p.period) * p.width + column]);
    // This wraps to a large number for tokens below the first.
    let shard_row = tokens[row] - p.first;
    if (shard_row < p.rows) {
        value += pack(shard[shard_row * p.width + column]);
    }
    y[i] = to_activation(value);
}
