// Four elements to a memory access, for rows whose length is a multiple of four.

const VEC = 4u;
alias pack = vec4<f32>;

fn sum_of(v: pack) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn widen(v: pack) -> vec4<f32> {
    return v;
}

// Elements i to i + VEC of a vector of four.
fn part(v: vec4<f32>, i: u32) -> pack {
    return v;
}
