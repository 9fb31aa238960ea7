// Computes y = x to measure memory bandwidth: reads and writes 4 bytes per element.

@group(0) @binding(0) var<storage, read_write> x: array<pack>;
@group(0) @binding(1) var<storage, read_write> y: array<pack>;

struct Params {
    packs: u32,
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
    y[i] = x[i];
}
