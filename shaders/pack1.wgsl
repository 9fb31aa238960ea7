// One element per memory access, for rows of any length.

const VEC = 1u;
alias pack = f32;

// Returns the sum of the elements.
fn sum_of(v: pack) -> f32 {
    return v;
}

// Returns the elements as a vector of four, all equal.
fn widen(v: pack) -> vec4<f32> {
    return vec4<f32>(v);
}

// Returns elements i to i + VEC of a vector of four.
fn narrow(v: vec4<f32>, i: u32) -> pack {
    return v[i];
}
