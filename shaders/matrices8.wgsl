// Cooperative matrices of 8 x 8 with sums in f32. Workgroup memory for them holds cells of one
// element, because Metal, which has matrices of this size, takes no vectors.

const SIDE = 8u;
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sum = coop_mat8x8<f32, C>;

const CELL = 1u;
alias half_cell = f16;
alias sum_cell = f32;

// Returns cell i of four elements.
fn half_cell_of(v: vec4<f16>, i: u32) -> half_cell {
    return v[i];
}

fn sum_cell_of(v: vec4<f32>, i: u32) -> sum_cell {
    return v[i];
}
