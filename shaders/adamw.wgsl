// Updates the weights and moments of TENSORS tensors in place by one AdamW step (Loshchilov and
// Hutter 2017, arXiv:1711.05101, in PyTorch's form). A workgroup takes SPAN packs of one tensor. What
// depends on the gradient norm is read from a buffer, so the host does not wait for it. Needs
// segments.wgsl, and adamw_weights.wgsl or
// adamw_half_weights.wgsl.

// The factor of the gradient; 1 if the update is made, else 0; learning_rate / (1 - beta1^t);
// 1 / sqrt(1 - beta2^t).
@group(0) @binding(0) var<storage, read_write> control: array<f32>;
// repeat
@group(0) @binding(1u + BUFFERS * TENSOR) var<storage, read_write> w_TENSOR: array<pack>;
@group(0) @binding(2u + BUFFERS * TENSOR) var<storage, read_write> grad_TENSOR: array<pack>;
@group(0) @binding(3u + BUFFERS * TENSOR) var<storage, read_write> m_TENSOR: array<pack>;
@group(0) @binding(4u + BUFFERS * TENSOR) var<storage, read_write> v_TENSOR: array<pack>;
// end

struct Params {
    beta1: f32,
    beta2: f32,
    eps: f32,
    // The word of a tensor holds the bits of 1 - learning rate * weight decay.
    @align(16) tensors: array<Segment, TENSORS>,
}
@group(0) @binding(1u + BUFFERS * TENSORS) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.x + group.y * groups.x;
    if (control[1] == 0.0) {
        return;
    }
    // repeat
    {
        let tensor = p.tensors[TENSOR];
        let decay = bitcast<f32>(tensor.word);
        // This wraps to a huge value before the tensor's first workgroup.
        let span = index - tensor.first_group;
        if (span < tensor.groups) {
            let last = min((span + 1u) * SPAN, tensor.packs);
            for (var i = span * SPAN + lane; i < last; i += WG) {
                let g = grad_TENSOR[i] * control[0];
                let new_m = p.beta1 * m_TENSOR[i] + (1.0 - p.beta1) * g;
                let new_v = p.beta2 * v_TENSOR[i] + (1.0 - p.beta2) * g * g;
                let root = sqrt(new_v) * control[3] + p.eps;
                let new_w = decay * w_TENSOR[i] - control[2] * new_m / root;
                m_TENSOR[i] = new_m;
                v_TENSOR[i] = new_v;
                store_TENSOR(i, new_w);
            }
        }
    }
    // end
}
