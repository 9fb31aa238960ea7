// Computes scale times the sum of all elements, in one workgroup. Needs reduce.wgsl.

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> sum: array<f32>;

struct Params {
    elements: u32,
    scale: f32,
}
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var local_sum = 0.0;
    for (var i = lane; i < p.elements; i += WG) {
        local_sum += x[i];
    }
    let total = workgroup_sum(local_sum, lane);
    if (lane == 0u) {
        sum[0] = p.scale * total;
    }
}
