// Computes y = mask * x + residual, one element per invocation. Needs dropout_mask.wgsl.

@group(0) @binding(0) var<storage, read_write> x: array<activation>;
@group(0) @binding(1) var<storage, read_write> residual: array<activation>;
@group(0) @binding(2) var<storage, read_write> y: array<activation>;

struct Params {
    elements: u32,
    per_sequence: u32,
    @align(16) mask: Mask,
}
@group(0) @binding(3) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.x + group.y * groups.x) * WG + lane;
    if (i >= p.elements) {
        return;
    }
    let sequence = i / p.per_sequence;
    let mask_key = sequence_key(p.mask, sequence);
    var value = pack(x[i]) * dropout_factor(p.mask, mask_key, i - sequence * p.per_sequence);
    if (RESIDUAL) {
        value += pack(residual[i]);
    }
    y[i] = to_activation(value);
}
