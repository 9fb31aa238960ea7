// Second stage of d_gamma and d_beta: adds the partial sums of layer_norm_backward.wgsl in the
// order of its workgroups. One pack of columns per invocation.

// [groups, 2, width].
@group(0) @binding(0) var<storage, read_write> partial: array<pack>;
@group(0) @binding(1) var<storage, read_write> d_gamma: array<pack>;
@group(0) @binding(2) var<storage, read_write> d_beta: array<pack>;

struct Params {
    groups: u32,
    // In packs.
    width: u32,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let column = group.x * WG + lane;
    if (column >= 2u * p.width) {
        return;
    }
    var sum = pack();
    for (var i = 0u; i < p.groups; i++) {
        sum += partial[i * 2u * p.width + column];
    }
    if (column < p.width) {
        d_gamma[column] = sum;
    } else {
        d_beta[column - p.width] = sum;
    }
}
