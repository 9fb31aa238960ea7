// Adds to each row of d-table the rows of dy whose token it is, in the order of the rows, so that the
// same step gives the same bits. The host has sorted the rows by token: bucket b is the rows
// index[starts + b] to index[starts + b + 1] of the order, its row of the table index[places + b]. An
// invocation for each pack of each bucket.

@group(0) @binding(0) var<storage, read_write> dy: array<pack>;
// The sorted rows, then the buckets' starts, then their rows of the table.
@group(0) @binding(1) var<storage, read_write> index: array<u32>;
@group(0) @binding(2) var<storage, read_write> d_table: array<pack>;

struct Params {
    buckets: u32,
    // Packs in a row.
    width: u32,
    starts: u32,
    places: u32,
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
    let at = index[p.places + bucket] * p.width + column;
    let last = index[p.starts + bucket + 1u];
    var sum = d_table[at];
    for (var k = index[p.starts + bucket]; k < last; k++) {
        sum += dy[index[k] * p.width + column];
    }
    d_table[at] = sum;
}
