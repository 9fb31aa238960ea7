// Updates weights and moments in place by one AdamW step (Loshchilov and Hutter 2017,
// arXiv:1711.05101, in PyTorch's form), one pack per invocation. What depends on the gradient norm is
// read from a buffer, so the host does not wait for it. If HALF, also writes the new weights in
// float16, for products to read.

@group(0) @binding(0) var<storage, read_write> w: array<pack>;
@group(0) @binding(1) var<storage, read_write> grad: array<pack>;
@group(0) @binding(2) var<storage, read_write> m: array<pack>;
@group(0) @binding(3) var<storage, read_write> v: array<pack>;
// The factor of the gradient; 1 if the update is made, else 0; learning_rate / (1 - beta1^t);
// 1 / sqrt(1 - beta2^t).
@group(0) @binding(4) var<storage, read_write> control: array<f32>;
@group(0) @binding(5) var<storage, read_write> half_w: array<half_weight>;

struct Params {
    packs: u32,
    // 1 - learning rate * weight decay.
    decay: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
}
@group(0) @binding(6) var<uniform> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = (group.x + group.y * groups.x) * WG + lane;
    if (i >= p.packs || control[1] == 0.0) {
        return;
    }
    let g = grad[i] * control[0];
    let new_m = p.beta1 * m[i] + (1.0 - p.beta1) * g;
    let new_v = p.beta2 * v[i] + (1.0 - p.beta2) * g * g;
    let new_w = p.decay * w[i] - control[2] * new_m / (sqrt(new_v) * control[3] + p.eps);
    m[i] = new_m;
    v[i] = new_v;
    w[i] = new_w;
    if (HALF) {
        half_w[i] = half_weight(new_w);
    }
}
