// Second stage of the gradient norm, in one workgroup: the root of the sum of all partial sums, and
// the factor that clips the gradients to a norm of `limit` (0 for no clipping), as in PyTorch's
// clip_grad_norm_. Needs reduce.wgsl.

@group(0) @binding(0) var<storage, read_write> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> norm: array<f32>;
@group(0) @binding(2) var<storage, read_write> clip: array<f32>;

struct Params {
    elements: u32,
    limit: f32,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var i = lane; i < p.elements; i += WG) {
        sum += partial[i];
    }
    let total = sqrt(workgroup_sum(sum, lane));
    if (lane == 0u) {
        norm[0] = total;
        clip[0] = select(min(p.limit / (total + 1e-6), 1.0), 1.0, p.limit == 0.0);
    }
}
