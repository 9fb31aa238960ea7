// Adds to each row of d_shard the rows of dy whose token it embeds, in the order of those rows, so
// that the same step gives the same bits. The host has sorted the rows of dy by token into buckets:
// entries index[starts + b] to index[starts + b + 1] of `index` are the rows of bucket b, and
// index[shard_rows + b] is its row of the shard. One pack of one bucket per invocation.

@group(0) @binding(0) var<storage, read_write> dy: array<activation>;
// The sorted rows of dy, then where each bucket starts, then the buckets' rows of the shard.
@group(0) @binding(1) var<storage, read_write> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> d_shard: array<pack>;

struct Params {
    buckets: u32,
    // Packs in a row.
    width: u32,
    // Offsets of the second and the third part of `index`.
    starts: u32,
    shard_rows: u32,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.x + group.y * groups.x) * WG + lane;
    if (i >= p.buckets * p.width) {
        return;
    }
    let bucket = i / p.width;
    let column = i - bucket * p.width;
    let at = index[p.shard_rows + bucket] * p.width + column;
    let last = index[p.starts + bucket + 1u];
    var sum = d_shard[at];
    for (var k = index[p.starts + bucket]; k < last; k++) {
        sum += pack(dy[index[k] * p.width + column]);
    }
    d_shard[at] = sum;
}
