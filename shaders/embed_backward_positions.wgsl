// Gradient of the base of embed_forward.wgsl: row r is the sum of rows r, r + period, ... of dy, in
// that order; rows past the period are zero. One pack per invocation.

@group(0) @binding(0) var<storage, read_write> dy: array<activation>;
@group(0) @binding(1) var<storage, read_write> d_base: array<pack>;

struct Params {
    // The packs of d_base, of its first `period` rows, and of dy.
    packs: u32,
    used: u32,
    total: u32,
}
@group(0) @binding(2) var<uniform> p: Params;

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
    var sum = pack();
    if (i < p.used) {
        for (var at = i; at < p.total; at += p.used) {
            sum += pack(dy[at]);
        }
    }
    d_base[i] = sum;
}
