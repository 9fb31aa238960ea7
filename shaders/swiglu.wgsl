// SwiGLU and its gradients (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, with silu(x) = x s and s the
// logistic function of x. It is 0 where gate and up are, so zero padding stays zero.

// exp(-x), clamped where s is 0 or 1 in f32, because the exp of some drivers overflows to NaN.
fn exp_minus(x: vec4<f32>) -> vec4<f32> {
    return exp(clamp(-x, vec4<f32>(-80.0), vec4<f32>(80.0)));
}

fn swiglu(gate: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
    return gate / (1.0 + exp_minus(gate)) * up;
}

// Returns the gradients of gate and up from the gradient of the output.
fn swiglu_gradients(d: vec4<f32>, gate: vec4<f32>, up: vec4<f32>) -> array<vec4<f32>, 2> {
    let e = exp_minus(gate);
    let s = 1.0 / (1.0 + e);
    // The derivative of silu is s + x s (1 - s), and 1 - s is e s.
    return array<vec4<f32>, 2>(d * up * (s + gate * s * (e * s)), d * gate * s);
}
