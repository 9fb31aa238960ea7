// First stage of the control of an update: each workgroup writes the sum of the squares of SPAN
// packs to its own element of `partial`. The elements are divided by the loss scale and p.divisor
// first: the squares of scaled gradients would leave the range of f32. Needs reduce.wgsl.

@group(0) @binding(0) var<storage, read_write> x: array<pack>;
@group(0) @binding(1) var<storage, read_write> partial: array<f32>;
// The scale is element 0.
@group(0) @binding(2) var<storage, read_write> loss_scale: array<f32>;

struct Params {
    packs: u32,
    // The index of this tensor's first sum in `partial`, and its number of sums.
    first: u32,
    groups: u32,
    divisor: f32,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
    if (index >= p.groups) {
        return;
    }
    let factor = 1.0 / (loss_scale[0] * p.divisor);
    let last = min((index + 1u) * SPAN, p.packs);
    var sum = pack();
    for (var i = index * SPAN + lane; i < last; i += WG) {
        let v = x[i] * factor;
        sum += v * v;
    }
    let total = workgroup_sum(sum_of(sum), lane);
    if (lane == 0u) {
        partial[p.first + index] = total;
    }
}
