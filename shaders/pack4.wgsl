// Four elements per memory access, for rows whose length is a multiple of four.

const VEC = 4u;
alias pack = vec4<f32>;

// Returns the sum of the elements.
fn sum_of(v: pack) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Returns the elements as a vector of four.
fn widen(v: pack) -> vec4<f32> {
    return v;
}

// Returns elements i to i + VEC of a vector of four.
fn narrow(v: vec4<f32>, i: u32) -> pack {
    return v;
}
