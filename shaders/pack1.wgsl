// One element to a memory access, for rows of any length.

const VEC = 1u;
alias pack = f32;

fn sum_of(v: pack) -> f32 {
    return v;
}

fn widen(v: pack) -> vec4<f32> {
    return vec4<f32>(v);
}

// Elements i to i + VEC of a vector of four.
fn part(v: vec4<f32>, i: u32) -> pack {
    return v[i];
}
