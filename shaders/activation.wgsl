// Computes an activation, or if BACKWARD the gradient of its input, a pack of the activated tensor per invocation.
// If GATED, a row of the input is gate and up. Needs gelu.wgsl, swiglu.wgsl.

@group(0) @binding(0) var<storage, read_write> x: array<activation>;
@group(0) @binding(1) var<storage, read_write> dy: array<activation>;
@group(0) @binding(2) var<storage, read_write> y: array<activation>;

struct Params {
    packs: u32,
    // Packs in a row of the activated tensor.
    width: u32,
}
@group(0) @binding(3) var<uniform> p: Params;

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
    if (GATED) {
        let at = i + i / p.width * p.width;
        let gate = widen(pack(x[at]));
        let up = widen(pack(x[at + p.width]));
        if (BACKWARD) {
            let gradients = swiglu_gradients(widen(pack(dy[i])), gate, up);
            y[at] = to_activation(narrow(gradients[0], 0u));
            y[at + p.width] = to_activation(narrow(gradients[1], 0u));
        } else {
            y[i] = to_activation(narrow(swiglu(gate, up), 0u));
        }
    } else {
        let v = widen(pack(x[i]));
        if (BACKWARD) {
            y[i] = to_activation(pack(dy[i]) * narrow(gelu_derivative(v), 0u));
        } else {
            y[i] = to_activation(narrow(gelu(v), 0u));
        }
    }
}
