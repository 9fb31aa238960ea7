// Second stage of d_gamma and d_beta of TENSORS layers: adds the partial sums of
// layer_norm_backward.wgsl in the order of its workgroups. One pack of columns per invocation. Needs
// segments.wgsl.

// repeat
// [groups, 2, width].
@group(0) @binding(3 * TENSOR) var<storage, read_write> partial_TENSOR: array<pack>;
@group(0) @binding(3 * TENSOR + 1) var<storage, read_write> d_gamma_TENSOR: array<pack>;
@group(0) @binding(3 * TENSOR + 2) var<storage, read_write> d_beta_TENSOR: array<pack>;
// end

struct Params {
    // The packs count gamma and beta together. The word of a layer is its number of groups of
    // partial sums.
    @align(16) tensors: array<Segment, TENSORS>,
}
@group(0) @binding(3 * TENSORS) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
    // repeat
    {
        let layer = p.tensors[TENSOR];
        let width = layer.packs / 2u;
        // This wraps to a huge value before the layer's first workgroup.
        let span = index - layer.first_group;
        let column = span * SPAN + lane;
        if (span < layer.groups && column < layer.packs) {
            var sum = pack();
            for (var i = 0u; i < layer.word; i++) {
                sum += partial_TENSOR[i * layer.packs + column];
            }
            if (column < width) {
                d_gamma_TENSOR[column] = sum;
            } else {
                d_beta_TENSOR[column - width] = sum;
            }
        }
    }
    // end
}
