// First stage of the control of an update, on TENSORS tensors at once. Each workgroup writes the
// sum of the squares of SPAN packs of one tensor to its own element of `partial`. It divides the
// elements by the loss scale and p.divisor first, because scaled squares would leave the
// range of f32. Needs reduce.wgsl, segments.wgsl.

@group(0) @binding(0) var<storage, read_write> partial: array<f32>;
// The scale is element 0.
@group(0) @binding(1) var<storage, read_write> loss_scale: array<f32>;
// repeat
@group(0) @binding(2 + TENSOR) var<storage, read_write> x_TENSOR: array<pack>;
// end

struct Params {
    divisor: f32,
    // The word is the index of the tensor's first sum in `partial`.
    @align(16) tensors: array<Segment, TENSORS>,
}
@group(0) @binding(2 + TENSORS) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
    let factor = 1.0 / (loss_scale[0] * p.divisor);
    var sum = pack();
    var place = 0u;
    var has_place = false;
    // repeat
    {
        let tensor = p.tensors[TENSOR];
        // This wraps to a huge value before the tensor's first workgroup.
        let span = index - tensor.first_group;
        if (span < tensor.groups) {
            let last = min((span + 1u) * SPAN, tensor.packs);
            for (var i = span * SPAN + lane; i < last; i += WG) {
                let v = x_TENSOR[i] * factor;
                sum += v * v;
            }
            place = tensor.word + span;
            has_place = true;
        }
    }
    // end
    let total = workgroup_sum(sum_of(sum), lane);
    if (lane == 0u && has_place) {
        partial[place] = total;
    }
}
